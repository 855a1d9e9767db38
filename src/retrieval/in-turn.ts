// One question to several tiers, the nearest first. The next one is asked when the one before has nothing, or takes longer
// than it is worth waiting for; who is late goes on, and the first answer counts, whoever gives it.
import type { Call } from '../../backends/tiers/contract.ts'
import type { Clock } from '../clock.ts'

export type Asked<T> = {
  /** Undefined: it has nothing, or could not be asked. Rejects only with the reason of `signal`. */
  ask(signal: AbortSignal, call: Call): Promise<T | undefined>
  readonly patienceMs: number
}

export interface InTurn<T> {
  readonly found: Promise<T | undefined>
  /** How long it is worth waiting from now on. 0: everybody has been asked and nobody is expected to answer soon. */
  readonly patienceMs: number
}

type Running = { readonly since: number; readonly patienceMs: number; isOverdue: boolean }

// Somebody who should have answered by now and is not said to be late: our own line, or a moment in which we were held up.
const momentMs = 10
const mostMs = 250

export function askInTurn<T>(all: readonly Asked<T>[], signal: AbortSignal, clock: Clock): InTurn<T> {
  const { promise: found, resolve, reject } = Promise.withResolvers<T | undefined>()
  const running = new Set<Running>()
  const others = new AbortController()
  let next = 0
  let isOver = false

  function end(settle: () => void): void {
    if (isOver) return
    isOver = true
    settle()
    signal.removeEventListener('abort', leave)
    others.abort(signal.aborted ? signal.reason : new DOMException('another tier has it', 'AbortError'))
  }
  const leave = () => end(() => reject(signal.reason))

  function askNext(): void {
    const one = all[next++]
    if (isOver || !one) return
    const { patienceMs } = one
    const state: Running = { since: clock.monotonic(), patienceMs, isOverdue: false }
    let isPassedOn = false
    const passOn = () => {
      if (isPassedOn) return
      isPassedOn = true
      askNext()
    }
    running.add(state)
    const overdue = () => {
      state.isOverdue = true
      passOn()
    }
    one.ask(others.signal, { overdue }).then(
      (answer) => {
        running.delete(state)
        if (answer !== undefined) return end(() => resolve(answer))
        passOn()
        if (running.size === 0 && next >= all.length) end(() => resolve(undefined))
      },
      (error: unknown) => end(() => reject(error)),
    )
  }

  found.catch(() => {})
  signal.addEventListener('abort', leave, { once: true })
  if (signal.aborted) leave()
  else if (all.length === 0) end(() => resolve(undefined))
  else askNext()

  return {
    found,
    get patienceMs() {
      if (isOver) return 0
      const now = clock.monotonic()
      let ms = 0
      for (const { since, patienceMs, isOverdue } of running)
        if (!isOverdue) ms += Math.max(momentMs, patienceMs - (now - since))
      for (const one of all.slice(next)) ms += one.patienceMs
      return Math.min(ms, mostMs)
    },
  }
}
