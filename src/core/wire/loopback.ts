// Whether the other end of a connection is on this machine.
import type { Socket } from 'node:net'

export const isLoopback = (address = ''): boolean => /^(?:::ffff:)?127\.|^::1$/.test(address)

/** Whether it came over a unix socket: its peer has no address. Neither has that of a TCP connection that is closed. */
export function isUnixPeer(socket: Pick<Socket, 'remoteAddress'>): boolean {
  if (socket.remoteAddress !== undefined) return false
  // Node sets it at each socket that a server accepted. The address of a server on a unix socket is a path.
  const server: { address?(): unknown } | undefined = Reflect.get(socket, 'server')
  return typeof server?.address?.() === 'string'
}
