// Forwards a request to another process of this gateway over its internal socket, and the response to
// the client: byte for byte, at the client's pace, and cut off where it was cut off. The other process
// handles it as if the client were connected there, with the client's address for limits and log.
import {
  Agent,
  request as ask,
  type ClientRequest,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  type RequestListener,
  type ServerResponse,
} from 'node:http'
import type { Socket } from 'node:net'
import { isUnixPeer, markUnixPeer } from '../core/wire/http.ts'
import { hasBody } from '../http/wire/request.ts'
import { closeAfter, reset } from '../http/wire/write.ts'

// Headers of this hop only, which Node writes anew. Other headers named in `Connection` are
// forwarded: the other process responds as if the client were connected to it.
const ofTheHop: ReadonlySet<string> = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'transfer-encoding',
  'trailer',
  'upgrade',
  'te',
])
// Bounds idle connections: each takes a descriptor in both processes.
const maxIdle = 64

/** `firstByteTimeoutMs`: the first-byte timeout. Undefined means no timeout. */
export function createForwarder(firstByteTimeoutMs?: () => number) {
  const agent = new Agent({ keepAlive: true, maxFreeSockets: maxIdle })
  // A request with a body cannot be retried, so it never uses a connection that the other process
  // may be closing.
  const once = new Agent({ keepAlive: false })
  const waiting = new Set<(why: string) => void>()

  /**
   * `otherwise` is called if the other process is unreachable, full, too late with its response, or
   * given up. The body may be consumed by then.
   */
  const forward = (
    request: IncomingMessage,
    response: ServerResponse,
    socketPath: string,
    otherwise: (error: Error) => void,
  ): void => {
    // A closed socket has lost its address, and the other process would take the client for local.
    if (request.socket.destroyed) return
    const isWhole = !hasBody(request)
    let asked: ClientRequest
    try {
      asked = ask({
        socketPath,
        agent: isWhole ? agent : once,
        method: request.method,
        path: request.url,
        headers: headersFor(request) as unknown as OutgoingHttpHeaders,
        setHost: false,
      })
    } catch (error) {
      // Headers that Node's server accepts may be refused by its client.
      return otherwise(error as Error)
    }
    let isOver = false
    const stopWaiting = waitFor(asked)
    const onClose = () => asked.destroy()
    response.once('close', onClose)

    asked.once('error', (error) => {
      stopWaiting()
      if (isOver) return
      isOver = true
      response.off('close', onClose)
      if (response.destroyed) return
      if (response.headersSent) reset(response)
      else otherwise(error)
    })
    asked.on('continue', () => response.writeContinue())
    asked.once('response', (answer) => {
      stopWaiting()
      if (response.destroyed) return void answer.destroy()
      if (isDeclined(answer)) {
        isOver = true
        response.off('close', onClose)
        answer.resume()
        return otherwise(new Error('it is at its limit'))
      }
      // The response came before the end of the body: discard the rest.
      if (!request.complete && !isWhole) closeAfter(request, response)
      response.writeHead(answer.statusCode ?? 502, answer.statusMessage, headersBack(request, answer))
      answer.once('error', () => cut(response))
      answer.once('aborted', () => cut(response))
      answer.once('end', () => {
        isOver = true
        response.off('close', onClose)
        if (!answer.complete) return cut(response)
        if (hasTrailers(request, answer)) response.addTrailers(pairs(answer.rawTrailers))
        response.end()
        // The other process waits until this one closes.
        if (!isWhole) asked.destroy()
      })
      answer.pipe(response, { end: false })
    })
    if (isWhole) asked.end()
    else request.pipe(asked)
  }

  /** Registers a request that waits for its response; the returned function ends that. */
  function waitFor(asked: ClientRequest): () => void {
    const end = (why: string) => void asked.destroy(new Error(why))
    const timer = firstByteTimeoutMs && setTimeout(end, firstByteTimeoutMs(), 'the response did not begin in time')
    waiting.add(end)
    return () => {
      clearTimeout(timer)
      waiting.delete(end)
    }
  }

  return Object.assign(forward, {
    /** Fails requests that wait for a response: the other process has stopped working. */
    giveUp(why: string): void {
      for (const end of [...waiting]) end(why)
    },
    close(): void {
      agent.destroy()
      once.destroy()
    },
  })
}

function cut(response: ServerResponse): void {
  if (!response.destroyed && !response.writableFinished) reset(response)
}

