// The body of an answer, piece by piece as the socket brought it. The iterator of a stream joins all that waits in it into a new
// buffer first: one more copy of each byte, and memory that only a collection of the whole heap gives back.
import type { Readable } from 'node:stream'

// What may wait for the reader before the socket is left alone.
const mostWaitingBytes = 128 * 1024

/** Reads only while pieces are asked for, and a little ahead. Each piece is the reader's own. Rejects as the body does. */
export function piecesOf(body: Readable): AsyncIterator<Uint8Array> {
  const waiting: Uint8Array[] = []
  let waitingBytes = 0
  let isAttached = false
  let isOver = false
  let failure: { readonly error: unknown } | undefined
  let reader: PromiseWithResolvers<IteratorResult<Uint8Array>> | undefined

  function settle(): void {
    const [piece] = waiting
    if (!reader || !(piece || isOver || failure)) return
    const { resolve, reject } = reader
    reader = undefined
    if (piece) {
      waiting.shift()
      waitingBytes -= piece.byteLength
      resolve({ value: piece, done: false })
    } else if (failure) reject(failure.error)
    else resolve({ value: undefined, done: true })
  }

  function attach(): void {
    isAttached = true
    const fail = (error: unknown) => {
      failure ??= { error }
      settle()
    }
    body.on('data', (piece: Uint8Array) => {
      waiting.push(piece)
      waitingBytes += piece.byteLength
      if (waitingBytes > mostWaitingBytes) body.pause()
      settle()
    })
    body.on('end', () => {
      isOver = true
      settle()
    })
    body.on('error', fail)
    body.on('close', () => {
      if (!isOver) fail(body.errored ?? cutShort())
    })
    if (body.destroyed && !body.readableEnded) fail(body.errored ?? cutShort())
  }

  return {
    next() {
      reader = Promise.withResolvers()
      const { promise } = reader
      if (!isAttached) attach()
      if (waiting.length === 0 && !isOver && !failure) body.resume()
      settle()
      return promise
    },
  }
}

const cutShort = (): Error =>
  Object.assign(new Error('the body ended too soon'), { code: 'ERR_STREAM_PREMATURE_CLOSE' })
