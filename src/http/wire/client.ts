// The client of a request as trusted proxies report it: address, host, scheme and request id. Any
// client can send X-Forwarded-*, so these headers are read from trusted proxies only.

import { randomBytes } from 'node:crypto'
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { BlockList, isIP, isIPv6 } from 'node:net'
import type { TLSSocket } from 'node:tls'
import { remembered } from '../../core/cache.ts'
import { isHost, isUnixPeer, plainAddress } from '../../core/wire/http.ts'
import type { RequestHead } from './request.ts'

export type Forwarded = ReturnType<typeof createForwarded>

/** The entry of the proxy list for unix sockets, whose peers have no address. */
const unix = 'unix'

/** `proxies`: addresses and ranges, such as 127.0.0.1, 10.0.0.0/8 and fd00::/8, and `unix`. */
export function createForwarded(proxies: readonly string[]) {
  const known = new BlockList()
  const ranges = proxies.filter((one) => one !== unix)
  const isValidHost = remembered(isHost)
  const trustsUnix = ranges.length < proxies.length
  for (const range of ranges) {
    const [address = '', bits] = range.split('/')
    const family = isIPv6(address) ? 'ipv6' : 'ipv4'
    if (bits === undefined) known.addAddress(address, family)
    else known.addSubnet(address, Number(bits), family)
  }

  const isKnown = (address: string): boolean =>
    ranges.length > 0 && address !== '' && known.check(address, isIPv6(address) ? 'ipv6' : 'ipv4')

  const isOfProxy = ({ socket }: RequestHead): boolean =>
    socket.remoteAddress === undefined ? trustsUnix && isUnixPeer(socket) : isKnown(socket.remoteAddress)

  function forwardedHeader(request: RequestHead, name: keyof IncomingHttpHeaders): string | undefined {
    const value = request.headers[name]
    if (value === undefined || proxies.length === 0 || !isOfProxy(request)) return undefined
    // Chained proxies append: the first value is what the client asked for.
    return String(value).split(',')[0]?.trim() || undefined
  }

  return {
    /** With the port, as in the header. An invalid forwarded host is ignored. */
    hostOf(request: RequestHead): string {
      const said = forwardedHeader(request, 'x-forwarded-host')
      return said !== undefined && isValidHost(said) ? said : (request.headers.host ?? '')
    },
    schemeOf(request: IncomingMessage): 'http' | 'https' {
      const scheme = forwardedHeader(request, 'x-forwarded-proto')?.toLowerCase()
      if (scheme === 'https' || scheme === 'http') return scheme
      return (request.socket as TLSSocket).encrypted ? 'https' : 'http'
    },
    /** True if a connection from this address is from a trusted proxy. */
    isProxy: isKnown,
    /**
     * True if the request may be one of many clients on its connection: it has a forwarding header,
     * or came from a proxy or over a unix socket.
     */
    isPassedOn: (request: IncomingMessage): boolean =>
      saysProxy.some((name) => request.headers[name] !== undefined) || isUnixPeer(request.socket) || isOfProxy(request),
    /** Undefined if no trusted proxy sent one. */
    requestIdOf: (request: RequestHead) => forwardedHeader(request, 'x-request-id'),
    /** The client's address: the last one in the chain that is not a trusted proxy. */
    addressOf(request: RequestHead): string {
      const remoteAddress = plainAddress(request.socket.remoteAddress ?? '')
      if (proxies.length === 0 || !isOfProxy(request)) return remoteAddress
      // Each proxy appends its peer's address; the client may have forged everything before.
      const chain = String(request.headers['x-forwarded-for'] ?? '')
        .split(',')
        .map((one) => oneSpelling(withoutPort(one.trim())))
      const client = chain.findLast((one) => isIP(one) === 0 || !isKnown(one))
      return client !== undefined && isIP(client) !== 0 ? client : remoteAddress
    },
  }
}

/** Headers that any proxy adds. A client may send them itself, which gains it nothing. */
const saysProxy = ['x-forwarded-for', 'forwarded', 'via'] as const

/** Some proxies add the port: 1.2.3.4:5678, [2001:db8::1]:5678. */
const withoutPort = (address: string): string =>
  address.replace(/^\[([^\]]+)\](:\d+)?$/, '$1').replace(/^(\d+\.\d+\.\d+\.\d+):\d+$/, '$1')

/** Normalizes the spelling of an address. */
function oneSpelling(address: string): string {
  if (!isIPv6(address)) return address
  const [unscoped = ''] = address.split('%')
  return plainAddress(URL.parse(`http://[${unscoped}]`)?.hostname.slice(1, -1) ?? address)
}

/** An IPv4 address, or the /64 of an IPv6 one, since a client usually controls all of it. */
export function clientOf(address: string): string {
  const plain = plainAddress(address)
  if (!plain.includes(':')) return plain
  const [head = '', tail] = plain.split('%')[0]?.split('::') ?? []
  const before = head.split(':').filter(Boolean)
  const after = tail?.split(':').filter(Boolean) ?? []
  const zeros = tail === undefined ? 0 : Math.max(0, 8 - before.length - after.length)
  return [...before, ...Array(zeros).fill('0'), ...after].slice(0, 4).join(':')
}

export const requestIdHeader = 'X-Request-Id'

export type RequestIds = ReturnType<typeof createRequestIds>

const wellFormed = /^[\w.:+/=-]{1,128}$/

export function createRequestIds(forwarded: Pick<Forwarded, 'requestIdOf'>) {
  // A random prefix for each gateway, followed by a counter.
  const prefix = randomBytes(6).toString('base64url')
  let count = 0
  return {
    /** The id that a trusted proxy sent, or a new one. */
    next(request: RequestHead): string {
      const given = forwarded.requestIdOf(request)
      return given !== undefined && wellFormed.test(given) ? given : `${prefix}-${(count++).toString(36)}`
    },
  }
}
