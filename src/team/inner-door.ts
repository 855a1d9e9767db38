// The internal socket, over which a process of the gateway receives requests that another one
// accepted: a unix socket in a folder of their user. Such a request is handled as if its client
// were connected here, with the client's address for limits and log.
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { isUnixPeer, markUnixPeer } from '../core/wire/http.ts'

/**
 * The client's connection as the accepting process reports it. Set only by processes of this
 * gateway: a client's own header is dropped.
 */
export const peerHeader = 'x-cidgate-peer'

/** The reply of a process that is full: the accepting process handles the request itself. */
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

/** Requests on one connection are sequential, each with its own client. */
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
 * After a response that leaves its body unread, the sender of the body must close first: a write to
 * a closed unix socket is an error, which would discard the response.
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
