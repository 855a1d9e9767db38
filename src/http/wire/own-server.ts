// Marks requests to servers that cidgate opened itself. A program that mounts the gateway opens its
// own socket, and decides which clients reach it.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

/** A connection to a server of cidgate, as handlers see it. */
export interface OwnConnection {
  /** Notes that this response has a Retry-After: a client that ignores it is throttled. */
  refused(response: ServerResponse): void
}

const own = Symbol('connection of our own')

type Marked = { [own]?: OwnConnection }

export function markOwn(socket: object, connection: OwnConnection): void {
  Object.assign(socket, { [own]: connection })
}

/** Undefined if the request came to another server. */
export const connectionOf = ({ socket }: { readonly socket: Socket & Marked }): OwnConnection | undefined => socket[own]

export const isAtOwnServer = (request: IncomingMessage): boolean => connectionOf(request) !== undefined
