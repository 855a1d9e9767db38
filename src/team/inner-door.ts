// The door through which one process of a gateway gets requests that another one accepted: a unix socket in a folder of their user.
// Such a request is answered as if its client were connected here: the address is that of the client, and so are limits and log.
import type { IncomingMessage, RequestListener } from 'node:http'
import type { Socket } from 'node:net'

/** What the process that accepted a request says of its client. Sent by processes of this gateway alone: a client's own is dropped. */
export const peerHeader = 'x-cidgate-peer'

export type Peer = {
  readonly remoteAddress?: string | undefined
  readonly remotePort?: number | undefined
  readonly remoteFamily?: string | undefined
  readonly localAddress?: string | undefined
  readonly localPort?: number | undefined
}

const told = ['remoteAddress', 'remotePort', 'remoteFamily', 'localAddress', 'localPort'] as const

export const peerOf = (socket: Socket): string =>
  Buffer.from(JSON.stringify(Object.fromEntries(told.map((name) => [name, socket[name]])))).toString('base64url')

const inner = Symbol('came through the inner door')

export const isInner = ({ socket }: Pick<IncomingMessage, 'socket'>): boolean => inner in socket

/** Requests of one connection come one after another, each with the client of its own. */
export const throughInnerDoor =
  (handle: RequestListener): RequestListener =>
  (request, response) => {
    const said = request.headers[peerHeader]
    if (typeof said !== 'string') return void response.destroy()
    const peer = JSON.parse(Buffer.from(said, 'base64url').toString()) as Peer
    const { socket } = request
    for (const name of told)
      Object.defineProperty(socket, name, { configurable: true, get: () => peer[name] ?? undefined })
    Object.assign(socket, { [inner]: true })
    Reflect.deleteProperty(request.headers, peerHeader)
    const at = request.rawHeaders.findIndex((name, index) => index % 2 === 0 && name === peerHeader)
    if (at >= 0) request.rawHeaders.splice(at, 2)
    handle(request, response)
  }
