// What is said before there is a gateway: its sockets are open first, so that a second one is refused before it has touched
// anything. What is asked meanwhile waits for it; the admin address says that it is alive and not ready.
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { Failure } from '../core/failure.ts'
import { closeAfter } from '../http/wire/linger.ts'
import { type Mode, sendProblem } from '../http/wire/problem.ts'

export interface Starting {
  readonly listen: RequestListener
  readonly admin: RequestListener
  /** There is one now: whoever waited is answered by it. */
  over(handler: RequestListener): void
}

export type StartingOptions = {
  readonly mode: Mode
  readonly stalledMs: number
  /** Requests that may wait. */
  readonly most: number
}

export function createStarting({ mode, stalledMs, most }: StartingOptions): Starting {
  const waiting = new Map<ServerResponse, IncomingMessage>()
  return {
    listen(request, response) {
      if (waiting.size < most) {
        waiting.set(response, request)
        response.once('close', () => waiting.delete(response))
        return
      }
      closeAfter(request, response)
      const { method, headers } = request
      sendProblem(response, notYet(), { mode, stalledMs, head: method === 'HEAD', accept: headers.accept })
    },
    admin(request, response) {
      const isHealth = request.url?.split('?')[0] === '/healthz'
      const text = JSON.stringify(isHealth ? { status: 'alive' } : { ready: false, starting: true })
      closeAfter(request, response)
      response.writeHead(isHealth ? 200 : 503, { 'Content-Type': 'application/json', 'Cache-Control': 'no-store' })
      response.end(text)
    },
    over(handler) {
      for (const [response, request] of waiting) handler(request, response)
      waiting.clear()
    },
  }
}

const notYet = (): Failure =>
  new Failure('overloaded', 'this gateway is starting; come back in a second', { source: 'ours', retryAfterMs: 1000 })
