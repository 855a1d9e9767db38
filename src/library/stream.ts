// Streams content to a program at the pace of its reader, and releases it when the reader has left.
import type { Clock } from '../core/clock.ts'
import { Failure } from '../core/failure.ts'

export type StreamOptions = {
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

export type Stream = { readonly bytes: AsyncIterableIterator<Uint8Array>; cancel(): void }

const over: IteratorReturnResult<undefined> = { done: true, value: undefined }

export function createStream({ first, pieces, own, stalledMs, clock, onEnd, explain }: StreamOptions): Stream {
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
