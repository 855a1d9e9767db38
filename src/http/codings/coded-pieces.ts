// Compresses an answer while it is sent, at the pace of its reader: a piece is asked for when the one before is compressed,
// since its memory may be lent.
import type { Transform } from 'node:stream'

export type CodedPieces = AsyncIterable<Uint8Array> & {
  /** For a reader that may not have begun: one that began ends it by itself. */
  close(): void
}

/** Calls `onOver` once: when the last byte was read, or the source failed or the reader left and nothing of it is read any more. */
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

/** Never rejects: the coder tells its reader what failed. */
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
 * Resolves when the piece is compressed, or the coder is closed: one that waits for its reader then says nothing more of the piece. What
 * zlib may still read of it, it throws away.
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
