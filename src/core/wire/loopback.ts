// Whether the other end of a connection is on this machine.
import type { Socket } from 'node:net'

export const isLoopback = (address = ''): boolean => /^(?:::ffff:)?127\.|^::1$/.test(address)

const told = Symbol('whether it came over a unix socket')

/** Of a connection that another process accepted, or speaks for: what that one knows. */
export function markUnixPeer(socket: Pick<Socket, 'remoteAddress'>, isUnix: boolean): void {
  Object.assign(socket, { [told]: isUnix })
}

/** Whether it came over a unix socket: its peer has no address. Neither has that of a TCP connection that is closed. */
export function isUnixPeer(socket: Pick<Socket, 'remoteAddress'> & { readonly [told]?: boolean }): boolean {
  const known = socket[told]
  if (known !== undefined) return known
  if (socket.remoteAddress !== undefined) return false
  // Node sets it at each socket that a server accepted. The address of a server on a unix socket is a path.
  const server: { address?(): unknown } | undefined = Reflect.get(socket, 'server')
  return typeof server?.address?.() === 'string'
}
