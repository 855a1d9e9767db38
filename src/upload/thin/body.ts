// The body that thin mode sends on: the `data` parts, and nothing else of what the client sent. It is written anew, with
// part headers and a boundary of ours: another service may keep every part there is (Kubo does), or read headers and what
// stands around the parts otherwise than we do.
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { PassThrough } from 'node:stream'
import type { Clock } from '../../core/clock.ts'
import { withDeadline } from '../../core/deadline.ts'
import type { Failure } from '../../core/failure.ts'

export type Onward = {
  readonly stream: PassThrough
  readonly contentType: string
  /** Gives the bytes back once they were sent on. The part before this one must have ended. */
  part(bytes: AsyncIterable<Uint8Array>, signal: AbortSignal): AsyncGenerator<Uint8Array>
  /** What makes it a whole body. */
  end(): void
  hasEnded(): boolean
}

export function createOnward(options: {
  /** How long its reader may take nothing. */
  readonly stuckMs: number
  readonly clock: Clock
  readonly late: () => Failure
}): Onward {
  const boundary = `cidgate-${randomUUID()}`
  const stream = new PassThrough()
  let parts = 0
  let hasEnded = false

  async function write(piece: Uint8Array | string, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    if (stream.write(piece)) return
    const drained = (own: AbortSignal) => once(stream, 'drain', { signal: own })
    await withDeadline({ ...options, ms: options.stuckMs, signal }, drained)
  }

  return {
    stream,
    contentType: `multipart/form-data; boundary=${boundary}`,
    async *part(bytes, signal) {
      const before = parts++ === 0 ? '' : '\r\n'
      // A file name makes it a file to everybody. It is not the client's, which is nobody else's business, and each is
      // another: Kubo passes over what seems to lie in a file it has seen.
      const disposition = `Content-Disposition: form-data; name="data"; filename="data-${parts}"`
      await write(`${before}--${boundary}\r\n${disposition}\r\nContent-Type: application/octet-stream\r\n\r\n`, signal)
      for await (const piece of bytes) {
        await write(piece, signal)
        yield piece
      }
    },
    end() {
      hasEnded = true
      stream.end(`\r\n--${boundary}--\r\n`)
    },
    hasEnded: () => hasEnded,
  }
}
