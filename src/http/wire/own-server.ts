// Which requests came to a server that cidgate opened itself, and their connection there. A program that mounts the gateway opens its
// own address, and decides who reaches it.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

/** A connection of a server of cidgate, as handlers know it. */
export interface OwnConnection {
  /** This answer tells the client to come later: one that comes at once all the same is throttled. */
  refused(response: ServerResponse): void
}

const own = Symbol('connection of our own')

type Marked = { [own]?: OwnConnection }

export function markOwn(socket: object, connection: OwnConnection): void {
  Object.assign(socket, { [own]: connection })
}

/** Undefined: it came to another server. */
export const connectionOf = ({ socket }: { readonly socket: Socket & Marked }): OwnConnection | undefined => socket[own]

export const isAtOwnServer = (request: IncomingMessage): boolean => connectionOf(request) !== undefined
