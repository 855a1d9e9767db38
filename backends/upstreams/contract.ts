// An upstream is another gateway that is asked for blocks. It only speaks a protocol: verification,
// retries, scores and hedging belong to the race. Every upstream passes src/testing/upstream.ts.
import type { CID } from 'multiformats/cid'
import type { z } from 'zod'
import type { Block } from '../../src/core/cid.ts'
import type { Clock } from '../../src/core/clock.ts'
import type { Log } from '../../src/core/log.ts'
import type { Trace } from '../../src/core/wire/trace.ts'

/** A part of a DAG, as IPIP-402 defines it. */
export type DagWant = {
  readonly cid: CID
  /**
   * Names below `cid`, decoded. The upstream re-encodes them; it is never trusted to have resolved
   * them.
   */
  readonly segments: readonly string[]
  readonly scope: 'block' | 'entity' | 'all'
  /**
   * The first and last byte of the entity, counted from 0, inclusive; without `to`, up to the end.
   */
  readonly range?: { readonly from: number; readonly to?: number } | undefined
}

/** The abilities of an upstream. */
export type UpstreamTraits = {
  /**
   * True if it serves DAGs in one response (CAR), as found by the last probe; true before the
   * first.
   */
  readonly dag: boolean
  /** True if it may be asked for this block (a plain upstream can only prove some kinds). */
  canBlock(cid: CID): boolean
  /** The maximum of concurrent requests; others wait before any timeout of the upstream starts. */
  readonly connections?: number
}

/** The largest IPNS record (IPNS specification: 10 KiB). */
export const maxRecordBytes = 10 * 1024

/**
 * The result of a probe, in words for operators. `usable` false: not asked until a later probe
 * succeeds.
 */
export type ProbeReport = {
  readonly usable: boolean
  /** It sent bytes that do not hash to the CID. */
  readonly lied?: boolean
  readonly raw: boolean
  readonly car: boolean
  readonly findings: readonly string[]
  readonly ms: number
}

/**
 * Promises to callers: a call stops at once when its signal aborts, and its socket is freed; errors
 * are Failures (source `upstream`): not-found, throttled (with retryAfterMs as sent, uncapped),
 * refused, timeout, broken, hash-mismatch, too-large. Bytes are *not* verified here (but `plain` may
 * prove that it has nothing). At most one block is buffered. Redirects are followed within the
 * operator's host only, and to its own subdomain for the same content if the operator allows that.
 */
export interface Upstream {
  readonly name: string
  readonly traits: UpstreamTraits
  /** Resolves with at most 2 MiB of unverified bytes. */
  block(cid: CID, signal: AbortSignal): Promise<Uint8Array>
  /**
   * `block` without a promise and a signal, which cost more than a small block. The returned
   * function stops it. Optional.
   */
  ask?(cid: CID, answer: BlockAnswer): () => void
  /**
   * Blocks in the order sent; the socket is read on demand. Ends normally only at a clean end of
   * the response.
   */
  dag(want: DagWant, signal: AbortSignal): AsyncIterable<Block>
  /** The same without a promise for each block. Absent: `dag` is asked. */
  askDag?(want: DagWant, answer: DagAnswer): DagAsk
  /**
   * Resolves with at most 10 KiB, an unverified IPNS record. Optional: without it, it is never
   * asked for records.
   */
  record?(key: CID, signal: AbortSignal): Promise<Uint8Array>
  probe(signal: AbortSignal): Promise<ProbeReport>
  close(): Promise<void>
}

/**
 * Callbacks of a request for a block: one of them is called, once, unless the request is stopped
 * before.
 */
export interface BlockAnswer {
  /** At most 2 MiB of unverified bytes. */
  came(bytes: Uint8Array): void
  failed(error: unknown): void
}

/** What a DAG is asked for. After `ended` or `failed` nothing is called. */
export interface DagAnswer {
  came(block: Block): void
  /** The answer ended cleanly. */
  ended(): void
  failed(error: unknown): void
}

export interface DagAsk {
  /** Takes effect before the next block. The socket is left alone until `resume`, and no clock of the upstream runs. */
  pause(): void
  resume(): void
  stop(): void
}

export type UpstreamContext = {
  readonly name: string
  /**
   * Named by a router instead of the operator: no address in its URL is trusted, and no redirect is
   * followed.
   */
  readonly isFound?: boolean
  readonly userAgent: string
  /** The trace of the client's request, whose `traceparent` is forwarded. */
  readonly trace?: Trace | undefined
  readonly log: Log
  readonly clock: Clock
}

export type UpstreamKind<Options extends z.ZodType = z.ZodType> = {
  readonly use: string
  readonly options: Options
  create(options: z.output<Options>, context: UpstreamContext): Upstream
}
