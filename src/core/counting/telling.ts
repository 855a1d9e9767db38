// Counts that several instances keep together, as one instance tells them: what it counted goes out once a second, and what all of
// them have comes back. Nobody waits for that.
import { createHash } from 'node:crypto'
import type { Clock } from '../clock.ts'
import { withDeadline } from '../deadline.ts'
import { cancelled, Failure } from '../failure.ts'
import type { Log } from '../log.ts'

export type Told = { readonly key: string; readonly amount: number; readonly keptMs: number }

/** One of the counts. */
export interface Counted {
  /** How long it is kept from the first addition on, whoever makes it. */
  readonly keptMs: number
  /** `told`: what was just added by this instance. `total`: what all of them have, this included. */
  heard(told: number, total: number): void
  /** So much could not be told. */
  lost?(amount: number): void
}

export interface Telling {
  /** Counts so much more, or nothing, to hear what the others have. */
  note(key: string, amount: number, counted: Counted): void
  /** The others cannot be told. */
  readonly isAlone: boolean
  close(): void
}

export type TellingOptions = {
  /** Adds to each count, and gives what it holds then. */
  readonly add: (counts: readonly Told[], signal: AbortSignal) => Promise<readonly number[]>
  readonly clock: Clock
  readonly log: Log
}

const everyMs = 1000
const answerMs = 900
const mostAtOnce = 1000
const mostWaiting = 100_000

export function createTelling({ add, clock, log }: TellingOptions): Telling {
  const waiting = new Map<string, { amount: number; readonly counted: Counted }>()
  const closing = new AbortController()
  let cancelTelling: (() => void) | undefined
  let isAlone = false

  function became(alone: boolean, why?: string): void {
    if (alone === isAlone) return
    isAlone = alone
    if (alone) log('warn', 'limits.store-down', { why })
    else log('info', 'limits.store-up', {})
  }

  function nextOnes() {
    const next = [...waiting.entries().take(mostAtOnce)]
    for (const [key] of next) waiting.delete(key)
    return next
  }

  async function tell(): Promise<void> {
    const told = nextOnes()
    const counts = told.map(([key, { amount, counted }]) => ({ key: nameOf(key), amount, keptMs: counted.keptMs }))
    try {
      const how = { ms: answerMs, clock, signal: closing.signal, late }
      const totals = await withDeadline(how, (signal) => add(counts, signal))
      for (const [at, [, { amount, counted }]] of told.entries()) counted.heard(amount, totals[at] ?? amount)
      became(false)
    } catch (error) {
      for (const [, { amount, counted }] of told) counted.lost?.(amount)
      if (!closing.signal.aborted) became(true, error instanceof Failure ? error.message : String(error))
    }
    cancelTelling = waiting.size > 0 && !closing.signal.aborted ? clock.after(everyMs, begin) : undefined
  }

  const begin = (): void => void tell()

  return {
    note(key, amount, counted) {
      const one = waiting.get(key)
      if (one) one.amount += amount
      else if (waiting.size < mostWaiting) waiting.set(key, { amount, counted })
      if (!closing.signal.aborted) cancelTelling ??= clock.after(everyMs, begin)
    },
    get isAlone() {
      return isAlone
    },
    close() {
      closing.abort(cancelled('the gateway is closing'))
      cancelTelling?.()
    },
  }
}

const late = () => new Failure('timeout', 'it did not answer in time', { source: 'ours' })

/** No address of a client lies in the store, and no name of a token. */
const nameOf = (key: string): string => createHash('sha256').update(key).digest('base64url').slice(0, 22)
