// Which requests came to a server that cidgate opened itself. A program that mounts the gateway opens its own address, and decides
// who reaches it.
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'

const mark = Symbol('of a server of cidgate')

type Own = Socket & { [mark]?: number }

export function markOwn(socket: Own): void {
  socket[mark] = 0
}

export function countAtOwnServer({ socket }: { readonly socket: Own }): void {
  if (socket[mark] !== undefined) socket[mark]++
}

/** How many requests came with this connection. Undefined: another server accepted it. */
export const requestsOf = (socket: Own): number | undefined => socket[mark]

export const isAtOwnServer = ({ socket }: IncomingMessage): boolean => mark in socket
