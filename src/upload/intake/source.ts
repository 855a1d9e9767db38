// The bytes of a program on their way to become an upload: with the limits and clocks that a body of HTTP has.
import type { Clock } from '../../core/clock.ts'
import { withDeadline } from '../../core/deadline.ts'
import { Failure } from '../../core/failure.ts'
import { malformed, tooLarge } from '../failures.ts'
import type { Place } from './admission.ts'

export type SourceLimits = {
  readonly maxBytes: number
  /** Nothing came for this long: the source is stuck. */
  readonly idleMs: number
  readonly clock: Clock
  /** Each of them ends it. */
  readonly signals: readonly AbortSignal[]
  /** Is told how it comes in, and may end it. */
  readonly place?: Pick<Place, 'pace' | 'signal'> | undefined
}

/** Throws a Failure for what is too large, empty, stuck, or no bytes; and whatever the source throws. */
export async function* bounded(source: AsyncIterable<Uint8Array>, limits: SourceLimits): AsyncGenerator<Uint8Array> {
  const { maxBytes, idleMs, clock, place } = limits
  const signal = AbortSignal.any([...limits.signals, ...(place ? [place.signal] : [])])
  const late = () => new Failure('timeout', `the upload was ended: nothing came for ${idleMs} ms`, { source: 'client' })
  const pieces = source[Symbol.asyncIterator]()
  let bytes = 0
  try {
    for (;;) {
      place?.pace.turn(true)
      const next = idleMs > 0 ? withDeadline({ ms: idleMs, clock, signal, late }, () => pieces.next()) : pieces.next()
      const { done, value } = await next
      place?.pace.turn(false)
      signal.throwIfAborted()
      if (done) break
      if (!(value instanceof Uint8Array)) throw malformed('a piece of the upload is no Uint8Array')
      bytes += value.byteLength
      place?.pace.received(value.byteLength)
      if (bytes > maxBytes) throw tooLarge(maxBytes)
      if (value.byteLength > 0) yield value
    }
    if (bytes === 0) throw malformed('there is not one byte to be added')
  } finally {
    place?.pace.turn(false)
    // A source that is stuck would not answer.
    void pieces.return?.().catch(() => {})
  }
}
