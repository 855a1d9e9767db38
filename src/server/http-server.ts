// A node:http server with the limits that a public address needs, and a readable answer to malformed HTTP.
import { randomUUID } from 'node:crypto'
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { requestIdOf } from '../http/wire/exchange.ts'
import { countAtOwnServer, markOwn } from '../http/wire/own-server.ts'
import type { ParserRefusal } from '../http/wire/refusal.ts'
import type { Connections } from './connections.ts'
import { createPipelines } from './pipelines.ts'
import { problemText } from './problem-text.ts'

const headerCheckMs = 1000
const headerBytes = 16 * 1024
const lingerMs = 1000

export type HttpServerOptions = {
  /** The hosts that a client may CONNECT to. Tunnels end here: the gateway never connects anywhere for a client. */
  readonly tunnels?: (host: string) => boolean
  readonly connections?: Pick<Connections, 'admit'>
  /** Called for each request that was refused here and never came to `handle` as a whole. */
  readonly onRefused?: (refusal: ParserRefusal) => void
  /** For headers that are none of the client's. */
  readonly moreHeaderBytes?: number
}

export function createHttpServer(handle: RequestListener, options: HttpServerOptions = {}): Server {
  const { tunnels = () => false, connections, onRefused = () => {}, moreHeaderBytes = 0 } = options
  const pipelines = createPipelines()
  const handler: RequestListener = (request, response) => {
    countAtOwnServer(request)
    if (pipelines.enter(request, response)) handle(request, response)
  }
  const server = createServer(
    {
      connectionsCheckingInterval: headerCheckMs,
      maxHeaderSize: headerBytes + moreHeaderBytes,
      // request-target.ts refuses it, with an answer that browsers may read.
      requireHostHeader: false,
    },
    handler,
  )
  // The upload routes send `100 Continue` themselves, after checking size and token; other routes need none.
  server.on('checkContinue', handler)
  // The gateway refuses it as any other request: behind an answer that is not out, there is no socket yet to refuse it at.
  server.on('checkExpectation', handler)
  const refuse = refusing(onRefused)
  const answerParser = createParserAnswer(refuse, (socket) => pipelines.lastOf(socket) ?? answering(socket))
  server.on('clientError', answerParser)
  const sockets = new Set<Socket>()
  closeOnlyIdle(server, sockets)
  const inTunnel = new WeakSet<Duplex>()
  function forget(this: Socket): void {
    sockets.delete(this)
  }
  server.on('connection', (socket: Socket) => {
    markOwn(socket)
    sockets.add(socket)
    socket.once('close', forget)
    if (!inTunnel.has(socket)) connections?.admit(socket)
  })
  server.on('connect', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    const { url: host = '' } = request
    // An answer now would be taken for that of an earlier request.
    if (answering(request.socket)) return void socket.destroy()
    // A nested tunnel leads nowhere new, and each costs a parser and listeners for the life of the socket.
    if (inTunnel.has(socket)) return refuse(socket, 403, 'CONNECT inside a CONNECT tunnel is not supported')
    inTunnel.add(socket)
    // A socket that left the parser has no other error listener.
    socket.on('error', () => socket.destroy())
    if (!isHere(host, request.socket) && !tunnels(host))
      return refuse(socket, 403, 'CONNECT is only allowed to hosts that this gateway serves')
    socket.write('HTTP/1.1 200 Connection Established\r\n\r\n')
    if (head.byteLength > 0) socket.unshift(head)
    server.emit('connection', socket)
  })
  // Uploads have their own deadlines: a request may take as long as it moves.
  server.requestTimeout = 0
  return server
}

/**
 * Node takes a connection for idle from the moment when its answer was ended, and its `close` cuts what the client has not read of
 * that. Such a one is left to go on.
 */
function closeOnlyIdle(server: Server, sockets: ReadonlySet<Socket>): void {
  const closeIdle = server.closeIdleConnections.bind(server)
  server.closeIdleConnections = () => {
    const busy = [...sockets].filter(isAnswering)
    for (const socket of busy) socket.destroy = () => socket
    try {
      closeIdle()
    } finally {
      for (const socket of busy) Reflect.deleteProperty(socket, 'destroy')
    }
  }
}

const said: Readonly<Record<string, readonly [status: number, detail: string]>> = {
  HPE_HEADER_OVERFLOW: [431, `the request line and headers are longer than ${headerBytes} bytes`],
  HPE_CHUNK_EXTENSIONS_OVERFLOW: [413, 'the chunk extensions are too long'],
  ERR_HTTP_REQUEST_TIMEOUT: [408, 'the headers did not arrive in time'],
}

/** `lastOf`: the last answer of a connection that is not out. */
function createParserAnswer(refuse: Refuse, lastOf: (socket: Socket) => ServerResponse | undefined) {
  const isToBeTold = new WeakSet<Socket>()

  return (error: NodeJS.ErrnoException, socket: Socket): void => {
    // The parser reports further errors after the answer is out.
    if (socket.writableEnded) return
    if (!socket.writable || error.code === 'ECONNRESET') return void socket.destroy()
    if (isToBeTold.has(socket)) return
    const [status, detail] = said[error.code ?? ''] ?? [400, 'the request is not well-formed HTTP']
    if (!isTaken(socket)) return refuse(socket, status, detail)
    const last = lastOf(socket)
    // What is malformed is the rest of a request whose answer is going out.
    if (!last?.req.complete) return void socket.destroy()
    isToBeTold.add(socket)
    // Behind the answers to the requests before it. One that ends the connection leaves nothing to be told.
    last.once('finish', () => {
      if (socket.writable) refuse(socket, status, detail)
    })
  }
}

type Refuse = (socket: Duplex, status: number, why: string) => void

const refusing =
  (onRefused: (refusal: ParserRefusal) => void): Refuse =>
  (socket, status, why) => {
    const { remoteAddress: address = '', bytesRead } = socket as Socket
    const response = answering(socket as Socket)
    // The id that the request was logged with, where it has come so far.
    const requestId = (response && requestIdOf(response)) ?? randomUUID()
    socket.end(problemText(status, { kind: 'malformed', detail: why, requestId }))
    // Closing at once would reset a client that is still sending, and take the answer with it.
    const timer = setTimeout(() => socket.destroy(), lingerMs)
    timer.unref()
    socket.once('close', () => clearTimeout(timer))
    // A connection that was opened in advance, and asked nothing in time, brought no request.
    if (bytesRead > 0) onRefused({ status, why, requestId, address, response })
  }

/** Whether it is the address that the client is connected to. */
function isHere(host: string, { localAddress = '', localPort }: Socket): boolean {
  const address = localAddress.replace(/^::ffff:/, '')
  return host === `${address.includes(':') ? `[${address}]` : address}:${localPort}`
}

const answering = (socket: Socket): ServerResponse | undefined => Reflect.get(socket, '_httpMessage') ?? undefined

/** Whether a connection is at work for its client: it waits for an answer, or has not read all of it. */
export const isAnswering = (socket: Socket): boolean => answering(socket) !== undefined || socket.writableLength > 0

/** Whether an answer now would be read as part of another answer, or as that of a valid request. */
function isTaken(socket: Socket): boolean {
  const answer = answering(socket)
  return answer !== undefined && (answer.headersSent || answer.req.complete)
}
