// Compresses a response while it is sent, at the pace of its reader. Requests the next piece only
// after the previous one is compressed, because its buffer may be reused.
import type { Transform } from 'node:stream'

export type CodedPieces = AsyncIterable<Uint8Array> & {
  /** Needed only if reading has not begun: after that, the end of the reader closes it. */
  close(): void
}

/**
 * Calls `onOver` once: after the last byte, or when the source failed or the reader left and
 * nothing more is read.
 */
export function codedPieces(pieces: AsyncIterable<Uint8Array>, coder: Transform, onOver: () => void): CodedPieces {
  let begun = false

  async function* read(): AsyncGenerator<Uint8Array> {
    begun = true
    const feeding = feed(pieces, coder)
    try {
      yield* coder as AsyncIterable<Uint8Array>
    } finally {
      coder.destroy()
      void feeding.then(onOver)
    }
  }

  return {
    [Symbol.asyncIterator]: read,
    close() {
      if (begun) return
      begun = true
      coder.destroy()
      onOver()
    },
  }
}

/** Never rejects: the coder passes the error to its reader. */
async function feed(pieces: AsyncIterable<Uint8Array>, coder: Transform): Promise<void> {
  try {
    for await (const piece of pieces) {
      if (coder.destroyed) return
      await written(coder, piece)
    }
    coder.end()
  } catch (error) {
    coder.destroy(error instanceof Error ? error : new Error(String(error)))
  }
}

/**
 * Resolves when the piece is compressed, or when the coder is closed, after which the callback may
 * never come. zlib discards its output then.
 */
function written(coder: Transform, piece: Uint8Array): Promise<void> {
  return new Promise((resolve, reject) => {
    coder.once('close', resolve)
    coder.write(piece, (error) => {
      coder.off('close', resolve)
      if (error) reject(error)
      else resolve()
    })
  })
}
