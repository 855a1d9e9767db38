// Whether the other end of a connection is on this machine.
import type { Socket } from 'node:net'

export const isLoopback = (address = ''): boolean => /^(?:::ffff:)?127\.|^::1$/.test(address)

/** An IPv4 address that is mapped into IPv6 as that IPv4 address: ::ffff:1.2.3.4 and ::ffff:102:304 are 1.2.3.4. */
export function plainAddress(address: string): string {
  if (!address.startsWith('::ffff:')) return address
  const mapped = address.slice('::ffff:'.length)
  const [high = Number.NaN, low = Number.NaN, ...more] = mapped.split(':').map((group) => Number.parseInt(group, 16))
  if (mapped.includes('.')) return mapped.includes(':') ? address : mapped
  return more.length > 0 || Number.isNaN(low) ? address : [high >> 8, high & 255, low >> 8, low & 255].join('.')
}

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
