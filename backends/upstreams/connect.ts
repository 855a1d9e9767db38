// Connections to upstreams: bounded in number, with their own timeouts, and never to an address
// inside the operator's network unless the operator named it. The address is checked for each
// connection, which defeats DNS rebinding.
import { lookup as dnsLookup } from 'node:dns'
import { BlockList, isIP, type LookupFunction } from 'node:net'
import { Agent, buildConnector, type Dispatcher, Pool } from 'undici'
import { Failure } from '../../src/core/failure.ts'
import { type Trace, withTrace } from '../../src/core/wire/trace.ts'

const inside: Pick<BlockList, 'check'> = innerNetworks()

function innerNetworks(): BlockList {
  const networks = new BlockList()
  for (const [net, prefix] of [
    ['0.0.0.0', 8],
    ['10.0.0.0', 8],
    ['100.64.0.0', 10],
    ['127.0.0.0', 8],
    ['169.254.0.0', 16],
    ['172.16.0.0', 12],
    ['192.0.0.0', 24],
    ['192.0.2.0', 24],
    ['192.88.99.0', 24],
    ['192.168.0.0', 16],
    ['198.18.0.0', 15],
    ['198.51.100.0', 24],
    ['203.0.113.0', 24],
    ['224.0.0.0', 4],
    ['240.0.0.0', 4],
  ] as const) {
    networks.addSubnet(net, prefix, 'ipv4')
  }
  for (const [net, prefix] of [
    // Ranges that embed IPv4 addresses, which a router would forward there: compatible addresses,
    // NAT64, Teredo and 6to4.
    ['::', 96],
    ['64:ff9b::', 96],
    ['64:ff9b:1::', 48],
    ['2001::', 32],
    ['2001:db8::', 32],
    ['2002::', 16],
    ['fc00::', 7],
    ['fe80::', 10],
    ['fec0::', 10],
    ['ff00::', 8],
  ] as const) {
    networks.addSubnet(net, prefix, 'ipv6')
  }
  return networks
}

export function isInside(address: string): boolean {
  const family = isIP(address)
  if (family === 4) return inside.check(address, 'ipv4')
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1]
  return mapped ? inside.check(mapped, 'ipv4') : inside.check(address, 'ipv6')
}

const publicOnlyLookup: LookupFunction = (hostname, options, callback) => {
  dnsLookup(hostname, { ...options, all: true }, (error, addresses) => {
    if (error) return callback(error, '')
    const bad = addresses.find(({ address }) => isInside(address))
    if (bad) {
      const why = `${hostname} resolves to ${bad.address}, inside this network; set allowPrivate if that is meant`
      return callback(new Failure('refused', why, { source: 'upstream' }) as unknown as NodeJS.ErrnoException, '')
    }
    const [first] = addresses
    if (options.all) return callback(null, addresses)
    callback(null, first?.address ?? '', first?.family)
  })
}

// The queue of an upstream bounds its requests; probes, and sockets that are being closed, need more
// sockets than that.
const spareConnections = 8

// A stream reaches 20 MB/s at a round trip of 50 ms; a paused one holds at most its window in
// memory, and delays no other stream.
const streamWindowBytes = 1024 * 1024
const connectionWindowBytes = 8 * streamWindowBytes

type PoolOptions = {
  readonly url: string
  readonly connectTimeout: number
  readonly maxConnections: number
  readonly allowPrivate: boolean
  /** The URL comes from a stranger, so a literal address in it is checked like a resolved one. */
  readonly isFound?: boolean | undefined
  readonly trace?: Trace | undefined
}

export function createAgent({
  url,
  connectTimeout,
  maxConnections,
  allowPrivate,
  isFound = false,
  trace,
}: PoolOptions): Dispatcher {
  const { hostname } = new URL(url)
  const literal = hostname.replace(/^\[|\]$/g, '')
  const isLiteral = isIP(literal) !== 0
  // Checked here, because a literal address is never looked up.
  if (isFound && !allowPrivate && isLiteral && isInside(literal))
    throw new Failure('refused', `${literal} is inside this network`, { source: 'upstream' })
  // An address or localhost named by the operator is allowed.
  const isNamed = !isFound && (isLiteral || hostname === 'localhost' || hostname.endsWith('.localhost'))
  const connect = watchingH2(
    connectTimeout,
    buildConnector({
      timeout: connectTimeout,
      allowH2: true,
      autoSelectFamily: true,
      ...(isNamed || allowPrivate ? { lookup: anyAddressLookup } : { lookup: publicOnlyLookup }),
    }),
  )
  const agent = new Agent({
    connections: maxConnections + spareConnections,
    connect,
    // A subdomain is for one CID: its connections are not kept.
    factory: (origin, options) => {
      const isSubdomain = new URL(origin).hostname !== hostname
      return new Pool(origin, isSubdomain ? { ...options, pipelining: 0, keepAliveTimeout: 1 } : options)
    },
    pipelining: 1,
    // Disabled in favor of our timeouts, since undici's timers are coarse.
    headersTimeout: 0,
    bodyTimeout: 0,
    keepAliveTimeout: 30_000,
    allowH2: true,
    // undici 8 validates `h2Options.settings.initialWindowSize`, but uses this one.
    initialWindowSize: streamWindowBytes,
    h2Options: { connectionWindowSize: connectionWindowBytes, pingInterval: connectTimeout },
  })
  return agent.compose(withTrace(trace))
}

/**
 * Closes an HTTP/2 connection on which a ping, one per `pingMs`, got no byte back. Request timeouts
 * only end their streams, so a connection dropped by a firewall would fail every request for the
 * minutes that TCP needs.
 */
const watchingH2 =
  (pingMs: number, connect: buildConnector.connector): buildConnector.connector =>
  (options, callback) =>
    connect(options, (...outcome) => {
      const [, socket] = outcome
      if (socket && 'alpnProtocol' in socket && socket.alpnProtocol === 'h2') {
        let received = -1
        const timer = setInterval(() => {
          if (socket.bytesRead === received)
            socket.destroy(Object.assign(new Error('no answer to a ping'), { code: 'ETIMEDOUT' }))
          received = socket.bytesRead
        }, 2 * pingMs).unref()
        socket.once('close', () => clearInterval(timer))
      }
      callback(...outcome)
    })

/** Names below localhost are this machine (RFC 6761), even if the resolver does not know them. */
const anyAddressLookup: LookupFunction = (hostname, options, callback) =>
  dnsLookup(hostname.endsWith('.localhost') ? 'localhost' : hostname, options, callback)
