// Which requests came to a server that cidgate opened itself. A program that mounts the gateway opens its own address, and decides
// who reaches it.
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'

const mark = Symbol('of a server of cidgate')

/** How many requests came with a connection, and which one of them a request is. */
type Own = Socket & { [mark]?: number }
type Counted = { readonly socket: Own; [mark]?: number }

export function markOwn(socket: Own): void {
  socket[mark] = 0
}

export function countAtOwnServer(request: Counted): void {
  const { socket } = request
  if (socket[mark] !== undefined) request[mark] = ++socket[mark]
}

/** Which request of its connection it is, from 1 on. Undefined: it came to another server. */
export const ordinalOf = (request: Counted): number | undefined => request[mark]

export const isAtOwnServer = ({ socket }: IncomingMessage): boolean => mark in socket
