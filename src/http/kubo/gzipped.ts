// Compresses an answer while it is read.
import { pipeline } from 'node:stream/promises'
import { createGzip } from 'node:zlib'

/** Asks for no more pieces than are taken. Who stops reading it stops the pieces as well. */
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
