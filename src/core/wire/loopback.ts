// Detects connections from this machine.
import type { Socket } from 'node:net'

export const isLoopback = (address = ''): boolean => /^(?:::ffff:)?127\.|^::1$/.test(address)

/** Converts an IPv4-mapped IPv6 address to IPv4: ::ffff:1.2.3.4 and ::ffff:102:304 are 1.2.3.4. */
export function plainAddress(address: string): string {
  if (!address.startsWith('::ffff:')) return address
  const mapped = address.slice('::ffff:'.length)
  const [high = Number.NaN, low = Number.NaN, ...more] = mapped.split(':').map((group) => Number.parseInt(group, 16))
  if (mapped.includes('.')) return mapped.includes(':') ? address : mapped
  return more.length > 0 || Number.isNaN(low) ? address : [high >> 8, high & 255, low >> 8, low & 255].join('.')
}

const told = Symbol('whether it came over a unix socket')

/** Overrides the detection for a connection that another process accepted or forwards. */
export function markUnixPeer(socket: Pick<Socket, 'remoteAddress'>, isUnix: boolean): void {
  Object.assign(socket, { [told]: isUnix })
}

/**
 * True for a unix socket. A missing peer address is not enough: a closed TCP connection has none
 * either.
 */
export function isUnixPeer(socket: Pick<Socket, 'remoteAddress'> & { readonly [told]?: boolean }): boolean {
  const known = socket[told]
  if (known !== undefined) return known
  if (socket.remoteAddress !== undefined) return false
  // Node sets `server` on each accepted socket. A server on a unix socket has a path as its
  // address.
  const server: { address?(): unknown } | undefined = Reflect.get(socket, 'server')
  return typeof server?.address?.() === 'string'
}
