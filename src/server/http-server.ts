// A node:http server with the limits a public address needs, and an answer, readable by everybody, to what is no HTTP.
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
import { corsHeaders } from '../http/wire/cors.ts'
import { requestIdHeader } from '../http/wire/request-id.ts'

// A pipelining client can put thousands of requests into one socket at once; this bounds what one socket may cost.
const requestsPerSocket = 1000
const headerCheckMs = 1000
const headerBytes = 16 * 1024
const lingerMs = 1000

type Numbered = ServerResponse & { readonly maxRequestsOnConnectionReached?: boolean }

/** `tunnels`: the hosts that a client may CONNECT to. They end here: nothing is ever dialled for a client. */
export function createHttpServer(handle: RequestListener, tunnels: (host: string) => boolean = () => false): Server {
  const handler: RequestListener = (request, response) => {
    // Node says close with the last answer of a socket, and leaves the closing to the client.
    if ((response as Numbered).maxRequestsOnConnectionReached) response.shouldKeepAlive = false
    handle(request, response)
  }
  const server = createServer(
    {
      connectionsCheckingInterval: headerCheckMs,
      maxHeaderSize: headerBytes,
      // Refused with the rest of the request line (target.ts), in words that a browser may read.
      requireHostHeader: false,
    },
    handler,
  )
  // Whoever takes uploads says 100 itself, after looking at their size and token; nobody else needs to.
  server.on('checkContinue', handler)
  server.on('checkExpectation', (_request: IncomingMessage, response: ServerResponse) =>
    refuse(response.socket as Socket, 417, 'the only Expect that is supported is 100-continue'),
  )
  server.on('clientError', answerParser)
  const inTunnel = new WeakSet<Duplex>()
  server.on('connect', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    const { url: host = '' } = request
    // Said now, it would be taken for the answer to what was asked before.
    if (answering(request.socket)) return void socket.destroy()
    // One in another leads nowhere else, and each would cost a parser and its listeners for as long as the socket lives.
    if (inTunnel.has(socket)) return refuse(socket, 403, 'CONNECT inside a CONNECT tunnel is not supported')
    inTunnel.add(socket)
    // Nobody listens to a socket that left the parser.
    socket.on('error', () => socket.destroy())
    if (!isHere(host, request.socket) && !tunnels(host))
      return refuse(socket, 403, 'CONNECT is only allowed to hosts that this gateway serves')
    socket.write('HTTP/1.1 200 Connection Established\r\n\r\n')
    if (head.byteLength > 0) socket.unshift(head)
    server.emit('connection', socket)
  })
  server.maxRequestsPerSocket = requestsPerSocket
  // Uploads have clocks of their own: a whole request may take as long as it moves.
  server.requestTimeout = 0
  return server
}

const said: Readonly<Record<string, readonly [status: number, detail: string]>> = {
  HPE_HEADER_OVERFLOW: [431, `the request line and headers are longer than ${headerBytes} bytes`],
  HPE_CHUNK_EXTENSIONS_OVERFLOW: [413, 'the chunk extensions are too long'],
  ERR_HTTP_REQUEST_TIMEOUT: [408, 'the headers did not arrive in time'],
}

function answerParser(error: NodeJS.ErrnoException, socket: Socket): void {
  // The parser goes on to complain about what still comes in: the answer is out already.
  if (socket.writableEnded) return
  if (!socket.writable || error.code === 'ECONNRESET' || isTaken(socket)) return void socket.destroy()
  const [status, detail] = said[error.code ?? ''] ?? [400, 'the request is not well-formed HTTP']
  refuse(socket, status, detail)
}

function refuse(socket: Duplex, status: number, detail: string): void {
  const requestId = randomUUID()
  const body = JSON.stringify({
    type: 'urn:problem-type:cidgate:malformed',
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
  ]
  const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`).join('')
  socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines}\r\n${body}`)
  // Closed at once, what the client is still sending would reset the connection and take the answer with it.
  const timer = setTimeout(() => socket.destroy(), lingerMs)
  timer.unref()
  socket.once('close', () => clearTimeout(timer))
}

/** Whether it is the very address that the client is connected to. */
function isHere(host: string, { localAddress = '', localPort }: Socket): boolean {
  const address = localAddress.replace(/^::ffff:/, '')
  return host === `${address.includes(':') ? `[${address}]` : address}:${localPort}`
}

type Answering = { readonly headersSent: boolean; readonly req?: IncomingMessage }

const answering = (socket: Socket): Answering | undefined => Reflect.get(socket, '_httpMessage') ?? undefined

/** Whether what is said now would be read as part of another answer, or as that of a request that was in order. */
function isTaken(socket: Socket): boolean {
  const answer = answering(socket)
  return answer !== undefined && (answer.headersSent || answer.req?.complete !== false)
}
