// Writes to a client at the client's pace. A client that stops reading stops the upstreams too, and
// is disconnected after the write timeout, since a pending response occupies a connection. Closes the
// connection after responding to a client that is still sending ("lingering close"): closing at once
// would cause a reset, which discards the response (RFC 9112 §9.6).
import type { IncomingMessage, ServerResponse } from 'node:http'
import { setImmediate } from 'node:timers/promises'
import type { Clock } from '../../core/clock.ts'
import { cancelled, Failure } from '../../core/failure.ts'
import { isAtOwnServer } from './request.ts'

export type WriteOptions = {
  readonly stalledMs: number
  readonly clock: Clock
  /** Counts the memory of the response while its client is not reading. */
  readonly pendingResponses?: PendingResponses | undefined
  /** The Content-Length; a response of any other size never appears complete. */
  readonly size?: number | undefined
}

// The write timeout restarts for each slice: a slow line could not transfer a block of 2 MiB in
// time.
const sliceBytes = 64 * 1024

/** A complete response. */
export type Document = {
  /** Default: 200, or 204 without a body. */
  readonly status?: number
  readonly body?: Uint8Array | string | undefined
  readonly headers: Readonly<Record<string, string>>
}

/** `common`: a flat list of the headers that all documents have. */
export function sendDocument(
  { request, response }: { readonly request: IncomingMessage; readonly response: ServerResponse },
  { body, status = body === undefined ? 204 : 200, headers }: Document,
  { common, stalledMs }: { readonly common: readonly string[]; readonly stalledMs: number },
): void {
  // A list and a string, which Node validates and sends at once: under overload a gateway has no
  // time for more.
  const list = [...common]
  for (const name in headers) list.push(name, headers[name] as string)
  if (status !== 204 && status !== 304) list.push('Content-Length', String(Buffer.byteLength(body ?? '')))
  response.writeHead(status, list)
  response.end(request.method === 'HEAD' ? undefined : body)
  cutWhenStalled(response, stalledMs)
}

// A client that needs longer than this for a slice counts as slow.
const slowMs = 250

// The bytes written before yielding: a source that never waits would block all other requests.
// Among 200 readers of one file, 1 MiB made gaps of half a second.
const yieldBytes = 256 * 1024

/**
 * Writes all pieces and ends the response. Requests a piece only when the kernel has taken the one
 * before, whose buffer may be reused. Rejects if the source fails or has another size, or the
 * client leaves; the caller then resets the connection.
 */