function headersFor(request: IncomingMessage): string[] {
  const { rawHeaders, headers } = request
  const passed: string[] = []
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] as string
    const lower = name.toLowerCase()
    if (!ofTheHop.has(lower) && lower !== peerHeader) passed.push(name, rawHeaders[at + 1] as string)
  }
  if (headers['transfer-encoding'] !== undefined) passed.push('Transfer-Encoding', 'chunked')
  passed.push(peerHeader, peerOf(request))
  return passed
}

/** Trailers need chunked encoding, which an HTTP/1.0 client does not support. */
const hasTrailers = ({ httpVersion }: IncomingMessage, { headers }: IncomingMessage): boolean =>
  httpVersion !== '1.0' && headers['transfer-encoding'] !== undefined && headers.trailer !== undefined

function headersBack(request: IncomingMessage, answer: IncomingMessage): string[] {
  const { rawHeaders } = answer
  const isWithTrailers = hasTrailers(request, answer)
  const back: string[] = []
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const lower = (rawHeaders[at] as string).toLowerCase()
    if (!ofTheHop.has(lower) || (lower === 'trailer' && isWithTrailers))
      back.push(rawHeaders[at] as string, rawHeaders[at + 1] as string)
  }
  return back
}

const pairs = (raw: readonly string[]): [string, string][] =>
  raw.flatMap((name, at): [string, string][] => (at % 2 === 0 ? [[name, raw[at + 1] ?? '']] : []))

/**
 * The client's connection as the accepting process reports it. Set only by processes of this
 * gateway: a client's own header is dropped.
 */
export const peerHeader = 'x-cidgate-peer'

/** The reply of a process that is full: the accepting process handles the request itself. */
const declinedHeader = 'x-cidgate-declined'

export const decline = (response: ServerResponse): void => void response.writeHead(503, { [declinedHeader]: '1' }).end()

const isDeclined = ({ headers }: IncomingMessage): boolean => declinedHeader in headers

const addresses = ['remoteAddress', 'remotePort', 'remoteFamily', 'localAddress', 'localPort'] as const
const versions = ['httpVersion', 'httpVersionMajor', 'httpVersionMinor'] as const
type Peer = Partial<Record<(typeof addresses)[number] | (typeof versions)[number], string | number>> & {
  readonly isUnix?: boolean
}

const encode = (peer: Peer): string => Buffer.from(JSON.stringify(peer)).toString('base64url')
const decode = (text: string): Peer => JSON.parse(Buffer.from(text, 'base64url').toString()) as Peer

export const peerOf = (request: IncomingMessage): string =>
  encode({
    ...(Object.fromEntries([
      ...addresses.map((name) => [name, request.socket[name]]),
      ...versions.map((name) => [name, request[name]]),
    ]) as Peer),
    isUnix: isUnixPeer(request.socket),
  })

const inner = Symbol('forwarded')

export const isForwarded = ({ socket }: Pick<IncomingMessage, 'socket'>): boolean => inner in socket

/** Requests on one connection are sequential, each with its own client. */
export const fromInternalSocket =
  (handle: RequestListener): RequestListener =>
  (request, response) => {
    const header = request.headers[peerHeader]
    if (typeof header !== 'string') return void response.destroy()
    const peer = decode(header)
    const { socket } = request
    for (const name of addresses)
      Object.defineProperty(socket, name, { configurable: true, get: () => peer[name] ?? undefined })
    for (const name of versions) Object.assign(request, { [name]: peer[name] ?? request[name] })
    Object.assign(socket, { [inner]: true })
    markUnixPeer(socket, peer.isUnix === true)
    Reflect.deleteProperty(request.headers, peerHeader)
    const at = request.rawHeaders.findIndex((name, index) => index % 2 === 0 && name === peerHeader)
    if (at >= 0) request.rawHeaders.splice(at, 2)
    closeAfterSender(request, socket)
    handle(request, response)
  }

const maxMs = 30_000

/**
 * After a response that leaves its body unread, the sender of the body must close first: a write to
 * a closed unix socket is an error, which would discard the response.
 */
function closeAfterSender(request: IncomingMessage, socket: Socket): void {
  const leave = () => {
    socket.end()
    const destroy = () => socket.destroy()
    const timer = setTimeout(destroy, maxMs).unref()
    socket.once('end', destroy).once('close', () => clearTimeout(timer))
    request.resume()
    socket.resume()
  }
  Object.defineProperty(socket, 'destroySoon', { configurable: true, get: () => leave, set() {} })
}
