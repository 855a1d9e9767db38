// Turns a multiaddr that a stranger published into the origin of an HTTP gateway, or refuses it.
// Host names are checked again when the connection is made: only then their IP addresses are known.
import { isIP } from 'node:net'

export type AddressRules = {
  /**
   * Permits loopback and private addresses; a literal one with plain HTTP and on any port, as in
   * Kubo.
   */
  readonly allowPrivate: boolean
  /** Permits plain HTTP, on port 80. */
  readonly allowHttp: boolean
  readonly ports: 'any' | readonly number[]
  /** True for an IP address inside the operator's network. */
  readonly isInside: (address: string) => boolean
}

export type GatewayAddress = { readonly origin: string } | { readonly refused: string }

type Parts = { host: string; port: number | undefined; isTls: boolean }

const refused = (why: string): GatewayAddress => ({ refused: why })

export function gatewayAddress(text: string, rules: AddressRules): GatewayAddress {
  const parts = partsOf(text)
  if (typeof parts === 'string') return refused(parts)
  const { host, port, isTls } = parts
  const isBare = isIP(host) === 6
  const url = URL.parse(
    `${isTls ? 'https' : 'http'}://${isBare ? `[${host}]` : host}${port === undefined ? '' : `:${port}`}`,
  )
  if (url?.pathname !== '/' || url.username !== '' || url.hostname === '') return refused('no host name')
  // URL parsing turns names like 0x7f000001 and 127.1 into IP addresses: the parsed host is
  // checked.
  const literal = url.hostname.replace(/^\[|\]$/g, '')
  const isPrivate = isIP(literal) !== 0 && rules.isInside(literal)
  if (isPrivate && !rules.allowPrivate) return refused('private address')
  if (isPrivate) return { origin: url.origin }
  if (!isTls && !rules.allowHttp) return refused('plain HTTP')
  const at = url.port === '' ? (isTls ? 443 : 80) : Number(url.port)
  const isPort = rules.ports === 'any' || rules.ports.includes(at) || (!isTls && at === 80)
  return isPort ? { origin: url.origin } : refused(`port ${at}`)
}

const names: ReadonlySet<string> = new Set(['dns', 'dns4', 'dns6'])
const hostName = /^[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?$/i

/** Returns host, port and TLS, or as text the reason why the address is not a gateway's. */
function partsOf(text: string): Parts | string {
  const [empty, kind = '', host = '', ...rest] = text.split('/')
  if (empty !== '') return 'no multiaddr'
  if (kind === 'dnsaddr') return 'dnsaddr'
  const family = isIP(host)
  const isHost =
    (names.has(kind) && host.length <= 253 && hostName.test(host)) ||
    (kind === 'ip4' && family === 4) ||
    (kind === 'ip6' && family === 6 && !host.includes('%'))
  if (!isHost) return 'no host'
  let port: number | undefined
  if (rest[0] === 'tcp') {
    if (!/^\d{1,5}$/.test(rest[1] ?? '') || Number(rest[1]) > 65_535 || Number(rest[1]) === 0) return 'no port'
    port = Number(rest[1])
    rest.splice(0, 2)
  }
  const found = schemeOf(rest, host, port)
  return found ?? 'no HTTP'
}

function schemeOf(rest: string[], host: string, port: number | undefined): Parts | undefined {
  const first = rest.shift()
  // Some publishers write /tcp/443/http for HTTPS.
  if (first === 'http') return ends(rest) ? { host, port, isTls: port === 443 } : undefined
  if (first === 'https') return ends(rest) ? { host, port, isTls: true } : undefined
  if (first !== 'tls') return undefined
  let name = host
  if (rest[0] === 'sni') {
    if (!hostName.test(rest[1] ?? '')) return undefined
    name = rest[1] as string
    rest.splice(0, 2)
  }
  return rest.shift() === 'http' && ends(rest) ? { host: name, port, isTls: true } : undefined
}

/** Ignores a path, as Kubo and helia do (the gateway is at the root), and the peer ID. */
function ends(rest: readonly string[]): boolean {
  const [kind, value, ...more] = rest
  if (kind === undefined) return true
  if ((kind === 'http-path' || kind === 'p2p') && value) return ends(more)
  return false
}
