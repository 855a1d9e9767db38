// Content for a program without HTTP: the same path, limits, denylists, types and deadlines as a
// GET.

import type { CID } from 'multiformats/cid'
import type { JsonDetector } from '../content/json.ts'
import { type ContentPath, parsePath, type Resolution, refuseRemainder, resolve } from '../content/resolve.ts'
import type { Clock, Soon } from '../core/clock.ts'
import { Failure } from '../core/failure.ts'
import { type BodyOptions, type Content, fileBody, offerOf } from '../http/content/body.ts'
import { pathOfName } from '../http/content/name.ts'
import type { Limits } from '../http/limits.ts'
import type { Mode } from '../http/wire/problem.ts'
import type { LookupRequest, Names } from '../names/names.ts'
import { RequestRecord } from '../observe/requests.ts'
import type { Retrieval } from '../retrieval/retrieval.ts'
import type { Session, VisitNames } from '../retrieval/session.ts'
import { fileType } from '../web/media-types.ts'

export type GetOptions = {
  /** Aborts the read at any time; it then rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined
}

/**
 * Content at a path. Its first bytes are in memory and verified; the rest is fetched as it is read.
 */
export interface Got {
  /**
   * To be read once: `for await (const piece of got.bytes)`. The pieces belong to the reader.
   * Throws a Failure if the rest is unavailable, and ends normally only after the last byte. A
   * reader that reads nothing for `limits.writeTimeout` counts as gone.
   */
  readonly bytes: AsyncIterable<Uint8Array>
  /** The media type, as a GET would have it. */
  readonly type: string
  /** The number of bytes; undefined for the listing of a directory. */
  readonly size: number | undefined
  /** The CID at the end of the path. */
  readonly cid: CID
  /**
   * Releases the content. To be called if `bytes` are not read to their end or left with `break`.
   */
  cancel(): void
}

export type GetDeps = {
  readonly retrieval: Retrieval
  readonly names: Names
  readonly limits: Pick<Limits, 'hold'>
  readonly jsonDetector: JsonDetector
  readonly jsonMaxBytes: number
  readonly mode: Mode
  readonly stalledMs: number
  /** Names, fastest first. */
  readonly tiers: readonly string[]
  readonly clock: Clock
  readonly onEnd: (requestRecord: RequestRecord) => void
  /** Counts the error and converts it to a Failure. */
  readonly failed: (error: unknown, about: string) => Failure
}

// Content up to this size is read completely, so that its session can end before its reader begins.
const maxCompleteBytes = 256 * 1024

export interface LibraryReader {
  get(path: string, options?: GetOptions): Promise<Got>
  /** Aborts all reads. */
  close(): void
}

export function createLibraryReader(deps: GetDeps): LibraryReader {
  const open = new Set<AbortController>()

  async function get(path: string, { signal }: GetOptions = {}): Promise<Got> {
    signal?.throwIfAborted()
    const leave = letIn(deps, path)
    const own = new AbortController()
    open.add(own)
    const requestRecord = new RequestRecord(deps.tiers)
    let session: Session | undefined
    const onAbort = () => own.abort(signal?.reason)
    signal?.addEventListener('abort', onAbort, { once: true })
    const end = () => {
      open.delete(own)
      signal?.removeEventListener('abort', onAbort)
      session?.end()
      leave()
      deps.onEnd(requestRecord)
    }
    const explain = (error: unknown): unknown =>
      own.signal.aborted && error === own.signal.reason && signal?.aborted ? error : deps.failed(error, path)
    try {
      const wants = { signal: own.signal, requestRecord }
      const { content, visitNames } = await contentOf(path, deps.names, wants)
      session = deps.retrieval.session({ ...wants, visitNames })
      const resolution = await resolve(session, content)
      refuseRemainder(resolution)
      const body = await bodyFor(session, resolution, path, {
        ...deps,
        maxCompleteBytes,
        isPartial: false,
        signal: own.signal,
      })
      const { type, size, complete } = body
      const { cid } = resolution.entity
      if (complete) {
        end()
        return { bytes: atOnce(complete), type, size, cid, cancel() {} }
      }
      const pieces = body.read(0, body.size ?? 0)[Symbol.asyncIterator]()
      const first = await pieces.next()
      session.begun()
      const { stalledMs, clock } = deps
      const stream = createStream({ first, pieces, own, stalledMs, clock, onEnd: end, explain })
      return { ...stream, type, size, cid }
    } catch (error) {
      end()
      throw explain(error)
    }
  }

  return {
    get,
    close() {
      for (const one of open) one.abort(new Failure('overloaded', 'this gateway is closed', { source: 'ours' }))
    },
  }
}

/** Yields a copy, because others share these bytes. */
async function* atOnce(complete: Uint8Array): AsyncGenerator<Uint8Array> {
  if (complete.byteLength > 0) yield new Uint8Array(complete)
}

function letIn({ limits, failed }: GetDeps, path: string): () => void {
  try {
    return limits.hold()
  } catch (error) {
    throw failed(error, path)
  }
}

type Located = { readonly content: ContentPath; readonly visitNames?: VisitNames }

export async function contentOf(path: unknown, names: Names, wants: LookupRequest): Promise<Located> {
  if (typeof path === 'string' && path.startsWith('/ipfs/')) return { content: parsePath(path.slice('/ipfs/'.length)) }
  if (typeof path !== 'string' || !path.startsWith('/ipns/')) {
    const what = `${JSON.stringify(path)} is not a content path (expected /ipfs/<cid>[/<path>] or /ipns/<name>[/<path>])`
    throw new Failure('malformed', what, { source: 'client' })
  }
  const { path: content, visitNames } = await pathOfName(path, names, wants)
  return { content, visitNames }
}

/** The body as in `api` mode, except that in `web` mode a file has the media type for browsers. */
export function bodyFor(
  session: Session,
  resolution: Resolution,
  path: string,
  options: BodyOptions & { readonly mode: Mode },
): Soon<Content> {
  const { entity, path: content } = resolution
  if (options.mode === 'web' && entity.kind === 'file')
    return fileBody(session, entity, fileType(content.segments.at(-1) ?? ''), options)
  return offerOf(session, resolution, { path, query: new URLSearchParams(), search: '' }, options).content()
}

type StreamOptions = {
  /**
   * The first chunk, read before the stream is returned, so that missing content rejects the call
   * and not the stream.
   */
  readonly first: IteratorResult<Uint8Array>
  readonly pieces: AsyncIterator<Uint8Array>
  /** Aborts the source of the pieces. */
  readonly own: AbortController
  /** The maximum time between two reads, after which the reader counts as gone. */
  readonly stalledMs: number
  readonly clock: Clock
  /** Called once, at the end. */
  readonly onEnd: () => void
  /** Converts an error for the reader. */
  readonly explain: (error: unknown) => unknown
}

type Stream = { readonly bytes: AsyncIterableIterator<Uint8Array>; cancel(): void }

const over: IteratorReturnResult<undefined> = { done: true, value: undefined }

function createStream({ first, pieces, own, stalledMs, clock, onEnd, explain }: StreamOptions): Stream {
  let held: IteratorResult<Uint8Array> | undefined = first
  let isOver = false
  let why: { readonly error: unknown } | undefined
  let cancelClock = () => {}

  function end(): void {
    if (isOver) return
    isOver = true
    held = undefined
    cancelClock()
    own.signal.removeEventListener('abort', onAbort)
    onEnd()
  }

  function onAbort(): void {
    why ??= { error: own.signal.reason }
    end()
  }

  function wait(): void {
    const late = () => new Failure('timeout', `the program read nothing for ${stalledMs} ms`, { source: 'client' })
    cancelClock = clock.after(stalledMs, () => own.abort(late()))
  }

  async function next(): Promise<IteratorResult<Uint8Array>> {
    cancelClock()
    if (isOver) {
      if (!why) return over
      const { error } = why
      why = undefined
      throw explain(error)
    }
    try {
      const found = held ?? (await pieces.next())
      held = undefined
      if (found.done) {
        end()
        return over
      }
      if (!isOver) wait()
      // A copy, because the piece is a view of a block that others read too.
      return { done: false, value: new Uint8Array(found.value) }
    } catch (error) {
      why = undefined
      end()
      throw explain(error)
    }
  }

  function cancel(): void {
    why = undefined
    end()
    // Not awaited: the pending read ends with its session.
    void pieces.return?.().catch(() => {})
  }

  own.signal.addEventListener('abort', onAbort, { once: true })
  if (own.signal.aborted) onAbort()
  else wait()
  const bytes: AsyncIterableIterator<Uint8Array> = {
    [Symbol.asyncIterator]: () => bytes,
    next,
    async return() {
      cancel()
      return over
    },
  }
  return { bytes, cancel }
}
