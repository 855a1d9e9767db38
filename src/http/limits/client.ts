// Identifies the client of a request for limits.
import { plainAddress } from '../../core/wire/http.ts'

/** An IPv4 address, or the /64 of an IPv6 one, since a client usually controls all of it. */
export function clientOf(address: string): string {
  const plain = plainAddress(address)
  if (!plain.includes(':')) return plain
  const [head = '', tail] = plain.split('%')[0]?.split('::') ?? []
  const groups = head.split(':').filter(Boolean)
  if (tail === undefined) return groups.slice(0, 4).join(':')
  const behind = tail.split(':').filter(Boolean)
  const whole = [
    ...groups,
    ...Array.from({ length: Math.max(0, 8 - groups.length - behind.length) }, () => '0'),
    ...behind,
  ]
  return whole.slice(0, 4).join(':')
}
