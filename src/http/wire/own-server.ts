// Which requests came to a server that cidgate opened itself. A program that mounts the gateway opens its own address, and decides
// who reaches it.
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'

/** How many requests came with a connection of a server of cidgate. */
const came = Symbol('requests of this connection')
/** Which one of them a request is. */
const place = Symbol('place in its connection')

type Own = Socket & { [came]?: number }
type Counted = { readonly socket: Own; [place]?: number }

export function markOwn(socket: Own): void {
  socket[came] = 0
}

export function countAtOwnServer(request: Counted): void {
  const { socket } = request
  if (socket[came] !== undefined) request[place] = ++socket[came]
}

/** Which request of its connection it is, from 1 on. Undefined: it came to another server. */
export const ordinalOf = (request: Counted): number | undefined => request[place]

export const isAtOwnServer = ({ socket }: IncomingMessage): boolean => came in socket
