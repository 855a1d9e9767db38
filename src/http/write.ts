// Bytes to a client at the client's pace. One that stops reading stops everything behind it, and is cut off after a while.
import type { ServerResponse } from 'node:http'
import type { Clock } from '../clock.ts'
import { cancelled, Failure } from '../failure.ts'

export type WriteOptions = { readonly stalledMs: number; readonly clock: Clock }

/** Writes what comes, and ends. Rejects when the source fails or the client is gone; the caller resets the connection. */
export async function writeAll(
  response: ServerResponse,
  pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  options: WriteOptions,
): Promise<number> {
  let written = 0
  for await (const piece of pieces) {
    if (response.destroyed) throw cancelled()
    written += piece.byteLength
    if (!response.write(piece)) await drained(response, options)
  }
  if (response.destroyed) throw cancelled()
  response.end()
  return written
}

function drained(response: ServerResponse, { stalledMs, clock }: WriteOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    const settle = (then: () => void) => {
      stop()
      response.off('drain', onDrain)
      response.off('close', onClose)
      then()
    }
    const onDrain = () => settle(resolve)
    const onClose = () => settle(() => reject(cancelled()))
    const stop = clock.after(stalledMs, () =>
      settle(() => reject(new Failure('timeout', `the client read nothing for ${stalledMs} ms`, { source: 'client' }))),
    )
    response.on('drain', onDrain)
    response.on('close', onClose)
    if (response.destroyed) onClose()
  })
}

/** After the first byte there is no other way to say that an answer failed: it must not look whole. */
export function reset(response: ServerResponse): void {
  const { socket } = response
  if (socket && !socket.destroyed) socket.resetAndDestroy()
  response.destroy()
}
