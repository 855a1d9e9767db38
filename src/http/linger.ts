// An answer to a client that is still sending. Closing at once would turn what it sends into a reset, which can take the
// answer with it (RFC 9112 §9.6); reading on to the end would be as much work as no limit at all. So: our half is closed,
// a little more is read and thrown away, and then the connection goes.
import type { IncomingMessage, ServerResponse } from 'node:http'

const mostBytes = 1024 * 1024
const mostMs = 5000

/** To be called before the answer is written. */
export function lingerAfter(request: IncomingMessage, response: ServerResponse): void {
  const { socket } = response
  if (!socket) return
  let discarded = 0
  const destroy = () => socket.destroy()
  const onData = (chunk: Buffer) => {
    discarded += chunk.byteLength
    if (discarded > mostBytes) destroy()
  }
  // With `Connection: close` Node ends a connection this way as soon as the answer is out, which may take its time.
  socket.destroySoon = () => {
    socket.end()
    if (request.complete || request.destroyed) return destroy()
    const timer = setTimeout(destroy, mostMs)
    timer.unref()
    socket.once('close', () => clearTimeout(timer))
    request.once('end', destroy)
    request.once('error', destroy)
    request.on('data', onData)
    request.resume()
  }
}

/** For an answer that does not read what the request brings: the connection cannot be used again. */
export function closeAfter(request: IncomingMessage, response: ServerResponse): void {
  response.shouldKeepAlive = false
  if (!request.complete) lingerAfter(request, response)
}
