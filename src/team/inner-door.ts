// The door through which one process of a gateway gets requests that another one accepted: a unix socket in a folder of their user.
// Such a request is answered as if its client were connected here: the address is that of the client, and so are limits and log.
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { isUnixPeer, markUnixPeer } from '../core/wire/loopback.ts'

/** What the process that accepted a request says of its client. Sent by processes of this gateway alone: a client's own is dropped. */
export const peerHeader = 'x-cidgate-peer'

/** Of a process that has no room: whoever accepted the request answers it. */
const declinedHeader = 'x-cidgate-declined'

export const decline = (response: ServerResponse): void => void response.writeHead(503, { [declinedHeader]: '1' }).end()

export const isDeclined = ({ headers }: IncomingMessage): boolean => declinedHeader in headers

const addresses = ['remoteAddress', 'remotePort', 'remoteFamily', 'localAddress', 'localPort'] as const
const versions = ['httpVersion', 'httpVersionMajor', 'httpVersionMinor'] as const
type Peer = Partial<Record<(typeof addresses)[number] | (typeof versions)[number], string | number>> & {
  readonly isUnix?: boolean
}

const encode = (peer: Peer): string => Buffer.from(JSON.stringify(peer)).toString('base64url')
const decode = (text: string): Peer => JSON.parse(Buffer.from(text, 'base64url').toString()) as Peer

export const peerOf = (request: IncomingMessage): string =>
  encode({
    ...(Object.fromEntries([
      ...addresses.map((name) => [name, request.socket[name]]),
      ...versions.map((name) => [name, request[name]]),
    ]) as Peer),
    isUnix: isUnixPeer(request.socket),
  })

const inner = Symbol('came through the inner door')

export const isInner = ({ socket }: Pick<IncomingMessage, 'socket'>): boolean => inner in socket

/** Requests of one connection come one after another, each with the client of its own. */
export const throughInnerDoor =
  (handle: RequestListener): RequestListener =>
  (request, response) => {
    const said = request.headers[peerHeader]
    if (typeof said !== 'string') return void response.destroy()
    const peer = decode(said)
    const { socket } = request
    for (const name of addresses)
      Object.defineProperty(socket, name, { configurable: true, get: () => peer[name] ?? undefined })
    for (const name of versions) Object.assign(request, { [name]: peer[name] ?? request[name] })
    Object.assign(socket, { [inner]: true })
    markUnixPeer(socket, peer.isUnix === true)
    Reflect.deleteProperty(request.headers, peerHeader)
    const at = request.rawHeaders.findIndex((name, index) => index % 2 === 0 && name === peerHeader)
    if (at >= 0) request.rawHeaders.splice(at, 2)
    closeBehindTheOther(request, socket)
    handle(request, response)
  }

const mostMs = 30_000

/**
 * After an answer that leaves its body unread, the process that sends the body closes first: what it writes to a unix socket that is
 * closed already is an error, and takes the answer with it.
 */
function closeBehindTheOther(request: IncomingMessage, socket: Socket): void {
  const leave = () => {
    socket.end()
    const destroy = () => socket.destroy()
    const timer = setTimeout(destroy, mostMs).unref()
    socket.once('end', destroy).once('close', () => clearTimeout(timer))
    request.resume()
    socket.resume()
  }
  Object.defineProperty(socket, 'destroySoon', { configurable: true, get: () => leave, set() {} })
}
