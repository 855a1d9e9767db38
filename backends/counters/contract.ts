// A store in which several instances share counters.
import type { z } from 'zod'
import type { Clock } from '../../src/core/clock.ts'

/**
 * Promises to callers: concurrent additions of several instances all count; an outage rejects with
 * a Failure (source `ours`) and never returns a number; a call stops soon after its signal aborts.
 * A counter may be lost at any time: it is for limits, not for records. `close` is idempotent.
 */
export interface SharedCounters {
  /**
   * Adds to each counter and returns the new values. A missing counter starts at 0, and expires
   * `keptMs` later.
   */
  add(
    counts: readonly { readonly key: string; readonly amount: number; readonly keptMs: number }[],
    signal: AbortSignal,
  ): Promise<readonly number[]>
  /** Checks credentials and reachability once. Rejects with a Failure that tells what to fix. */
  probe(signal: AbortSignal): Promise<void>
  close(): Promise<void>
}

type CountersContext = {
  /** Our name, for protocols with a place for it. */
  readonly userAgent: string
  readonly clock: Clock
}

/**
 * An entry of the registry: `use` in the configuration, its options, and a constructor (without
 * I/O).
 */
export type CountersKind<Options extends z.ZodType = z.ZodType> = {
  readonly use: string
  readonly options: Options
  create(options: z.output<Options>, context: CountersContext): SharedCounters
}
