// A listening socket that another process opened: the connections that this process accepts there are those of a server of its own.
import type { Server as HttpServer } from 'node:http'
import type { Server, Socket } from 'node:net'
import { markUnixPeer } from '../../core/wire/loopback.ts'

export type Shared = {
  readonly server: HttpServer
  stopAccepting(): void
  /** No new connection, and the idle ones are closed. */
  close(): void
}

/** `isUnix`: it lies at a path, which the one that opened it knows. */
export function shareListening(listening: Server, server: HttpServer, isUnix: boolean): Shared {
  // It listens by now, with the defaults of node:net, and not with those of node:http.
  Object.assign(listening, { allowHalfOpen: true, noDelay: true })
  listening.on('connection', (socket: Socket) => {
    markUnixPeer(socket, isUnix)
    server.emit('connection', socket)
  })
  listening.on('error', () => {})
  // Begins the looks at connections that send no headers.
  server.emit('listening')
  const stopAccepting = () => void listening.close()
  return {
    server,
    stopAccepting,
    close() {
      if (listening.listening) stopAccepting()
      server.close()
      server.closeIdleConnections()
    },
  }
}
