// Which requests came to a server that cidgate opened itself. A program that mounts the gateway opens its own address, and decides
// who reaches it.
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'

const mark = Symbol('of a server of cidgate')

export function markOwn(socket: Socket & { [mark]?: true }): void {
  socket[mark] = true
}

export const isAtOwnServer = ({ socket }: IncomingMessage): boolean => mark in socket
