// The body of a response, chunk by chunk as read from the socket. A stream's own iterator first
// joins all buffered chunks into a new buffer: one more copy of each byte, in memory that only a
// full garbage collection frees.
import type { Readable } from 'node:stream'

// The buffer limit, above which the socket is not read.
const maxWaitingBytes = 128 * 1024

/** Reads on demand and a little ahead. Chunks belong to the reader. Rejects as the body does. */
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
      if (waitingBytes > maxWaitingBytes) body.pause()
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
