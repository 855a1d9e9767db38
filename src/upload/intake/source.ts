// Reads the bytes of an upload that a program makes, with the limits and time limits that an HTTP body has.
import { type Clock, withDeadline } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'
import { malformed, tooLarge } from '../failures.ts'
import type { UploadSlot } from './admission.ts'

export type SourceLimits = {
  readonly maxBytes: number
  /** After this long without a byte the source counts as stuck. */
  readonly idleMs: number
  readonly clock: Clock
  /** Any of them ends the upload. */
  readonly signals: readonly AbortSignal[]
  /** Measures how fast the upload arrives, and may end it. */
  readonly slot?: Pick<UploadSlot, 'rate' | 'signal'> | undefined
}

/** Throws a Failure when the source is too large, empty, stuck or yields no bytes; passes on the source's own errors. */
export async function* bounded(source: AsyncIterable<Uint8Array>, limits: SourceLimits): AsyncGenerator<Uint8Array> {
  const { maxBytes, idleMs, clock, slot } = limits
  const signal = AbortSignal.any([...limits.signals, ...(slot ? [slot.signal] : [])])
  const late = () => new Failure('timeout', `upload timed out: no data for ${idleMs} ms`, { source: 'client' })
  const pieces = source[Symbol.asyncIterator]()
  let bytes = 0
  try {
    for (;;) {
      slot?.rate.turn(true)
      const next = idleMs > 0 ? withDeadline({ ms: idleMs, clock, signal, late }, () => pieces.next()) : pieces.next()
      const { done, value } = await next
      slot?.rate.turn(false)
      signal.throwIfAborted()
      if (done) break
      if (!(value instanceof Uint8Array)) throw malformed('a chunk of the upload is not a Uint8Array')
      bytes += value.byteLength
      slot?.rate.received(value.byteLength)
      if (bytes > maxBytes) throw tooLarge(maxBytes)
      if (value.byteLength > 0) yield value
    }
    if (bytes === 0) throw malformed('the upload is empty')
  } finally {
    slot?.rate.turn(false)
    // Not awaited: a stuck source would never settle it.
    void pieces.return?.().catch(() => {})
  }
}
