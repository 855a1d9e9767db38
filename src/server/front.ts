// The front: owns the listening sockets and the connections of one address. It counts, serves from
// the response cache, and passes everything else to `node:http`; nothing else touches a socket.
import type { Server as HttpServer, RequestListener } from 'node:http'
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import { type Clock, systemClock } from '../core/clock.ts'
import { markUnixPeer } from '../core/wire/http.ts'
import type { CachedResponse } from '../http/content/response-cache.ts'
import { requestIdHeader } from '../http/wire/client.ts'
import { connectionOf, type RequestHead } from '../http/wire/request.ts'
import { Connection, type ConnectionHost, type Lane } from './connection.ts'
import { type Connections, createThrottle } from './connections.ts'
import { createHttpServer, endSoon, type HttpServerOptions, lateText } from './http-server.ts'

/** State of the gateway behind a front, which reads it for each request: a reload changes it. */
export type Served = {
  /** Looks up a request in the response cache. */
  hot?: ((request: RequestHead) => CachedResponse | undefined) | undefined
  /** True if each response closes its connection. */
  isEnding?: boolean
}

export type FrontOptions = HttpServerOptions & {
  readonly served?: Served | undefined
  readonly connections?: Pick<Connections, 'admit' | 'throttle'> | undefined
  /**
   * The number of connections above this process's share: as many close after a response, and
   * reconnect elsewhere.
   */
  readonly beyondShare?: (() => number) | undefined
  readonly clock?: Clock | undefined
}

export interface Front {
  /** Rejects with the system's error. A function argument makes a socket listen at a path. */
  listen(at: { readonly host?: string | undefined; readonly port: number } | ListenAt): Promise<void>
  /** Accepts connections from a listening socket of another process. */
  share(listening: Server, isUnix: boolean): void
  /** The listening sockets. */
  readonly servers: readonly Server[]
  readonly address: AddressInfo | string | null
  /** In milliseconds; 0 means no timeout. */
  setTimeouts(timeouts: { readonly headersTimeout: number; readonly keepAliveTimeout: number }): void
  stopAccepting(): void
  /**
   * Accepts no more connections, and closes each after its response. Resolves when all have closed.
   */
  close(): Promise<void>
  /** Closes all connections. */
  destroy(): void
  /** True while a response is in progress. */
  readonly isBusy: boolean
  /** Called with each new connection. */
  onConnection(listener: (socket: Socket) => void): void
}

/** Makes a socket listen. */
type ListenAt = (server: Server, backlog: number) => void

const backlog = 2048
// libuv accepts one connection of a listening socket per event-loop iteration.
const listeners = process.platform === 'linux' ? 16 : 1
// Chunks handled as they arrive; further ones are queued, and as many are handled at the end of
// each iteration. With a thousand readable sockets, libuv polls up to 48 times before it runs a
// timer.
const maxChunksPerTick = 512
// Node closes an idle connection a little later than it announces.
const keepAliveBufferMs = 1000
const balanceIntervalMs = 250

