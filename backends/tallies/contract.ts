// What a place offers in which several instances count together.
import type { z } from 'zod'
import type { Clock } from '../../src/core/clock.ts'

/**
 * Promises callers rely on: additions of several instances at once all count; an outage rejects with a Failure (source `ours`) and
 * never gives a number; a call stops soon after its signal aborts. A count may be lost at any time: it is for limits, and no record.
 * `close` is idempotent.
 */
export interface Tally {
  /** Adds to each count, and gives what it holds then. A count that is not there begins at 0, and is gone `keptMs` after that. */
  add(
    counts: readonly { readonly key: string; readonly amount: number; readonly keptMs: number }[],
    signal: AbortSignal,
  ): Promise<readonly number[]>
  /** Checks credentials and reachability once. Rejects with a Failure that says what to fix. */
  probe(signal: AbortSignal): Promise<void>
  close(): Promise<void>
}

export type TallyContext = {
  /** How we call ourselves where a protocol has a place for it. */
  readonly userAgent: string
  readonly clock: Clock
}

/** One line of the registry: `use` in the configuration, its options, and how to make one (no I/O yet). */
export type TallyKind<Options extends z.ZodType = z.ZodType> = {
  readonly use: string
  readonly options: Options
  create(options: z.output<Options>, context: TallyContext): Tally
}
