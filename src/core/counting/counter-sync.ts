// Shares counters between instances. Local increments are flushed to the shared store once a
// second, and the store returns the totals. No request waits for this.
import { createHash } from 'node:crypto'
import { type Clock, withDeadline } from '../clock.ts'
import { cancelled, Failure } from '../failure.ts'
import type { Log } from '../log.ts'

export type Increment = { readonly key: string; readonly amount: number; readonly keptMs: number }

/** A shared counter. */
export interface SharedCounter {
  /** The lifetime of the counter in the store, from the first increment by any instance. */
  readonly keptMs: number
  /**
   * Called after a flush. `batch`: the increment that was sent. `total`: the sum of all instances.
   */
  heard(batch: number, total: number): void
  /** Called with an increment that could not be sent. */
  lost?(amount: number): void
}

export interface CounterSync {
  /** Adds `amount` to the counter. Pass 0 to fetch the shared total only. */
  note(key: string, amount: number, counted: SharedCounter): void
  /** True while the shared store is unreachable. */
  readonly isStoreDown: boolean
  close(): void
}

type CounterSyncOptions = {
  /** Adds to each counter and returns the new totals. */
  readonly add: (counts: readonly Increment[], signal: AbortSignal) => Promise<readonly number[]>
  readonly clock: Clock
  readonly log: Log
}

const intervalMs = 1000
const timeoutMs = 900
const maxBatch = 1000
const maxWaiting = 100_000

export function createCounterSync({ add, clock, log }: CounterSyncOptions): CounterSync {
  const waiting = new Map<string, { amount: number; readonly counted: SharedCounter }>()
  const closing = new AbortController()
  let cancelSync: (() => void) | undefined
  let isStoreDown = false

  function became(isDown: boolean, why?: string): void {
    if (isDown === isStoreDown) return
    isStoreDown = isDown
    if (isDown) log('warn', 'limits.store-down', { why })
    else log('info', 'limits.store-up', {})
  }

  function nextOnes() {
    const next = [...waiting.entries().take(maxBatch)]
    for (const [key] of next) waiting.delete(key)
    return next
  }

  async function flush(): Promise<void> {
    const batch = nextOnes()
    const counts = batch.map(([key, { amount, counted }]) => ({ key: nameOf(key), amount, keptMs: counted.keptMs }))
    try {
      const how = { ms: timeoutMs, clock, signal: closing.signal, late }
      const totals = await withDeadline(how, (signal) => add(counts, signal))
      for (const [at, [, { amount, counted }]] of batch.entries()) counted.heard(amount, totals[at] ?? amount)
      became(false)
    } catch (error) {
      for (const [, { amount, counted }] of batch) counted.lost?.(amount)
      if (!closing.signal.aborted) became(true, error instanceof Failure ? error.message : String(error))
    }
    cancelSync = waiting.size > 0 && !closing.signal.aborted ? clock.after(intervalMs, begin) : undefined
  }

  const begin = (): void => void flush()

  return {
    note(key, amount, counted) {
      const one = waiting.get(key)
      if (one) one.amount += amount
      else if (waiting.size < maxWaiting) waiting.set(key, { amount, counted })
      if (!closing.signal.aborted) cancelSync ??= clock.after(intervalMs, begin)
    },
    get isStoreDown() {
      return isStoreDown
    },
    close() {
      closing.abort(cancelled('the gateway is closing'))
      cancelSync?.()
    },
  }
}

const late = () => new Failure('timeout', 'it did not answer in time', { source: 'ours' })

/** Hashed, so that the store holds no client addresses or token names. */
const nameOf = (key: string): string => createHash('sha256').update(key).digest('base64url').slice(0, 22)
