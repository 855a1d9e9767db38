// The `node:http` server behind the front, with limits for a public address, and readable responses
// to malformed HTTP.
import { randomUUID } from 'node:crypto'
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
  STATUS_CODES,
} from 'node:http'
import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import type { FailureKind } from '../core/failure.ts'
import { requestIdHeader } from '../http/wire/client.ts'
import { corsHeaders } from '../http/wire/cors.ts'
import { requestIdOf } from '../http/wire/exchange.ts'
import type { ParserRefusal } from '../http/wire/request.ts'

const headerCheckMs = 1000
const headerBytes = 16 * 1024
const lingerMs = 1000

export type HttpServerOptions = {
  /**
   * Hosts that a client may CONNECT to. Tunnels end here: the gateway never connects anywhere for a
   * client.
   */
  readonly tunnels?: (host: string) => boolean
  /** Called for each request that was refused here instead of reaching `handle`. */
  readonly onRefused?: (refusal: ParserRefusal) => void
  /** For headers that are not the client's. */
  readonly moreHeaderBytes?: number
}

/** The owner of the connections. */
export interface Owner {
  /** The response in progress on a connection. */
  answerOf(socket: Duplex): ServerResponse | undefined
  /** Discards everything that arrives on this connection. */
  ignore(socket: Duplex): void
  /** Restarts parsing. `hasMore`: bytes after the last request were read already. */
  tunnel(socket: Duplex, hasMore: boolean): void
}

export function createHttpServer(handle: RequestListener, owner: Owner, options: HttpServerOptions = {}): Server {
  const { tunnels = () => false, onRefused = () => {}, moreHeaderBytes = 0 } = options
  const server = createServer(
    {
      connectionsCheckingInterval: headerCheckMs,
      maxHeaderSize: headerBytes + moreHeaderBytes,
      // http/wire/request.ts refuses it, with a response that browsers may read.
      requireHostHeader: false,
    },
    handle,
  )
  // The upload routes send `100 Continue` themselves, after checking size and token; other routes
  // need none.
  server.on('checkContinue', handle)
  server.on('checkExpectation', handle)
  const refuse = refusing(owner, onRefused)
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Duplex) => {
    // The parser reports further errors after the response was sent.
    if (socket.writableEnded) return
    if (!socket.writable || error.code === 'ECONNRESET') return void socket.destroy()
    const answer = owner.answerOf(socket)
    // The response to the preceding request is the last one of its connection.
    if (answer?.req.complete) return owner.ignore(socket)
    // The error is in the rest of a request whose response is being sent.
    if (answer?.headersSent) return void socket.destroy()
    const [status, detail] = refusals[error.code ?? ''] ?? [400, 'the request is not well-formed HTTP']
    refuse(socket, status, detail)
  })
  const inTunnel = new WeakSet<Duplex>()
  server.on('connect', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    const { url: host = '' } = request
    // A response now would be taken for that of an earlier request.
    if (owner.answerOf(socket)) return void socket.destroy()
    // A nested tunnel leads nowhere new, and each costs a parser and listeners for the life of the
    // socket.
    if (inTunnel.has(socket)) return refuse(socket, 403, 'CONNECT inside a CONNECT tunnel is not supported')
    inTunnel.add(socket)
    // A socket that left the parser has no other error listener.
    socket.on('error', () => socket.destroy())
    if (!isHere(host, request.socket) && !tunnels(host))
      return refuse(socket, 403, 'CONNECT is only allowed to hosts that this gateway serves')
    socket.write('HTTP/1.1 200 Connection Established\r\n\r\n')
    if (head.byteLength > 0) socket.unshift(head)
    owner.tunnel(socket, head.byteLength > 0)
    server.emit('connection', socket)
  })
  // Uploads have their own timeouts: a request may take as long as it makes progress.
  server.requestTimeout = 0
  return server
}

const refusals: Readonly<Record<string, readonly [status: number, detail: string]>> = {
  HPE_HEADER_OVERFLOW: [431, `the request line and headers are longer than ${headerBytes} bytes`],
  HPE_CHUNK_EXTENSIONS_OVERFLOW: [413, 'the chunk extensions are too long'],
  ERR_HTTP_REQUEST_TIMEOUT: [408, lateDetail()],
}

function lateDetail(): string {
  return 'the headers did not arrive in time'
}

/** For a connection on which nothing arrived. */
export const lateText = (): string =>
  problemText(408, { kind: 'malformed', detail: lateDetail(), requestId: randomUUID() })

const refusing =
  (owner: Owner, onRefused: (refusal: ParserRefusal) => void) =>
  (socket: Duplex, status: number, why: string): void => {
    const { remoteAddress: address = '' } = socket as Socket
    const response = owner.answerOf(socket)
    // The id in the log, if the request got that far.
    const requestId = (response && requestIdOf(response)) ?? randomUUID()
    socket.end(problemText(status, { kind: 'malformed', detail: why, requestId }))
    endSoon(socket)
    onRefused({ status, why, requestId, address, response })
  }

/** Closing at once would reset a client that is still sending, and discard the response. */
export function endSoon(socket: Duplex): void {
  const timer = setTimeout(() => socket.destroy(), lingerMs)
  timer.unref()
  socket.once('close', () => clearTimeout(timer))
}

/** True for the address that the client is connected to. */
function isHere(host: string, { localAddress = '', localPort }: Socket): boolean {
  const address = localAddress.replace(/^::ffff:/, '')
  return host === `${address.includes(':') ? `[${address}]` : address}:${localPort}`
}

type Said = { readonly kind: FailureKind; readonly detail: string; readonly requestId: string }

export function problemText(
  status: number,
  { kind, detail, requestId }: Said,
  more: readonly (readonly [string, string])[] = [],
): string {
  const body = JSON.stringify({
    type: `urn:problem-type:cidgate:${kind}`,
    title: STATUS_CODES[status],
    status,
    detail,
    message: detail,
    requestId,
  })
  const headers: readonly (readonly [string, string])[] = [
    ...corsHeaders,
    ['Content-Type', 'application/problem+json'],
    ['Content-Length', String(Buffer.byteLength(body))],
    ['Cache-Control', 'no-store'],
    [requestIdHeader, requestId],
    ['X-Content-Type-Options', 'nosniff'],
    ['Connection', 'close'],
    ...more,
  ]
  const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`).join('')
  return `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines}\r\n${body}`
}
