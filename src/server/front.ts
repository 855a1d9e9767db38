// The front: owns the listening sockets and the connections of one address. It counts, serves from
// the response cache, and passes everything else to `node:http`; nothing else touches a socket.
import { randomUUID } from 'node:crypto'
import { createServer as createHttpServer, type Server as HttpServer, type RequestListener } from 'node:http'
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { type Clock, systemClock } from '../core/clock.ts'
import { markUnixPeer } from '../core/wire/http.ts'
import type { CachedResponse } from '../http/content/response-cache.ts'
import { requestIdOf } from '../http/wire/exchange.ts'
import { problemMessage } from '../http/wire/problem.ts'
import { connectionOf, type ParserRefusal, type RequestHead, requestIdHeader } from '../http/wire/request.ts'
import { Connection, type Lane } from './connection.ts'
import { type Connections, createThrottle, type Throttle } from './connections.ts'

/** The gateway behind a front, which reads it for each request: a reload changes it. */
export type Served = {
  /** Looks up its response cache. */
  hot?: ((request: RequestHead) => CachedResponse | undefined) | undefined
  /**
   * Hosts that a client may CONNECT to. Tunnels end at the front: the gateway never connects
   * anywhere for a client.
   */
  serves?: (host: string) => boolean
  /** Records a request that was refused by the front instead of reaching the handler. */
  refused?: ((refusal: ParserRefusal) => void) | undefined
  /** True if each response closes its connection. */
  isEnding?: boolean
}

