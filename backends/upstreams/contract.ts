// An upstream is another gateway that is asked for blocks. It only speaks a protocol: verification, retries, scores and
// hedging belong to the race. Every upstream passes src/testing/upstream.ts.
import type { CID } from 'multiformats/cid'
import type { z } from 'zod'
import type { Block } from '../../src/core/block.ts'
import type { Clock } from '../../src/core/clock.ts'
import type { Log } from '../../src/core/log.ts'
import type { Trace } from '../../src/core/wire/trace.ts'

/** A piece of a DAG, as IPIP-402 words it. */
export type DagWant = {
  readonly cid: CID
  /** Names below `cid`, decoded. The upstream re-encodes them; it is never trusted to have resolved them. */
  readonly segments: readonly string[]
  readonly scope: 'block' | 'entity' | 'all'
  /** First and last byte wanted of the entity, counted from 0; without `to`, up to the end. */
  readonly range?: { readonly from: number; readonly to?: number } | undefined
}

/** What an upstream may be asked. */
export type UpstreamTraits = {
  /** May be asked for a whole DAG in one answer (CAR). What the last probe found; true before the first. */
  readonly dag: boolean
  /** May be asked for this block at all (a plain upstream can only prove some kinds). */
  canBlock(cid: CID): boolean
  /** How many questions it is asked at once at most; the rest waits here, where no clock of the upstream runs. */
  readonly connections?: number
}

/** The largest IPNS record there is (IPNS specification: 10 KiB). */
export const maxRecordBytes = 10 * 1024

/** What a probe saw, in words an operator understands. `usable` false: not asked until a later probe says otherwise. */
export type ProbeReport = {
  readonly usable: boolean
  /** It sent bytes that are not those of the CID. */
  readonly lied?: boolean
  readonly raw: boolean
  readonly car: boolean
  readonly findings: readonly string[]
  readonly ms: number
}

/**
 * Promises callers rely on: a call stops at once when its signal aborts, and its socket is freed; what fails arrives
 * as a Failure (source `upstream`): not-found, throttled (with retryAfterMs as sent, uncut), refused, timeout, broken,
 * false-bytes, too-large. Bytes are *not* proved here (but `plain` may prove by itself that it has nothing).
 * Nothing is buffered beyond one block. No redirect is followed off the host the operator named, but to its own subdomain
 * for the same thing where the operator allows that.
 */
export interface Upstream {
  readonly name: string
  readonly traits: UpstreamTraits
  /** At most 2 MiB of bytes that claim to be this block. */
  block(cid: CID, signal: AbortSignal): Promise<Uint8Array>
  /**
   * The same without a promise and a signal, which cost more than a small block. The returned function stops it. Absent: `block` is
   * asked.
   */
  ask?(cid: CID, answer: BlockAnswer): () => void
  /** Blocks in the order sent; pulling is what drives the socket. Ends normally only at a clean end of the answer. */
  dag(want: DagWant, signal: AbortSignal): AsyncIterable<Block>
  /** At most 10 KiB that claim to be the IPNS record of this key. Absent: it is never asked for one. */
  record?(key: CID, signal: AbortSignal): Promise<Uint8Array>
  probe(signal: AbortSignal): Promise<ProbeReport>
  close(): Promise<void>
}

/** What a block is asked for: one of these is called, once, unless the question is stopped before. */
export interface BlockAnswer {
  /** At most 2 MiB of bytes that claim to be the block. */
  came(bytes: Uint8Array): void
  failed(error: unknown): void
}

export type UpstreamContext = {
  readonly name: string
  /** A router named it, and not the operator: no address in its url is taken on trust, and no redirect is followed. */
  readonly isFound?: boolean
  readonly userAgent: string
  /** Of the request that is being answered; what is asked for it carries its `traceparent`. */
  readonly trace?: Trace | undefined
  readonly log: Log
  readonly clock: Clock
}

export type UpstreamKind<Options extends z.ZodType = z.ZodType> = {
  readonly use: string
  readonly options: Options
  create(options: z.output<Options>, context: UpstreamContext): Upstream
}
