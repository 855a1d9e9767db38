// The head of an answer that is sent again and again, as text. `writeHead` looks at each of its headers each time, with regular
// expressions, which takes a seventh of a hot answer; these were looked at when the answer was sent for the first time.
import { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http'
import type { Clock } from '../../core/clock.ts'
import { isAtOwnServer } from '../wire/own-server.ts'
import { requestIdHeader } from '../wire/request-id.ts'

export type ReadyHead = {
  readonly status: number
  /** Names and values in one list, as writeHead takes them. */
  readonly headers: readonly string[]
  /** The status line and the headers. */
  readonly lines: string
}

export function readyHead(status: number, headers: readonly string[]): ReadyHead {
  const pieces = [`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n`]
  for (let at = 0; at < headers.length; at += 2)
    pieces.push(headers[at] as string, ': ', headers[at + 1] as string, '\r\n')
  return { status, headers, lines: pieces.join('') }
}

/** What Node keeps of an answer besides what it documents. */
type Inside = ServerResponse & {
  _header?: string | null
  _headerSent?: boolean
  _hasBody?: boolean
  readonly _expect_continue?: boolean
  readonly useChunkedEncodingByDefault?: boolean
}

/** Writes such heads; where anything about the answer is unusual, or Node is unlike what is known here, by `writeHead`. */
export function createHeadWriter(
  clock: Clock,
): (request: IncomingMessage, response: ServerResponse, head: ReadyHead, requestId: string) => void {
  const write = createUsualHeads(clock)
  return (request, response, head, requestId) => {
    if (!write(request, response, head, requestId))
      response.writeHead(head.status, [...head.headers, requestIdHeader, requestId])
  }
}

/** False: anything about the answer is unusual, and nothing was written. */
export type UsualHeads = (
  request: IncomingMessage,
  response: ServerResponse,
  head: Pick<ReadyHead, 'status' | 'lines'>,
  requestId: string,
) => boolean

export function createUsualHeads(clock: Clock): UsualHeads {
  let second = Number.NaN
  let date = ''

  function dateLine(): string {
    const now = clock.now()
    if (Math.floor(now / 1000) !== second) {
      second = Math.floor(now / 1000)
      date = `Date: ${new Date(now).toUTCString()}\r\n`
    }
    return date
  }

  return (request, response: Inside, { status, lines }, requestId) => {
    if (!isUsual(request, response)) return false
    const keepAliveTimeout = serverOf(request)?.keepAliveTimeout ?? 0
    const kept = keepAliveTimeout > 0 ? `Keep-Alive: timeout=${Math.floor(keepAliveTimeout / 1000)}\r\n` : ''
    response.statusCode = status
    if (status === 304) response._hasBody = false
    response._header = `${lines}${requestIdHeader}: ${requestId}\r\n${dateLine()}Connection: keep-alive\r\n${kept}\r\n`
    response._headerSent = false
    return true
  }
}

/** An answer on a connection of our own that goes on, to which nothing was added. */
const isUsual = (request: IncomingMessage, response: Inside): boolean =>
  response._header === null &&
  response._headerSent === false &&
  response._hasBody !== undefined &&
  response.shouldKeepAlive &&
  response.useChunkedEncodingByDefault === true &&
  response._expect_continue !== true &&
  response.getHeaderNames().length === 0 &&
  isAtOwnServer(request)

type Limits = { readonly keepAliveTimeout?: number }

/** Node's own server sets it on each of its sockets. */
const serverOf = ({ socket }: IncomingMessage): Limits | undefined =>
  (socket as unknown as { readonly server?: Limits }).server
