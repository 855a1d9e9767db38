// A whole gateway on a free port, over a folder of its own, configured as an operator would.
import { mkdtemp, rm } from 'node:fs/promises'
import { Agent, createServer, get as httpGet, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Clock } from '../../src/core/clock.ts'
import type { Log } from '../../src/core/log.ts'
import { createGateway, type Gateway, type GatewayOptions, parseConfig } from '../../src/gateway.ts'
import { onConnection, openFront } from './front.ts'

export type LogLine = {
  readonly level: string
  readonly event: string
  readonly facts: Readonly<Record<string, unknown>>
}

export type TestGateway = {
  readonly url: string
  readonly data: string
  readonly gateway: Gateway
  readonly log: readonly LogLine[]
  /** Sockets of clients that are open now. */
  connections(): number
  /** All that there were. */
  opened(): number
  close(): Promise<void>
}

export type StartOptions = {
  /** Names, urls and anything else an upstream may have. */
  readonly upstreams?: readonly Record<string, unknown>[]
  readonly config?: Record<string, unknown>
  /** A folder that outlives this gateway; without it, one of its own that goes with it. */
  readonly data?: string
  /** By default a free one. */
  readonly port?: number
  readonly clock?: Clock
  /** The variables of OpenTelemetry. */
  readonly tracing?: Readonly<Record<string, string>>
  /** Parts in the hand of the test. */
  readonly own?: Pick<GatewayOptions, 'tiers' | 'upstreams' | 'providers'>
}

/** A fault of the gateway itself, a request that it met with a bug, is a failure of the test: `close` rejects. */
export async function startGateway(options: StartOptions = {}): Promise<TestGateway> {
  const data = options.data ?? (await tempFolder())
  const lines: LogLine[] = []
  const log: Log = (level, event, facts = {}) => lines.push({ level, event, facts })
  const { retrieval, cache, limits, ...more } = (options.config ?? {}) as Record<string, Record<string, unknown>>
  const gateway = await startedGateway(
    parseConfig({
      data,
      admin: false,
      ...more,
      // A test that shares its processor with others is late for no fault of the gateway.
      limits: { maxEventLoopDelay: 0, ...limits },
      retrieval: { probeEvery: 0, upstreams: options.upstreams ?? [], ...retrieval },
      cache: { tiers: [{ use: 'memory', maxBytes: '64MiB' }], ...cache },
    }),
    { log, clock: options.clock, tracing: options.tracing, ...options.own },
  )
  const { front, url, close } = await openFront(gateway.handler, { served: gateway }, options.port)
  front.setTimeouts({ headersTimeout: 60_000, keepAliveTimeout: idleMs })
  let connections = 0
  let opened = 0
  onConnection(front, (socket) => {
    connections++
    opened++
    socket.once('close', () => connections--)
  })
  return {
    url,
    data,
    gateway,
    log: lines,
    connections: () => connections,
    opened: () => opened,
    async close() {
      await close()
      await gateway.close()
      if (options.data === undefined) await rm(data, { recursive: true, force: true })
      const bugs = lines.filter(({ event }) => event === 'request.error')
      if (bugs.length > 0) throw new Error(`the gateway met a bug: ${JSON.stringify(bugs[0]?.facts)}`)
    },
  }
}

export const tempFolder = (): Promise<string> => mkdtemp(join(tmpdir(), 'cidgate-test-'))

export type Fetched = {
  readonly status: number
  readonly headers: IncomingMessage['headers']
  readonly body: Buffer
  readonly ms: number
}

/** A connection that the server closes in the moment that a request goes out on it is reset: a busy machine hits that moment. */
const idleMs = 120_000

const agent = new Agent({ keepAlive: true, maxSockets: 256 })

/** One GET, whole; rejects when the answer is cut. */
export function fetchAll(url: string, headers: Record<string, string> = {}, by = agent): Promise<Fetched> {
  const began = performance.now()
  return new Promise((resolve, reject) => {
    const request = httpGet(url, { agent: by, headers }, (response) => {
      const pieces: Buffer[] = []
      response.on('data', (piece: Buffer) => pieces.push(piece))
      response.on('error', reject)
      response.on('end', () => {
        if (!response.complete) return reject(new Error('the answer was cut'))
        resolve({
          status: response.statusCode ?? 0,
          headers: response.headers,
          body: Buffer.concat(pieces),
          ms: performance.now() - began,
        })
      })
    })
    request.on('error', reject)
  })
}

/** One that runs; rejects with what keeps it from that. */
export async function startedGateway(...of: Parameters<typeof createGateway>): Promise<Gateway> {
  const gateway = createGateway(...of)
  await gateway.start()
  return gateway
}

/** The page of metrics, as an operator reads it. */
export async function metricsOf({ admin }: Gateway): Promise<string> {
  const server = createServer(admin)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const { body } = await fetchAll(`http://127.0.0.1:${port}/metrics`)
  server.closeAllConnections()
  server.close()
  return body.toString()
}

/** `work` for each item, so many at a time. */
export async function inParallel<Item, Out>(
  items: readonly Item[],
  width: number,
  work: (item: Item) => Promise<Out>,
): Promise<Out[]> {
  const results: Out[] = []
  let next = 0
  await Promise.all(
    Array.from({ length: Math.min(width, items.length) }, async () => {
      for (let index = next++; index < items.length; index = next++) results[index] = await work(items[index] as Item)
    }),
  )
  return results
}

export const percentile = (values: readonly number[], share: number): number => {
  const sorted = [...values].sort((one, other) => one - other)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0
}
