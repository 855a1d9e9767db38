// Asks several tiers in turn, the nearest first. The next tier is asked when the one before has nothing, or takes longer than
// is worth waiting for; a late tier goes on, and the first hit of any tier counts.
import type { Call } from '../../../backends/tiers/contract.ts'

/** Undefined: it has nothing, or could not be asked. Rejects only with the reason of `signal`. */
export type TierCall<T> = (signal: AbortSignal, call: Call) => Promise<T | undefined>

export interface InTurn<T> {
  readonly found: Promise<T | undefined>
  /** Resolves when all tiers were asked and those without an answer take longer than is worth waiting for. */
  readonly overdue: Promise<void>
}

// Made once: it says nothing of where it is thrown, and finding that out is dear.
const elsewhere = Object.freeze(new DOMException('another tier has it', 'AbortError'))

type RunningCall = { isOverdue: boolean }

export function askInTurn<T>(all: readonly TierCall<T>[], signal: AbortSignal): InTurn<T> {
  const { promise: found, resolve, reject } = Promise.withResolvers<T | undefined>()
  const overdue = Promise.withResolvers<void>()
  const running = new Set<RunningCall>()
  const others = new AbortController()
  let next = 0
  let isOver = false

  function end(settle: () => void): void {
    if (isOver) return
    isOver = true
    settle()
    signal.removeEventListener('abort', leave)
    if (running.size > 0) others.abort(signal.aborted ? signal.reason : elsewhere)
  }
  const leave = () => end(() => reject(signal.reason))

  /** The one before has nothing, or is late. */
  function goOn(): void {
    const ask = all[next++]
    if (isOver) return
    if (ask) return askOne(ask)
    if (running.size === 0) end(() => resolve(undefined))
    else if ([...running].every(({ isOverdue }) => isOverdue)) overdue.resolve()
  }

  function askOne(ask: TierCall<T>): void {
    const one: RunningCall = { isOverdue: false }
    running.add(one)
    const told = () => {
      if (one.isOverdue || !running.has(one)) return
      one.isOverdue = true
      goOn()
    }
    ask(others.signal, { overdue: told }).then(
      (answer) => {
        running.delete(one)
        if (answer !== undefined) end(() => resolve(answer))
        // A late tier has had its turn; only the last answer of all ends it.
        else if (!one.isOverdue || next >= all.length) goOn()
      },
      (error: unknown) => end(() => reject(error)),
    )
  }

  found.catch(() => {})
  signal.addEventListener('abort', leave, { once: true })
  if (signal.aborted) leave()
  else goOn()
  return { found, overdue: overdue.promise }
}
