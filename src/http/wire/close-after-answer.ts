// An answer to a client that is still sending. Closing at once would turn what it sends into a reset, which takes the answer
// with it (RFC 9112 §9.6), and many clients read nothing before they have sent everything. So our half is closed, and what
// comes is read and thrown away until the client has closed its half, within limits.
import type { IncomingMessage, ServerResponse } from 'node:http'

export type LingerLimits = {
  /** Read as fast as it comes. Then nothing more is: the client's writes wait, and its reads go on. */
  readonly mostBytes: number
  /** How long the client then has to read what it was told. */
  readonly fullMs: number
  /** Nothing came for this long: the client waits for us, or is gone. */
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
  // What nobody has begun to read Node itself throws away behind the answer, and counts nothing of it. What is here already
  // goes at once: with a full buffer nothing is begun.
  request.read()
  // With `Connection: close` Node ends a connection this way as soon as the answer is out, which may take its time.
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

/** For an answer that does not read what the request brings: the connection cannot be used again. */
export function closeAfter(request: IncomingMessage, response: ServerResponse): void {
  response.shouldKeepAlive = false
  if (!request.complete) lingerAfter(request, response)
}
