// Writes to a client at the client's pace. A client that stops reading stops the upstreams behind it, and is cut off
// after a while: an answer that it does not take still holds a connection.
import type { ServerResponse } from 'node:http'
import { setImmediate } from 'node:timers/promises'
import type { Clock } from '../../core/clock.ts'
import { cancelled, Failure } from '../../core/failure.ts'
import type { Unread } from '../unread.ts'
import { isAtOwnServer } from './own-server.ts'

export type WriteOptions = {
  readonly stalledMs: number
  readonly clock: Clock
  /** Counts what the answer holds while its client takes nothing for a moment. */
  readonly unread?: Unread | undefined
  /** The Content-Length; with any other number of bytes the answer never looks complete. */
  readonly size?: number | undefined
}

// The stall clock runs for each slice: a slow line could not take a block of 2 MiB in time.
const sliceBytes = 64 * 1024

// Who takes longer than this for a slice reads slowly.
const momentMs = 250

// A source that never waits would keep every other request waiting. Among 200 readers of one file, 1 MiB made gaps of half a second.
const turnBytes = 256 * 1024

/**
 * Writes all pieces and ends the answer. Asks for a piece when the system has taken all of the one before, whose memory may
 * be lent. Rejects when the source fails, does not keep its size, or the client leaves;
 * the caller resets the connection.
 */
export async function writeAll(
  response: ServerResponse,
  pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  options: WriteOptions,
): Promise<number> {
  const { size } = options
  let written = 0
  let sinceTurn = 0
  for await (const piece of pieces) {
    if (size !== undefined && written + piece.byteLength > size) throw notAsPromised(written + piece.byteLength, size)
    for (let at = 0; at < piece.byteLength; at += sliceBytes) {
      if (response.destroyed) throw cancelled()
      const isLast = at + sliceBytes >= piece.byteLength
      const taken = isLast ? writeLast(response, piece.subarray(at)) : undefined
      const isFull = !taken && !response.write(piece.subarray(at, at + sliceBytes))
      // Node holds it back until the end of this turn: the system mostly takes it at once, and then nothing has to be waited for.
      response.socket?.uncork()
      if ((taken || isFull) && response.writableLength > 0) {
        await until(response, taken ?? 'drain', options, piece.buffer)
        sinceTurn = 0
      }
      sinceTurn += Math.min(sliceBytes, piece.byteLength - at)
      if (sinceTurn >= turnBytes) {
        await setImmediate()
        sinceTurn = 0
      }
    }
    written += piece.byteLength
  }
  if (size !== undefined && written !== size) throw notAsPromised(written, size)
  if (response.destroyed) throw cancelled()
  response.end()
  if (!response.writableFinished) await until(response, 'finish', options)
  return written
}

export const notAsPromised = (written: number, size: number): Failure =>
  new Failure('internal', `the body has ${written} bytes, and its Content-Length said ${size}`, { source: 'ours' })

/** Tells its listener, once there is one, that the system has taken the piece and all before it. */
type Taken = { on?: () => void }

function writeLast(response: ServerResponse, piece: Uint8Array): Taken {
  const taken: Taken = {}
  response.write(piece, () => taken.on?.())
  return taken
}

function until(
  response: ServerResponse,
  what: 'drain' | 'finish' | Taken,
  { stalledMs, clock, unread }: WriteOptions,
  held?: ArrayBufferLike,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const settle = (then: () => void) => {
      stop()
      letGo()
      if (typeof what === 'string') response.off(what, onTaken)
      response.off('close', onClose)
      then()
    }
    const onTaken = () => settle(resolve)
    const onClose = () => settle(() => reject(cancelled()))
    const onStalled = () => settle(() => reject(tooSlow(`the client read nothing for ${stalledMs} ms`)))
    const onMoment = () => {
      stop = clock.after(stalledMs - momentMs, onStalled)
      if (held) letGo = unread?.hold(held, onCut) ?? letGo
    }
    const onCut = () => settle(() => reject(tooSlow('the client reads slowly, and others need the memory')))
    let letGo = () => {}
    let stop = stalledMs > momentMs ? clock.after(momentMs, onMoment) : clock.after(stalledMs, onStalled)
    if (typeof what === 'string') response.on(what, onTaken)
    else what.on = onTaken
    response.on('close', onClose)
    if (response.destroyed) onClose()
  })
}

const tooSlow = (why: string): Failure => new Failure('timeout', why, { source: 'client' })

// Up to here a copy costs less than a second piece; measured at 1, 8 and 12 KiB.
const joinedBytes = 4096

/**
 * Ends an answer with its bytes. Node sends a text together with the head, in one piece, and a buffer as a second one; so a small
 * body goes as a text in latin1, which has a character for each byte. True: it was copied, and its memory can be used again. Not
 * where a program mounted the gateway: what it put around `end` may not heed the encoding.
 */
export function endWith(response: ServerResponse, bytes: Uint8Array): boolean {
  const isCopied = bytes.byteLength <= joinedBytes && isAtOwnServer(response.req)
  if (isCopied) response.end(latin1(bytes), 'latin1')
  else response.end(bytes)
  return isCopied
}

const latin1 = ({ buffer, byteOffset, byteLength }: Uint8Array): string =>
  Buffer.from(buffer, byteOffset, byteLength).toString('latin1')

/** Calls `release` when the system has taken the whole answer, which was ended; not at all where it never does. */
export function onceSent(response: ServerResponse, release: () => void): void {
  if (response.writableFinished) release()
  else response.once('finish', release)
}

/**
 * For an answer that was ended with all its bytes: cuts the client off when it does not take them. Costs nothing when
 * the socket took everything, which it tells.
 */
export function cutWhenStalled(response: ServerResponse, stalledMs: number, held?: Held): boolean {
  const { socket } = response
  if (socket !== null && socket.writableLength === 0) return true
  // The socket's timer restarts with every byte that the client takes.
  response.setTimeout(stalledMs, () => reset(response))
  if (held)
    response.once(
      'close',
      held.unread.hold(held.buffer, () => reset(response)),
    )
  return false
}

/** What an answer holds until its client has taken it. */
export type Held = { readonly unread: Unread; readonly buffer: ArrayBufferLike }

/** After the first byte, only a reset can tell the client that the answer failed. */
export function reset(response: ServerResponse): void {
  const { socket } = response
  if (socket && !socket.destroyed) socket.resetAndDestroy()
  response.destroy()
}
