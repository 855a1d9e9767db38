// Shares counters between instances. Local increments are flushed to the shared store once a
// second, and the store returns the totals. No request waits for this.
import { createHash } from 'node:crypto'
import { type Clock, withDeadline } from '../clock.ts'
import { cancelled, Failure } from '../failure.ts'
import type { Log } from '../log.ts'

export type Told = { readonly key: string; readonly amount: number; readonly keptMs: number }

/** A shared counter. */
export interface Counted {
  /** The lifetime of the counter in the store, from the first increment by any instance. */
  readonly keptMs: number
  /**
   * Called after a flush. `told`: the increment that was sent. `total`: the sum of all instances.
   */
  heard(told: number, total: number): void
  /** Called with an increment that could not be sent. */
  lost?(amount: number): void
}

export interface Telling {
  /** Adds `amount` to the counter. Pass 0 to fetch the shared total only. */
  note(key: string, amount: number, counted: Counted): void
  /** True while the shared store is unreachable. */
  readonly isAlone: boolean
  close(): void
}

export type TellingOptions = {
  /** Adds to each counter and returns the new totals. */
  readonly add: (counts: readonly Told[], signal: AbortSignal) => Promise<readonly number[]>
  readonly clock: Clock
  readonly log: Log
}

const everyMs = 1000
const answerMs = 900
const maxAtOnce = 1000
const maxWaiting = 100_000

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
    const next = [...waiting.entries().take(maxAtOnce)]
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
      else if (waiting.size < maxWaiting) waiting.set(key, { amount, counted })
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

/** Hashed, so that the store holds no client addresses or token names. */
const nameOf = (key: string): string => createHash('sha256').update(key).digest('base64url').slice(0, 22)
