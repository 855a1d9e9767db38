// The peer of an HTTP message, its path and its headers: host, address, site, repeated values, Retry-After,
// percent-encoding, ETags of bytes.

import { createHash } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { isIPv6, type Socket } from 'node:net'

const form =
  /^(?:(?:[\w.~!$&'()*+,;=-]|%[\da-f]{2})*|\[(?:([\da-f:.]+)|v[\da-f]+\.[\w.~!$&'()*+,;=:-]+)\])(?::(\d*))?$/i
const highestPort = 65_535

/** An empty Host is valid: clients send it where the URL has no host (RFC 9112 §3.2). */
export function isHost(text: string): boolean {
  const [host, address, port = ''] = form.exec(text) ?? []
  if (host === undefined || Number(port) > highestPort) return false
  return address === undefined || isIPv6(address)
}

export const isLoopback = (address = ''): boolean => /^(?:::ffff:)?127\.|^::1$/.test(address)

/** Converts an IPv4-mapped IPv6 address to IPv4: ::ffff:1.2.3.4 and ::ffff:102:304 are 1.2.3.4. */
export function plainAddress(address: string): string {
  if (!address.startsWith('::ffff:')) return address
  const mapped = address.slice('::ffff:'.length)
  const [high = Number.NaN, low = Number.NaN, ...more] = mapped.split(':').map((group) => Number.parseInt(group, 16))
  if (mapped.includes('.')) return mapped.includes(':') ? address : mapped
  return more.length > 0 || Number.isNaN(low) ? address : [high >> 8, high & 255, low >> 8, low & 255].join('.')
}

const unixPeerKey = Symbol('whether it came over a unix socket')

/** Overrides the detection for a connection that another process accepted or forwards. */
export function markUnixPeer(socket: object, isUnix: boolean): void {
  Object.assign(socket, { [unixPeerKey]: isUnix })
}

/**
 * True for a unix socket. A missing peer address is not enough: a closed TCP connection has none
 * either.
 */
export function isUnixPeer(socket: Pick<Socket, 'remoteAddress'> & { readonly [unixPeerKey]?: boolean }): boolean {
  const known = socket[unixPeerKey]
  if (known !== undefined) return known
  if (socket.remoteAddress !== undefined) return false
  // Node sets `server` on each accepted socket. A server on a unix socket has a path as its
  // address.
  const server: { address?(): unknown } | undefined = Reflect.get(socket, 'server')
  return typeof server?.address?.() === 'string'
}

/** `same-site` is not trusted: foreign content has origins on subdomains of the gateway's host. */
export function isFromAnotherSite(headers: IncomingHttpHeaders): boolean {
  const site = headers['sec-fetch-site']
  return site === 'cross-site' || site === 'same-site'
}

type Weighted = {
  readonly name: string
  readonly weight: number
  readonly parameters: Readonly<Record<string, string>>
}

/** The members of Accept or Accept-Encoding. An invalid weight counts as 0. */
export function weightedList(header = ''): Weighted[] {
  return header.split(',').map((member) => {
    const [name = '', ...rest] = member.split(';').map((text) => text.trim())
    const parameters = Object.fromEntries(
      rest.map((text) => {
        const [, key = text, value = ''] = /^([^=]*)=(.*)$/.exec(text) ?? []
        return [key.trim().toLowerCase(), value.trim().replace(/^"|"$/g, '')]
      }),
    )
    const { q = '1' } = parameters
    const weight = /^(?:0(?:\.\d*)?|1(?:\.0*)?)$/.test(q) ? Number(q) : 0
    return { name: name.toLowerCase(), weight, parameters }
  })
}

/** Undefined if it is not percent-encoded UTF-8. */
export function decoded(text: string): string | undefined {
  try {
    return decodeURIComponent(text)
  } catch {
    return undefined
  }
}

/** Encodes a path or URL for a header: everything except printable ASCII is percent-encoded. */
export const headerSafe = (url: string): string => url.toWellFormed().replace(/[^\x21-\x7e]/gu, encodeURIComponent)

/** The ETag of bytes without a CID. */
export const hashTag = (bytes: string | Uint8Array, suffix = ''): string =>
  `"${createHash('sha256').update(bytes).digest('base64url').slice(0, 22)}${suffix}"`

/** The first value: Node returns an array for some repeated headers. */
export const oneOf = (value: string | string[] | undefined): string | undefined =>
  Array.isArray(value) ? value[0] : value

const maxMs = 86_400_000

/** Parses seconds or a date to milliseconds from now, capped at a day. */
export function parseRetryAfter(value: string | undefined, now: number): number | undefined {
  if (value === undefined) return undefined
  const ms = /^\d+$/.test(value.trim()) ? Number(value) * 1000 : Date.parse(value) - now
  return Number.isNaN(ms) ? undefined : Math.min(maxMs, Math.max(0, ms))
}
