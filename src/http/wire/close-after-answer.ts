// Closes the connection after responding to a client that is still sending ("lingering close").
// Closing at once would cause a reset, which discards the response (RFC 9112 §9.6), and many
// clients read nothing before they have sent everything. So the gateway closes its half, then reads
// and discards until the client closes its half, within limits.
import type { IncomingMessage, ServerResponse } from 'node:http'

export type LingerLimits = {
  /**
   * The gateway discards up to this many bytes. Then it stops reading: the client's writes block,
   * and its reads go on.
   */
  readonly mostBytes: number
  /** The time that the client then has to read the response. */
  readonly fullMs: number
  /** A client that sent nothing for this long is waiting for the gateway, or gone. */
  readonly quietMs: number
  readonly mostMs: number
}

const usual: LingerLimits = { mostBytes: 64 * 1024 * 1024, fullMs: 1000, quietMs: 5000, mostMs: 30_000 }

/** To be called before the response is written. */
export function lingerAfter(request: IncomingMessage, response: ServerResponse, limits = usual): void {
  const { mostBytes, fullMs, quietMs, mostMs } = limits
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
    const timers = [quiet, setTimeout(destroy, mostMs).unref()]
    socket.once('close', () => timers.forEach(clearTimeout))
    request.once('end', destroy)
    request.once('error', destroy)
    request.on('data', (chunk: Buffer) => {
      discarded += chunk.byteLength
      quiet.refresh()
      if (discarded < mostBytes) return
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
