// Closes the connection after an answer to a client that is still sending ("lingering close"). Closing at once would
// cause a reset, which takes the answer with it (RFC 9112 §9.6), and many clients read nothing before they have sent
// everything. So the gateway closes its half, then reads and discards until the client closes its half, within limits.
import type { IncomingMessage, ServerResponse } from 'node:http'

export type LingerLimits = {
  /**
   * The gateway discards up to this many bytes. Then it stops reading: the client's writes wait, and its reads go on.
   */
  readonly mostBytes: number
  /** How long the client then has to read the answer. */
  readonly fullMs: number
  /** The client sent nothing for this long: it waits for the gateway, or is gone. */
  readonly quietMs: number
  readonly mostMs: number
}

const usual: LingerLimits = { mostBytes: 64 * 1024 * 1024, fullMs: 1000, quietMs: 5000, mostMs: 30_000 }

/** To be called before the answer is written. */
export function lingerAfter(request: IncomingMessage, response: ServerResponse, limits = usual): void {
  const { mostBytes, fullMs, quietMs, mostMs } = limits
  const { socket } = response
  if (!socket) return
  const destroy = () => socket.destroy()
  // Node discards a body that was never read after the answer, without counting it: this read begins it. It also
  // empties a full buffer, with which reading could not begin.
  while (request.read() !== null);
  // Node calls this after an answer with `Connection: close`, once the answer is out.
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

/** For an answer that leaves the request's body unread: the connection cannot be reused. */
export function closeAfter(request: IncomingMessage, response: ServerResponse): void {
  response.shouldKeepAlive = false
  if (!request.complete) lingerAfter(request, response)
}