export type FrontOptions = {
  readonly served?: Served | undefined
  readonly connections?: Pick<Connections, 'admit' | 'throttle'> | undefined
  /**
   * The number of connections above this process's share: as many close after a response, and
   * reconnect elsewhere.
   */
  readonly beyondShare?: (() => number) | undefined
  /** For headers that are not the client's. */
  readonly moreHeaderBytes?: number
  readonly clock?: Clock | undefined
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
const headerCheckMs = 1000
const headerBytes = 16 * 1024
const lingerMs = 1000

const lateDetail = 'the headers did not arrive in time'
const refusals: Readonly<Record<string, readonly [status: number, detail: string]>> = {
  HPE_HEADER_OVERFLOW: [431, `the request line and headers are longer than ${headerBytes} bytes`],
  HPE_CHUNK_EXTENSIONS_OVERFLOW: [413, 'the chunk extensions are too long'],
  ERR_HTTP_REQUEST_TIMEOUT: [408, lateDetail],
}

const of = (socket: object): Connection | undefined =>
  connectionOf({ socket: socket as Socket }) as Connection | undefined

export class Front {
  /** The listening sockets. */
  readonly servers: Server[] = []
  readonly throttle: Throttle
  keepAliveMs = 0
  headersMs = 0
  readonly #options: FrontOptions
  readonly #served: Served
  readonly #clock: Clock
  readonly #http: HttpServer
  readonly #all = new Set<Connection>()
  readonly #onceEmpty = Promise.withResolvers<void>()
  readonly #inTunnel = new WeakSet<Duplex>()
  #isClosing = false
  #waiting: Connection[] = []
  #chunks = 0
  #surplus = 0
  #stopBalancing = () => {}
  #keepAlive = ''
  #date = { second: Number.NaN, line: '' }

  constructor(handle: RequestListener, options: FrontOptions = {}) {
    this.#options = options
    this.#served = options.served ?? {}
    this.#clock = options.clock ?? systemClock
    this.throttle = options.connections?.throttle ?? createThrottle({ clock: this.#clock })
    this.#http = this.#createHttp(handle)
    if (options.beyondShare) this.#balance()
    this.setTimeouts(this.#http)
    // Starts the checks for connections that send no headers.
    this.#http.emit('listening')
  }

  /** The `node:http` server, with limits for a public address. */
  #createHttp(handle: RequestListener): HttpServer {
    const server = createHttpServer({
      connectionsCheckingInterval: headerCheckMs,
      maxHeaderSize: headerBytes + (this.#options.moreHeaderBytes ?? 0),
      // http/wire/request.ts refuses it, with a response that browsers may read.
      requireHostHeader: false,
    })
    const listen: RequestListener = (request, response) => {
      if (of(request.socket)?.enter(response)) handle(request, response)
    }
    server.on('request', listen)
    // The upload routes send `100 Continue` themselves, after checking size and token; other routes
    // need none.
    server.on('checkContinue', listen)
    server.on('checkExpectation', listen)
    server.on('clientError', this.#onClientError)
    server.on('connect', ({ url = '', socket }, lane, head) => this.#onConnect(url, socket, lane, head))
    // Uploads have their own timeouts: a request may take as long as it makes progress. A client that
    // closed its side gets its response: see `Connection`.
    return Object.assign(server, { requestTimeout: 0, httpAllowHalfOpen: true })
  }

  readonly #onClientError = (error: NodeJS.ErrnoException, lane: Duplex): void => {
    // The parser reports further errors after the response was sent.
    if (lane.writableEnded) return
    if (!lane.writable || error.code === 'ECONNRESET') return void lane.destroy()
    const answer = of(lane)?.answer
    // The response to the preceding request is the last one of its connection.
    if (answer?.req.complete) return of(lane)?.ignore()
    // The error is in the rest of a request whose response is being sent.
    if (answer?.headersSent) return void lane.destroy()
    this.#refuse(lane, ...(refusals[error.code ?? ''] ?? ([400, 'the request is not well-formed HTTP'] as const)))
  }

  #onConnect(host: string, client: Socket, lane: Duplex, head: Buffer): void {
    // A response now would be taken for that of an earlier request.
    if (of(lane)?.answer) return void lane.destroy()
    // A nested tunnel leads nowhere new, and each costs a parser and listeners for the life of the
    // socket.
    if (this.#inTunnel.has(lane)) return this.#refuse(lane, 403, 'CONNECT inside a CONNECT tunnel is not supported')
    this.#inTunnel.add(lane)
    // A socket that left the parser has no other error listener.
    lane.on('error', () => lane.destroy())
    if (!isHere(host, client) && !this.#served.serves?.(host))
      return this.#refuse(lane, 403, 'CONNECT is only allowed to hosts that this gateway serves')
    lane.write('HTTP/1.1 200 Connection Established\r\n\r\n')
    if (head.byteLength > 0) lane.unshift(head)
    of(lane)?.tunnel(head.byteLength > 0)
    this.#http.emit('connection', lane)
  }

  #refuse(lane: Duplex, status: number, why: string): void {
    const { remoteAddress: address = '' } = lane as Socket
    const response = of(lane)?.answer
    // The id in the log, if the request got that far.
    const requestId = (response && requestIdOf(response)) ?? randomUUID()
    lane.end(problemMessage(status, 'malformed', why, requestId))
    endSoon(lane)
    this.#served.refused?.({ status, why, requestId, address, response })
  }

  /** The cached response; undefined if `node:http` has to handle the request. */
  hot(request: RequestHead): CachedResponse | undefined {
    return this.#served.hot?.(request)
  }

  /** Makes `node:http` read from this lane. */
  open(lane: Lane): void {
    this.#http.emit('connection', lane)
  }

  /** The head of a cached response. */
  headOf({ lines, requestId }: CachedResponse, isLast: boolean): string {
    const ending = isLast ? 'Connection: close\r\n' : this.#keepAlive
    return `${lines}${requestIdHeader}: ${requestId}\r\n${this.#dateLine()}${ending}\r\n`
  }

  #dateLine(): string {
    const now = this.#clock.now()
    const second = Math.floor(now / 1000)
    if (second !== this.#date.second) this.#date = { second, line: `Date: ${new Date(now).toUTCString()}\r\n` }
    return this.#date.line
  }

  /** True if the connection closes after the response that is about to be written. */
  isEnding(): boolean {
    return this.#isClosing || this.#served.isEnding === true || (this.#surplus > 0 && this.#surplus-- > 0)
  }

  /** False if other connections go first; `connection.goOn` is called later. */
  mayRead(connection: Connection): boolean {
    this.#chunks++
    if (this.#chunks <= maxChunksPerTick) {
      if (this.#chunks === maxChunksPerTick) setImmediate(this.#goOn)
      return true
    }
    this.#waiting.push(connection)
    return false
  }

  readonly #goOn = (): void => {
    const now = this.#waiting.slice(0, maxChunksPerTick)
    this.#waiting = this.#waiting.slice(maxChunksPerTick)
    if (this.#waiting.length > 0) setImmediate(this.#goOn)
    else this.#chunks = 0
    for (const connection of now) connection.goOn()
  }

  /** Closes a connection that sent nothing in time. */
  onSilent(connection: Connection): void {
    connection.end(problemMessage(408, 'malformed', lateDetail))
    endSoon(connection.socket)
  }

  /** The response to a request was sent. */
  answered(connection: Connection): void {
    if (this.#isClosing && !connection.isBusy) connection.socket.destroy()
  }

  over(connection: Connection): void {
    this.#all.delete(connection)
    if (this.#isClosing && this.#all.size === 0) this.#onceEmpty.resolve()
  }

  #balance(): void {
    this.#surplus = this.#options.beyondShare?.() ?? 0
    this.#stopBalancing = this.#clock.after(balanceIntervalMs, () => this.#balance())
  }

  #accept(socket: Socket, isUnix: boolean): void {
    markUnixPeer(socket, isUnix)
    const connection = new Connection(socket, this)
    this.#all.add(connection)
    this.#options.connections?.admit(connection)
  }

  async #listenOn(listen: ListenAt, isUnix = false): Promise<Server> {
    const server = createServer()
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject)
      server.once('listening', resolve)
      listen(server, backlog)
    })
    this.share(server, isUnix)
    return server
  }

  /** Rejects with the system's error. A function argument makes a socket listen at a path. */
  async listen(at: { readonly host?: string | undefined; readonly port: number } | ListenAt): Promise<void> {
    if (typeof at === 'function') return void (await this.#listenOn(at, true))
    // A socket with a shared port does not detect another program on it; this one does.
    const alone = await this.#listenOn((server) => server.listen({ ...at, backlog }))
    if (listeners === 1) return
    const { port } = alone.address() as AddressInfo
    this.servers.pop()
    await new Promise((resolve) => alone.close(resolve))
    for (let count = 0; count < listeners; count++)
      await this.#listenOn((server) => server.listen({ ...at, port, backlog, reusePort: true }))
  }

  /** Accepts connections from a listening socket, which may be of another process. */
  share(server: Server, isUnix: boolean): void {
    Object.assign(server, { allowHalfOpen: true, noDelay: true })
    server.on('connection', (socket: Socket) => this.#accept(socket, isUnix))
    server.on('error', () => {})
    this.servers.push(server)
  }

  get address(): AddressInfo | string | null {
    return this.servers[0]?.address() ?? null
  }

  /** In milliseconds; 0 means no timeout. */
  setTimeouts({ headersTimeout, keepAliveTimeout: ms }: Pick<HttpServer, 'headersTimeout' | 'keepAliveTimeout'>): void {
    this.#http.headersTimeout = headersTimeout
    this.#http.keepAliveTimeout = ms
    this.#keepAlive = `Connection: keep-alive\r\n${ms > 0 ? `Keep-Alive: timeout=${Math.floor(ms / 1000)}\r\n` : ''}`
    this.headersMs = headersTimeout
    this.keepAliveMs = ms > 0 ? ms + keepAliveBufferMs : 0
  }

  stopAccepting(): void {
    for (const server of this.servers) server.close()
  }

  /**
   * Accepts no more connections, and closes each after its response. Resolves when all have closed.
   */
  async close(): Promise<void> {
    this.#isClosing = true
    this.#stopBalancing()
    this.stopAccepting()
    for (const { isBusy, isAnswered, socket } of this.#all) if (!isBusy && isAnswered) socket.destroy()
    if (this.#all.size > 0) await this.#onceEmpty.promise
    this.#http.close()
  }

  /** Closes all connections. */
  destroy(): void {
    for (const { socket } of this.#all) socket.destroy()
  }

  /** True while a response is in progress. */
  get isBusy(): boolean {
    for (const { isBusy } of this.#all) if (isBusy) return true
    return false
  }
}

/** Closing at once would reset a client that is still sending, and discard the response. */
function endSoon(socket: Duplex): void {
  const timer = setTimeout(() => socket.destroy(), lingerMs)
  timer.unref()
  socket.once('close', () => clearTimeout(timer))
}

/** True for the address that the client is connected to. */
function isHere(host: string, { localAddress = '', localPort }: Socket): boolean {
  const address = localAddress.replace(/^::ffff:/, '')
  return host === `${address.includes(':') ? `[${address}]` : address}:${localPort}`
}
