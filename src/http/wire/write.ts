// Bytes to a client at the client's pace. One that stops reading stops everything behind it, and is cut off after a while:
// an answer that was handed over but not taken holds a connection just the same.
import type { ServerResponse } from 'node:http'
import type { Clock } from '../../core/clock.ts'
import { cancelled, Failure } from '../../core/failure.ts'

export type WriteOptions = {
  readonly stalledMs: number
  readonly clock: Clock
  /** What was promised with Content-Length; another number of bytes never becomes an answer that looks whole. */
  readonly size?: number | undefined
}

// A clock runs for each of these: a block of 2 MiB in one would ask too much of a slow line.
const sliceBytes = 64 * 1024

/** Writes what comes, and ends when the last byte is on its way. Rejects when the source fails, does not keep its size, or
 * the client is gone; the caller resets the connection. */
export async function writeAll(
  response: ServerResponse,
  pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  options: WriteOptions,
): Promise<number> {
  const { size } = options
  let written = 0
  for await (const piece of pieces) {
    if (size !== undefined && written + piece.byteLength > size) throw notAsPromised(written + piece.byteLength, size)
    for (let at = 0; at < piece.byteLength; at += sliceBytes) {
      if (response.destroyed) throw cancelled()
      if (!response.write(piece.subarray(at, at + sliceBytes))) await taken(response, 'drain', options)
    }
    written += piece.byteLength
  }
  if (size !== undefined && written !== size) throw notAsPromised(written, size)
  if (response.destroyed) throw cancelled()
  response.end()
  if (!response.writableFinished) await taken(response, 'finish', options)
  return written
}

const notAsPromised = (written: number, size: number): Failure =>
  new Failure('internal', `${written} bytes came where ${size} were promised`, { source: 'ours' })

function taken(response: ServerResponse, event: 'drain' | 'finish', { stalledMs, clock }: WriteOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    const settle = (then: () => void) => {
      stop()
      response.off(event, onTaken)
      response.off('close', onClose)
      then()
    }
    const onTaken = () => settle(resolve)
    const onClose = () => settle(() => reject(cancelled()))
    const stop = clock.after(stalledMs, () =>
      settle(() => reject(new Failure('timeout', `the client read nothing for ${stalledMs} ms`, { source: 'client' }))),
    )
    response.on(event, onTaken)
    response.on('close', onClose)
    if (response.destroyed) onClose()
  })
}

/**
 * For an answer that was ended with all its bytes at once: when the client does not take them, it is cut off. Costs
 * nothing when the socket took everything.
 */
export function cutWhenStalled(response: ServerResponse, stalledMs: number): void {
  const { socket } = response
  if (socket !== null && socket.writableLength === 0) return
  // The socket's own timer starts anew with every byte that is taken.
  response.setTimeout(stalledMs, () => reset(response))
}

/** After the first byte there is no other way to say that an answer failed: it must not look whole. */
export function reset(response: ServerResponse): void {
  const { socket } = response
  if (socket && !socket.destroyed) socket.resetAndDestroy()
  response.destroy()
}
