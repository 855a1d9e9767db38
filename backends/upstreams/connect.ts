// Sockets to upstreams: bounded in number, with clocks of our own, and never to an address inside the operator's network
// unless the operator named it. The address is looked at for each connection, so a name that moves is caught too.
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
    // With IPv4 addresses in them, which a gateway of the network would reach: compatible ones, NAT64, Teredo and 6to4.
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

const refusing: LookupFunction = (hostname, options, callback) => {
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

const mostInLine = 1_000
// Questions wait for their places, not for sockets: probes, and sockets that are being closed, have some of their own.
const spareConnections = 8

// A stream fills 20 MB/s at 50 ms of round trip; a paused one holds at most its window in memory, and delays no other stream.
const streamWindowBytes = 1024 * 1024
const connectionWindowBytes = 8 * streamWindowBytes

export type PoolOptions = {
  readonly url: string
  readonly connectMs: number
  readonly connections: number
  readonly allowPrivate: boolean
  /** The url comes from a stranger: a literal address in it is checked as a resolved one is. */
  readonly isFound?: boolean | undefined
  readonly trace?: Trace | undefined
}

export function createAgent({
  url,
  connectMs,
  connections,
  allowPrivate,
  isFound = false,
  trace,
}: PoolOptions): Dispatcher {
  const { hostname } = new URL(url)
  const literal = hostname.replace(/^\[|\]$/g, '')
  const isLiteral = isIP(literal) !== 0
  // No look-up is made for a literal address.
  if (isFound && !allowPrivate && isLiteral && isInside(literal))
    throw new Failure('refused', `${literal} is inside this network`, { source: 'upstream' })
  // An address or localhost in the operator's own words is the operator's wish.
  const isNamed = !isFound && (isLiteral || hostname === 'localhost' || hostname.endsWith('.localhost'))
  const connect = watchingH2(
    connectMs,
    buildConnector({
      timeout: connectMs,
      allowH2: true,
      autoSelectFamily: true,
      ...(isNamed || allowPrivate ? { lookup: local } : { lookup: refusing }),
    }),
  )
  const elsewhere = boundedBy(connections + spareConnections, connect)
  const agent = new Agent({
    connections: connections + spareConnections,
    // A subdomain is for one CID: its connections are not kept, and there are no more of them than of those to the host.
    factory: (origin, options) =>
      new URL(origin).hostname === hostname
        ? new Pool(origin, { ...options, connect })
        : new Pool(origin, { ...options, connect: elsewhere, pipelining: 0, keepAliveTimeout: 1 }),
    pipelining: 1,
    // Clocks of ours bound these; undici's own are coarse.
    headersTimeout: 0,
    bodyTimeout: 0,
    keepAliveTimeout: 30_000,
    keepAliveMaxTimeout: 60_000,
    maxHeaderSize: 16 * 1024,
    allowH2: true,
    // undici 8 checks `h2Options.settings.initialWindowSize` and heeds this one alone.
    initialWindowSize: streamWindowBytes,
    h2Options: { connectionWindowSize: connectionWindowBytes, pingInterval: connectMs },
  })
  return agent.compose(withTrace(trace))
}

/**
 * Ends an HTTP/2 connection that a ping in each `pingMs` got no byte from. The timeouts of questions end their streams alone,
 * so a connection that a firewall dropped would fail every question for the minutes that TCP needs.
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

/** Names below localhost are this machine (RFC 6761), whether or not a resolver knows it. */
const local: LookupFunction = (hostname, options, callback) =>
  dnsLookup(hostname.endsWith('.localhost') ? 'localhost' : hostname, options, callback)

/** At most so many sockets at once, whatever their host; further connects wait. */
function boundedBy(most: number, connect: buildConnector.connector): buildConnector.connector {
  const line: (() => void)[] = []
  let open = 0
  const leave = () => {
    open--
    line.shift()?.()
  }
  return (options, callback) => {
    const go = () => {
      open++
      connect(options, (...outcome) => {
        const [error, socket] = outcome
        if (error) leave()
        else socket.once('close', leave)
        callback(...outcome)
      })
    }
    if (open < most) go()
    else if (line.length < mostInLine) line.push(go)
    else
      callback(
        new Failure('overloaded', 'too many connections to upstreams are waiting; retry', { source: 'ours' }),
        null,
      )
  }
}