export async function writeAll(
  response: ServerResponse,
  pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  options: WriteOptions,
): Promise<number> {
  const { size } = options
  let written = 0
  let sinceYield = 0
  for await (const piece of pieces) {
    if (size !== undefined && written + piece.byteLength > size) throw notAsPromised(written + piece.byteLength, size)
    for (let at = 0; at < piece.byteLength; at += sliceBytes) {
      if (response.destroyed) throw cancelled()
      const isLast = at + sliceBytes >= piece.byteLength
      const taken = isLast ? writeLast(response, piece.subarray(at)) : undefined
      const isFull = !taken && !response.write(piece.subarray(at, at + sliceBytes))
      // Node corks writes until the end of the tick: uncorked, the kernel mostly takes them at
      // once, and no waiting is needed.
      response.socket?.uncork()
      if ((taken || isFull) && response.writableLength > 0) {
        await until(response, taken ?? 'drain', options, piece.buffer)
        sinceYield = 0
      }
      sinceYield += Math.min(sliceBytes, piece.byteLength - at)
      if (sinceYield >= yieldBytes) {
        await setImmediate()
        sinceYield = 0
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

/** Notifies its listener, once set, that the kernel has taken the piece and all before it. */
type Taken = { on?: () => void }

function writeLast(response: ServerResponse, piece: Uint8Array): Taken {
  const taken: Taken = {}
  response.write(piece, () => taken.on?.())
  return taken
}

function until(
  response: ServerResponse,
  what: 'drain' | 'finish' | Taken,
  { stalledMs, clock, pendingResponses }: WriteOptions,
  held?: ArrayBufferLike,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const settle = (then: () => void) => {
      stop()
      endPending()
      if (typeof what === 'string') response.off(what, onTaken)
      response.off('close', onClose)
      then()
    }
    const onTaken = () => settle(resolve)
    const onClose = () => settle(() => reject(cancelled()))
    const onStalled = () => settle(() => reject(tooSlow(`the client read nothing for ${stalledMs} ms`)))
    const onSlow = () => {
      stop = clock.after(stalledMs - slowMs, onStalled)
      if (held) endPending = pendingResponses?.hold(held, onCut) ?? endPending
    }
    const onCut = () => settle(() => reject(tooSlow('the client reads slowly, and others need the memory')))
    let endPending = () => {}
    let stop = stalledMs > slowMs ? clock.after(slowMs, onSlow) : clock.after(stalledMs, onStalled)
    if (typeof what === 'string') response.on(what, onTaken)
    else what.on = onTaken
    response.on('close', onClose)
    if (response.destroyed) onClose()
  })
}

const tooSlow = (why: string): Failure => new Failure('timeout', why, { source: 'client' })

// Up to this size a copy is cheaper than a second write; measured at 1, 8 and 12 KiB.
const joinedBytes = 4096

/**
 * Ends a response with its bytes. Node sends a string in one write with the head, but a buffer in a
 * second one; so a small body is sent as a latin1 string, which has one character per byte. Returns
 * true if the bytes were copied, so their memory can be reused. Only on cidgate's own server: a
 * program may have wrapped `end` without support for the encoding.
 */
export function endWith(response: ServerResponse, bytes: Uint8Array): boolean {
  const isCopied = bytes.byteLength <= joinedBytes && isAtOwnServer(response.req)
  if (isCopied) response.end(latin1(bytes), 'latin1')
  else response.end(bytes)
  return isCopied
}

const latin1 = ({ buffer, byteOffset, byteLength }: Uint8Array): string =>
  Buffer.from(buffer, byteOffset, byteLength).toString('latin1')

/** Ends a response with its bytes, and calls `release` when they are taken; never if they are not. */
export function endWhole(
  response: ServerResponse,
  bytes: Uint8Array,
  { stalledMs, pendingResponses }: Pick<WriteOptions, 'stalledMs' | 'pendingResponses'>,
  release?: () => void,
): void {
  const isCopied = endWith(response, bytes)
  if (isCopied || response.writableFinished) release?.()
  else if (release) response.once('finish', release)
  if (cutWhenStalled(response, stalledMs) || isCopied || !pendingResponses) return
  const endPending = pendingResponses.hold(bytes.buffer, () => reset(response))
  response.once('close', endPending)
}

/**
 * Starts the write timeout for a response that was ended with all its bytes. Free if the socket
 * took everything at once, as it reports; then returns true.
 */
export function cutWhenStalled(response: ServerResponse, stalledMs: number): boolean {
  const { socket } = response
  if (socket !== null && socket.writableLength === 0) return true
  // The socket's timer restarts with every byte that the client reads.
  response.setTimeout(stalledMs, () => reset(response))
  return false
}

/** After the first byte, only a reset can tell the client that the response failed. */
export function reset(response: ServerResponse): void {
  const { socket } = response
  if (socket && !socket.destroyed) socket.resetAndDestroy()
  response.destroy()
}

export type PendingResponses = ReturnType<typeof createPendingResponses>

type Waiting = { readonly buffer: ArrayBufferLike; readonly giveUp: () => void }

/**
 * Bounds the memory of responses that clients do not read, for all clients together. Also bounded
 * for all: what is read ahead (retrieval/read-ahead.ts) and the response cache. For each client:
 * pending upload bytes (upload/admission.ts), connections (server/connections.ts). A connection has
 * one request at a time (server/connection.ts).
 */
export function createPendingResponses(maxBytes: number) {
  /** In the order in which they began to wait. */
  const waiting = new Set<Waiting>()
  /** Readers of one block share its buffer if the memory tier has it. */
  const buffers = new Map<ArrayBufferLike, { readonly size: number; holders: number }>()
  let bytes = 0
  let cut = 0

  function begin(one: Waiting): void {
    waiting.add(one)
    const shared = buffers.get(one.buffer)
    if (shared) return void shared.holders++
    const size = one.buffer.byteLength
    buffers.set(one.buffer, { size, holders: 1 })
    bytes += size
  }

  function end(one: Waiting): void {
    const held = buffers.get(one.buffer)
    if (!waiting.delete(one) || !held || --held.holders > 0) return
    buffers.delete(one.buffer)
    bytes -= held.size
  }

  return {
    /**
     * Notes that a response waits for its client and holds `buffer`; call the returned function at
     * its end. `giveUp` is called to disconnect the client.
     */
    hold(buffer: ArrayBufferLike, giveUp: () => void): () => void {
      const own = { buffer, giveUp }
      begin(own)
      for (const one of waiting) {
        if (bytes <= maxBytes) break
        end(one)
        cut++
        one.giveUp()
      }
      return () => end(own)
    },
    get bytes() {
      return bytes
    },
    /** Clients that were disconnected because of the limit. */
    get cut() {
      return cut
    },
  }
}

export type LingerLimits = {
  /**
   * The gateway discards up to this many bytes. Then it stops reading: the client's writes block,
   * and its reads go on.
   */
  readonly maxBytes: number
  /** The time that the client then has to read the response. */
  readonly fullMs: number
  /** A client that sent nothing for this long is waiting for the gateway, or gone. */
  readonly quietMs: number
  readonly maxMs: number
}

const defaultLimits: LingerLimits = { maxBytes: 64 * 1024 * 1024, fullMs: 1000, quietMs: 5000, maxMs: 30_000 }

/** To be called before the response is written. */
export function lingerAfter(request: IncomingMessage, response: ServerResponse, limits = defaultLimits): void {
  const { maxBytes, fullMs, quietMs, maxMs } = limits
  const { socket } = response
  if (!socket) return
  const destroy = () => socket.destroy()
  // Node discards an unread body after the response without counting it, so start reading here.
  // This also empties a full buffer, with which reading could not start.
  while (request.read() !== null);
  // Node calls this after a response with `Connection: close` was written.
  socket.destroySoon = () => {
    socket.end()
    if (request.complete || request.destroyed) return destroy()
    let discarded = 0
    const quiet = setTimeout(destroy, quietMs).unref()
    const timers = [quiet, setTimeout(destroy, maxMs).unref()]
    socket.once('close', () => timers.forEach(clearTimeout))
    request.once('end', destroy)
    request.once('error', destroy)
    request.on('data', (chunk: Buffer) => {
      discarded += chunk.byteLength
      quiet.refresh()
      if (discarded < maxBytes) return
      request.pause()
      timers.push(setTimeout(destroy, fullMs).unref())
    })
    request.resume()
  }
}

/** For a response that leaves the request's body unread: the connection cannot be reused. */
export function closeAfter(request: IncomingMessage, response: ServerResponse): void {
  response.shouldKeepAlive = false
  if (!request.complete) lingerAfter(request, response)
}
