// Compresses a response while it is read.
import { pipeline } from 'node:stream/promises'
import { createGzip } from 'node:zlib'

/** Reads no more pieces than are consumed; when the consumer stops, so does the source. */
export async function* gzipped(pieces: AsyncIterable<Uint8Array>, level: number): AsyncGenerator<Uint8Array> {
  const gzip = createGzip({ level })
  const over = new AbortController()
  const feeding = pipeline(pieces, gzip, { signal: over.signal })
  feeding.catch(() => {}) // the reader gets the error from the stream
  try {
    yield* gzip
  } finally {
    over.abort()
    await feeding.catch(() => {})
  }
}
