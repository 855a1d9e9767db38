// An upstream is another gateway that is asked for blocks. It only speaks a protocol: verification,
// retries, scores and hedging belong to the race. Every upstream passes src/testing/upstream.ts.
import type { CID } from 'multiformats/cid'
import type { z } from 'zod'
import type { Block } from '../../src/core/cid.ts'
import type { Clock } from '../../src/core/clock.ts'
import { Failure } from '../../src/core/failure.ts'
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

/** A single block is wanted. */
export const isBlock = ({ scope, segments }: DagWant): boolean => scope === 'block' && segments.length === 0

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
  readonly hasFalseBytes?: boolean
  readonly raw: boolean
  readonly car: boolean
  readonly findings: readonly string[]
  readonly ms: number
}

/**
 * A request stops at once when its signal aborts, and its socket is freed. Errors are Failures
 * (source `upstream`): not-found, throttled (with retryAfterMs as sent, uncapped), refused, timeout,
 * upstream-error, hash-mismatch, too-large. Redirects are followed within the operator's host only,
 * and to its own subdomain for the same content if the operator allows that.
 */
export interface Upstream {
  readonly name: string
  readonly traits: UpstreamTraits
  /**
   * Requests blocks. `scope: 'block'` without segments is a single block; nothing else is requested
   * of an upstream without the trait `dag`. A program may write it as a generator: `fromIterable`.
   */
  ask(want: DagWant, answer: UpstreamAnswer): UpstreamRequest
  /**
   * Resolves with at most 10 KiB, an unverified IPNS record. Optional: without it, it is never
   * asked for records.
   */
  record?(key: CID, signal: AbortSignal): Promise<Uint8Array>
  probe(signal: AbortSignal): Promise<ProbeReport>
  close(): Promise<void>
}

/** Callbacks of a request: after `ended`, `failed` or a stop none of them is called. */
export interface Answer<Piece> {
  came(piece: Piece): void
  /** The response ended cleanly. */
  ended(): void
  failed(error: unknown): void
}

/**
 * The blocks in the order sent, of at most 2 MiB. They are *not* verified here (but `plain` may prove
 * that it has nothing).
 */
export type UpstreamAnswer = Answer<Block>

/** A request under way, for a reader that reads on demand. */
export interface UpstreamRequest {
  /** Takes effect before the next block: the socket is left alone, and no timeout of the upstream runs. */
  pause(): void
  resume(): void
  stop(): void
}

const enough = new Failure('cancelled', 'the answer is not needed any more', { source: 'ours' })

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

// The same with generators and promises, where what they cost does not count.

/** Makes the `ask` of an upstream from a generator of blocks. */
export const fromIterable =
  (blocksOf: (want: DagWant, signal: AbortSignal) => AsyncIterable<Block>): Upstream['ask'] =>
  (want, answer) => {
    const own = new AbortController()
    let paused: PromiseWithResolvers<void> | undefined
    async function pull(): Promise<void> {
      for await (const block of blocksOf(want, own.signal)) {
        await paused?.promise
        if (own.signal.aborted) return
        answer.came(block)
        await paused?.promise
      }
      if (!own.signal.aborted) answer.ended()
    }
    pull().catch((error: unknown) => {
      if (!own.signal.aborted) answer.failed(error)
    })
    const resume = () => {
      paused?.resolve()
      paused = undefined
    }
    return {
      pause() {
        paused ??= Promise.withResolvers()
      },
      resume,
      stop() {
        own.abort(enough)
        resume()
      },
    }
  }

/** The pieces of a response, read on demand. The request is sent at once. */
export function toIterable<Piece>(
  ask: (answer: Answer<Piece>) => UpstreamRequest,
  signal: AbortSignal,
): AsyncGenerator<Piece> {
  const pieces: Piece[] = []
  let isEnded = false
  let failure: { readonly error: unknown } | undefined
  let news = Promise.withResolvers<void>()
  let asked: UpstreamRequest | undefined
  const fail = (error: unknown) => {
    failure ??= { error }
    news.resolve()
  }
  const leave = () => {
    asked?.stop()
    fail(signal.reason)
  }
  if (signal.aborted) leave()
  else {
    signal.addEventListener('abort', leave, { once: true })
    asked = ask({
      came(piece) {
        pieces.push(piece)
        asked?.pause()
        news.resolve()
      },
      ended() {
        isEnded = true
        news.resolve()
      },
      failed: fail,
    })
  }
  return (async function* () {
    try {
      for (;;) {
        await news.promise
        news = Promise.withResolvers()
        if (failure) throw failure.error
        yield* pieces.splice(0)
        if (isEnded) return
        asked?.resume()
      }
    } finally {
      signal.removeEventListener('abort', leave)
      asked?.stop()
    }
  })()
}

/** Resolves with the first piece, and stops the request. */
export async function firstPiece<Piece>(
  ask: (answer: Answer<Piece>) => UpstreamRequest,
  signal: AbortSignal,
): Promise<Piece | undefined> {
  for await (const piece of toIterable(ask, signal)) return piece
  return undefined
}
