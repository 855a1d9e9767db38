// Forwards a request to another process of this gateway, and its response to the client: byte for
// byte, at the client's pace, and cut off where it was cut off.
import {
  Agent,
  request as ask,
  type ClientRequest,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  type ServerResponse,
} from 'node:http'
import { closeAfter } from '../http/wire/close-after-answer.ts'
import { hasBody } from '../http/wire/request-target.ts'
import { reset } from '../http/wire/write.ts'
import { isDeclined, peerHeader, peerOf } from './inner-door.ts'

export interface HandOn {
  /**
   * `otherwise` is called if the other process is unreachable, full, too late with its response, or
   * given up. The body may be consumed by then.
   */
  (request: IncomingMessage, response: ServerResponse, door: string, otherwise: (error: Error) => void): void
  /** Fails requests that wait for a response: the other process has stopped working. */
  giveUp(why: string): void
  close(): void
}

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
const mostIdle = 64

/** `patienceMs`: the first-byte timeout. Undefined means no timeout. */
export function createHandOn(patienceMs?: () => number): HandOn {
  const agent = new Agent({ keepAlive: true, maxFreeSockets: mostIdle })
  // A request with a body cannot be retried, so it never uses a connection that the other process
  // may be closing.
  const once = new Agent({ keepAlive: false })
  const waiting = new Set<(why: string) => void>()

  const handOn = (
    request: IncomingMessage,
    response: ServerResponse,
    door: string,
    otherwise: (error: Error) => void,
  ): void => {
    // A closed socket has lost its address, and the other process would take the client for local.
    if (request.socket.destroyed) return
    const isWhole = !hasBody(request)
    let asked: ClientRequest
    try {
      asked = ask({
        socketPath: door,
        agent: isWhole ? agent : once,
        method: request.method,
        path: request.url,
        headers: passedOn(request) as unknown as OutgoingHttpHeaders,
        setHost: false,
      })
    } catch (error) {
      // Headers that Node's server accepts may be refused by its client.
      return otherwise(error as Error)
    }
    let isOver = false
    const stopWaiting = waitFor(asked)
    const left = () => asked.destroy()
    response.once('close', left)

    asked.once('error', (error) => {
      stopWaiting()
      if (isOver) return
      isOver = true
      response.off('close', left)
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
        response.off('close', left)
        answer.resume()
        return otherwise(new Error('it has no room'))
      }
      // The response came before the end of the body: discard the rest.
      if (!request.complete && !isWhole) closeAfter(request, response)
      response.writeHead(answer.statusCode ?? 502, answer.statusMessage, headersBack(request, answer))
      answer.once('error', () => cut(response))
      answer.once('aborted', () => cut(response))
      answer.once('end', () => {
        isOver = true
        response.off('close', left)
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
    const timer = patienceMs && setTimeout(end, patienceMs(), 'it did not begin in time')
    waiting.add(end)
    return () => {
      clearTimeout(timer)
      waiting.delete(end)
    }
  }

  return Object.assign(handOn, {
    giveUp(why: string) {
      for (const end of [...waiting]) end(why)
    },
    close() {
      agent.destroy()
      once.destroy()
    },
  })
}

function cut(response: ServerResponse): void {
  if (!response.destroyed && !response.writableFinished) reset(response)
}

function passedOn(request: IncomingMessage): string[] {
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