export function createFront(handle: RequestListener, options: FrontOptions = {}): Front {
  const { served = {}, connections, clock = systemClock } = options
  const { throttle } = connections ?? { throttle: createThrottle({ clock }) }
  const { beyondShare } = options
  const all = new Set<Connection>()
  const servers: Server[] = []
  const listening: ((socket: Socket) => void)[] = []
  const onceEmpty = Promise.withResolvers<void>()
  let isClosing = false
  let waiting: Connection[] = []
  let chunks = 0
  let surplus = 0
  let stopBalancing = () => {}
  let keepAlive = ''
  let date = { second: Number.NaN, line: '' }

  const of = (socket: object): Connection | undefined =>
    connectionOf({ socket: socket as Socket }) as Connection | undefined
  const http: HttpServer = createHttpServer(
    (request, response) => {
      if (of(request.socket)?.enter(response)) handle(request, response)
    },
    {
      answerOf: (socket) => of(socket)?.answer,
      ignore: (socket) => of(socket)?.ignore(),
      tunnel: (socket, hasMore) => of(socket)?.tunnel(hasMore),
    },
    options,
  )

  function goOn(): void {
    const now = waiting.slice(0, maxChunksPerTick)
    waiting = waiting.slice(maxChunksPerTick)
    if (waiting.length > 0) setImmediate(goOn)
    else chunks = 0
    for (const connection of now) connection.goOn()
  }

  function dateLine(): string {
    const now = clock.now()
    const second = Math.floor(now / 1000)
    if (second !== date.second) date = { second, line: `Date: ${new Date(now).toUTCString()}\r\n` }
    return date.line
  }

  const host: ConnectionHost = {
    throttle,
    keepAliveMs: 0,
    headersMs: 0,
    hot: (request) => served.hot?.(request),
    open: (lane: Lane) => void http.emit('connection', lane),
    headOf: ({ lines, requestId }, isLast) =>
      `${lines}${requestIdHeader}: ${requestId}\r\n${dateLine()}${isLast ? 'Connection: close\r\n' : keepAlive}\r\n`,
    isEnding: () => isClosing || served.isEnding === true || (surplus > 0 && surplus-- > 0),
    mayRead(connection) {
      chunks++
      if (chunks <= maxChunksPerTick) {
        if (chunks === maxChunksPerTick) setImmediate(goOn)
        return true
      }
      waiting.push(connection)
      return false
    },
    onSilent(connection) {
      connection.end(lateText())
      endSoon(connection.socket)
    },
    answered(connection) {
      if (isClosing && !connection.isBusy) connection.socket.destroy()
    },
    over(connection) {
      all.delete(connection)
      if (isClosing && all.size === 0) onceEmpty.resolve()
    },
  }

  function accept(socket: Socket, isUnix: boolean): void {
    markUnixPeer(socket, isUnix)
    const connection = new Connection(socket, host)
    all.add(connection)
    connections?.admit(connection)
    for (const listener of listening) listener(socket)
  }

  async function listenOn(listen: ListenAt, isUnix = false): Promise<Server> {
    const server = createServer({ allowHalfOpen: true, noDelay: true })
    server.on('connection', (socket) => accept(socket, isUnix))
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject)
      server.once('listening', resolve)
      listen(server, backlog)
    })
    server.on('error', () => {})
    servers.push(server)
    return server
  }

  async function listenOnAll(at: { readonly host?: string | undefined; readonly port: number }): Promise<void> {
    // A socket with a shared port does not detect another program on it; this one does.
    const alone = await listenOn((server) => server.listen({ ...at, backlog }))
    const { port } = alone.address() as AddressInfo
    servers.pop()
    await new Promise((resolve) => alone.close(resolve))
    for (let count = 0; count < listeners; count++)
      await listenOn((server) => server.listen({ ...at, port, backlog, reusePort: true }))
  }

  function setTimeouts({
    headersTimeout,
    keepAliveTimeout: ms,
  }: {
    readonly headersTimeout: number
    readonly keepAliveTimeout: number
  }): void {
    http.headersTimeout = headersTimeout
    http.keepAliveTimeout = ms
    const timeout = ms > 0 ? `Keep-Alive: timeout=${Math.floor(ms / 1000)}\r\n` : ''
    keepAlive = `Connection: keep-alive\r\n${timeout}`
    Object.assign(host, { headersMs: headersTimeout, keepAliveMs: ms > 0 ? ms + keepAliveBufferMs : 0 })
  }

  function balance(): void {
    surplus = beyondShare?.() ?? 0
    stopBalancing = clock.after(balanceIntervalMs, balance)
  }

  if (beyondShare) balance()
  setTimeouts({ headersTimeout: http.headersTimeout, keepAliveTimeout: http.keepAliveTimeout })
  // Starts the checks for connections that send no headers.
  http.emit('listening')

  function stopAccepting(): void {
    for (const server of servers) server.close()
  }

  return {
    servers,
    async listen(at) {
      if (typeof at === 'function') await listenOn(at, true)
      else if (listeners > 1) await listenOnAll(at)
      else await listenOn((server) => server.listen({ ...at, backlog }))
    },
    share(server, isUnix) {
      // It was created with the defaults of node:net.
      Object.assign(server, { allowHalfOpen: true, noDelay: true })
      server.on('connection', (socket: Socket) => accept(socket, isUnix))
      server.on('error', () => {})
      servers.push(server)
    },
    get address() {
      return servers[0]?.address() ?? null
    },
    setTimeouts,
    stopAccepting,
    async close() {
      isClosing = true
      stopBalancing()
      stopAccepting()
      for (const connection of all) if (!connection.isBusy && connection.isAnswered) connection.socket.destroy()
      if (all.size > 0) await onceEmpty.promise
      http.close()
    },
    destroy() {
      for (const { socket } of all) socket.destroy()
    },
    get isBusy() {
      for (const { isBusy } of all) if (isBusy) return true
      return false
    },
    onConnection: (listener) => void listening.push(listener),
  }
}
