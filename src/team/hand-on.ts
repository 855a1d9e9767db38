// Hands a request on to another process of this gateway, and its answer to the client: byte for byte, at the client's pace, and cut
// where it was cut.
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
   * `otherwise`: called where the other process cannot be reached, has no room, begins no answer in time, or is given up. A body may
   * be used up by then.
   */
  (request: IncomingMessage, response: ServerResponse, door: string, otherwise: (error: Error) => void): void
  /** Ends what waits for the beginning of an answer: the other process does nothing any more. */
  giveUp(why: string): void
  close(): void
}

// Of this hop alone, and written anew by Node. What else a client names in `Connection` goes on: the other process answers as if the
// client were connected to it.
const ofTheHop: ReadonlySet<string> = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'transfer-encoding',
  'trailer',
  'upgrade',
  'te',
])
// Idle ones are few: each is a descriptor at both ends.
const mostIdle = 64

/** `patienceMs`: how long the other process may take for its first byte. Undefined: as long as it lives. */
export function createHandOn(patienceMs?: () => number): HandOn {
  const agent = new Agent({ keepAlive: true, maxFreeSockets: mostIdle })
  // What has a body cannot be asked again, so that it gets no connection that the other side may be closing.
  const once = new Agent({ keepAlive: false })
  const waiting = new Set<(why: string) => void>()

  const handOn = (
    request: IncomingMessage,
    response: ServerResponse,
    door: string,
    otherwise: (error: Error) => void,
  ): void => {
    // A client that is gone has no address any more, and another process would take it for a neighbour.
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
      // What a server reads and a client may not write.
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
      // It answered before the end of the body: the rest is discarded.
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
        // The other side waits until this one closes.
        if (!isWhole) asked.destroy()
      })
      answer.pipe(response, { end: false })
    })
    if (isWhole) asked.end()
    else request.pipe(asked)
  }

  /** The answer ends the waiting. */
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

/** Trailers go out behind pieces alone, which a client of HTTP/1.0 does not know. */
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
