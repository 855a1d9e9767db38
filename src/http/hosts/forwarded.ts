// What a proxy in front says of a request: the host and the scheme that it was asked with. Any client can write the same
// headers, and they decide what an answer is; so only those of the operator's own proxies are read.
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { BlockList, isIP, isIPv6 } from 'node:net'
import type { TLSSocket } from 'node:tls'

export interface Forwarded {
  /** With the port, as it is written there. */
  hostOf(request: IncomingMessage): string
  schemeOf(request: IncomingMessage): 'http' | 'https'
  /** Of the client: the last address in the chain that is not one of the operator's proxies. */
  addressOf(request: IncomingMessage): string
  /** Undefined where none of the operator's proxies said one. */
  requestIdOf(request: IncomingMessage): string | undefined
}

/** `proxies`: addresses and ranges, such as 127.0.0.1, 10.0.0.0/8 and fd00::/8. */
export function createForwarded(proxies: readonly string[]): Forwarded {
  const known = new BlockList()
  for (const range of proxies) {
    const [address = '', bits] = range.split('/')
    const family = isIPv6(address) ? 'ipv6' : 'ipv4'
    if (bits === undefined) known.addAddress(address, family)
    else known.addSubnet(address, Number(bits), family)
  }

  const isKnown = (address: string): boolean => known.check(address, isIPv6(address) ? 'ipv6' : 'ipv4')

  function forwardedHeader({ headers, socket }: IncomingMessage, name: keyof IncomingHttpHeaders): string | undefined {
    const value = headers[name]
    const { remoteAddress } = socket
    if (value === undefined || remoteAddress === undefined || proxies.length === 0) return undefined
    if (!isKnown(remoteAddress)) return undefined
    // One behind another add to the list: the first was asked by the client.
    return String(value).split(',')[0]?.trim() || undefined
  }

  return {
    hostOf: (request) => forwardedHeader(request, 'x-forwarded-host') ?? request.headers.host ?? '',
    schemeOf(request) {
      const scheme = forwardedHeader(request, 'x-forwarded-proto')?.toLowerCase()
      if (scheme === 'https' || scheme === 'http') return scheme
      return (request.socket as TLSSocket).encrypted ? 'https' : 'http'
    },
    requestIdOf: (request) => forwardedHeader(request, 'x-request-id'),
    addressOf({ headers, socket: { remoteAddress = '' } }) {
      if (proxies.length === 0 || remoteAddress === '' || !isKnown(remoteAddress)) return remoteAddress
      // Each proxy adds whom it was asked by; what stands before that may be the client's own words.
      const chain = String(headers['x-forwarded-for'] ?? '')
        .split(',')
        .map((one) => withoutPort(one.trim()))
      const client = chain.findLast((one) => isIP(one) === 0 || !isKnown(one))
      return client !== undefined && isIP(client) !== 0 ? client : remoteAddress
    },
  }
}

/** Some proxies add it: 1.2.3.4:5678, [2001:db8::1]:5678. */
const withoutPort = (address: string): string =>
  address.replace(/^\[([^\]]+)\](:\d+)?$/, '$1').replace(/^(\d+\.\d+\.\d+\.\d+):\d+$/, '$1')
