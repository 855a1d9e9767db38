// The body that thin mode sends on: the client's `data` parts and nothing else, with part headers and a boundary of ours.
// Another service may keep every part (Kubo does), or parse headers and the bytes around the parts differently.
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { PassThrough } from 'node:stream'
import { type Clock, withDeadline } from '../../core/clock.ts'
import type { Failure } from '../../core/failure.ts'

export type Onward = {
  readonly stream: PassThrough
  readonly contentType: string
  /** Yields the bytes once they were sent on. The part before this one must have ended. */
  part(bytes: AsyncIterable<Uint8Array>, signal: AbortSignal, as?: PartInFolder): AsyncGenerator<Uint8Array>
  /** Sends the closing boundary: without it the service has no whole body. */
  end(): void
  hasEnded(): boolean
}

/** `path`: checked. In a folder it is content, and goes on as the client sent it. */
export type PartInFolder = { readonly path: string; readonly isFolder: boolean }

export function createOnward(options: {
  /** A Kubo reads a file name as a part of a URL. */
  readonly isKubo: boolean
  /** How long the service may read nothing before the upload fails. */
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
    async *part(bytes, signal, as) {
      const before = parts++ === 0 ? '' : '\r\n'
      // With a file name every parser takes the part for a file. The client's own name stays private, and each name is
      // different, because Kubo skips a part that seems to lie inside a file it has seen.
      const fileName = as ? written(as.path, options.isKubo) : `data-${parts}`
      const disposition = `Content-Disposition: form-data; name="data"; filename="${fileName}"`
      const type = as?.isFolder ? folderType : 'application/octet-stream'
      await write(`${before}--${boundary}\r\n${disposition}\r\nContent-Type: ${type}\r\n\r\n`, signal)
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

const folderType = 'application/x-directory'

/** It has no control characters and no backslashes. */
const written = (path: string, isKubo: boolean): string =>
  isKubo ? path.split('/').map(encodeURIComponent).join('/') : path.replaceAll('"', '\\"')
