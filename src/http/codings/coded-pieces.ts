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
      await new Promise<void>((resolve, reject) => {
        coder.write(piece, (error) => (error ? reject(error) : resolve()))
      })
    }
    coder.end()
  } catch (error) {
    coder.destroy(error instanceof Error ? error : new Error(String(error)))
  }
}
