// Hands a request on to another process of this gateway, and its answer to the client: byte for byte, at the client's pace, and cut
// where it was cut.
import { Agent, request as ask, type IncomingMessage, type OutgoingHttpHeaders, type ServerResponse } from 'node:http'
import { closeAfter } from '../http/wire/close-after-answer.ts'
import { hasBody } from '../http/wire/request-target.ts'
import { reset } from '../http/wire/write.ts'
import { peerHeader, peerOf } from './inner-door.ts'

export interface HandOn {
  /**
   * `otherwise`: called where the other process cannot be reached, or begins no answer in time, and nothing of the request was
   * used up.
   */
  (request: IncomingMessage, response: ServerResponse, door: string, otherwise: (error: Error) => void): void
  close(): void
}

// Of this hop alone (RFC 9110 §7.6.1). Node writes its own.
const ofTheHop: ReadonlySet<string> = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'transfer-encoding',
  'upgrade',
  'te',
])
// Idle ones are few: each is a descriptor at both ends.
const mostIdle = 64

/** `patienceMs`: how long the other process may take for its first byte, where the client sends no body. */
export function createHandOn(patienceMs: () => number): HandOn {
  const agent = new Agent({ keepAlive: true, maxFreeSockets: mostIdle })
  // What has a body cannot be asked again, so that it gets no connection that the other side may be closing.
  const once = new Agent({ keepAlive: false })

  const handOn = (
    request: IncomingMessage,
    response: ServerResponse,
    door: string,
    otherwise: (error: Error) => void,
  ): void => {
    const isWhole = !hasBody(request)
    const asked = ask({
      socketPath: door,
      agent: isWhole ? agent : once,
      method: request.method,
      path: request.url,
      headers: passedOn(request) as unknown as OutgoingHttpHeaders,
      setHost: false,
    })
    let isOver = false
    const timer = isWhole
      ? setTimeout(() => asked.destroy(new Error('it did not begin in time')), patienceMs())
      : undefined
    const left = () => asked.destroy()
    response.once('close', left)

    asked.once('error', (error) => {
      clearTimeout(timer)
      if (isOver) return
      isOver = true
      response.off('close', left)
      if (response.destroyed) return
      if (response.headersSent) reset(response)
      else otherwise(error)
    })
    asked.on('continue', () => response.writeContinue())
    asked.once('response', (answer) => {
      clearTimeout(timer)
      if (response.destroyed) return void answer.destroy()
      // It answered before the end of the body: the rest is discarded.
      if (!request.complete && !isWhole) closeAfter(request, response)
      response.writeHead(answer.statusCode ?? 502, answer.statusMessage, headersBack(answer))
      answer.once('error', () => cut(response))
      answer.once('aborted', () => cut(response))
      answer.once('end', () => {
        isOver = true
        response.off('close', left)
        if (!answer.complete) return cut(response)
        if (answer.rawTrailers.length > 0) response.addTrailers(pairs(answer.rawTrailers))
        response.end()
      })
      answer.pipe(response, { end: false })
    })
    if (isWhole) asked.end()
    else request.pipe(asked)
  }

  return Object.assign(handOn, {
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
  const named = new Set(
    String(headers.connection ?? '')
      .toLowerCase()
      .split(/\s*,\s*/),
  )
  const passed: string[] = []
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] as string
    const lower = name.toLowerCase()
    if (ofTheHop.has(lower) || named.has(lower) || lower === peerHeader) continue
    passed.push(name, rawHeaders[at + 1] as string)
  }
  if (headers['transfer-encoding'] !== undefined) passed.push('Transfer-Encoding', 'chunked')
  passed.push(peerHeader, peerOf(request.socket))
  return passed
}

function headersBack({ rawHeaders }: IncomingMessage): string[] {
  const back: string[] = []
  for (let at = 0; at < rawHeaders.length; at += 2)
    if (!ofTheHop.has((rawHeaders[at] as string).toLowerCase()))
      back.push(rawHeaders[at] as string, rawHeaders[at + 1] as string)
  return back
}

const pairs = (raw: readonly string[]): [string, string][] =>
  raw.flatMap((name, at): [string, string][] => (at % 2 === 0 ? [[name, raw[at + 1] ?? '']] : []))
