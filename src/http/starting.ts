// The time before the gateway runs: public requests wait, and the admin address reports that the
// process is alive and not ready.
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { Failure } from '../core/failure.ts'
import { closeAfter } from './wire/close-after-answer.ts'
import { type Mode, sendProblem } from './wire/problem.ts'

export interface Starting {
  /** Calls `go` at the end of the start, unless the client has left. */
  hold(request: IncomingMessage, response: ServerResponse, go: () => void): void
  refuse(request: IncomingMessage, response: ServerResponse, why: Failure): void
  readonly admin: RequestListener
  /** Releases all waiting requests. */
  over(): void
}

export type StartingOptions = {
  readonly mode: Mode
  readonly stalledMs: number
  /** The maximum number of waiting requests. */
  readonly most: number
}

export function createStarting({ mode, stalledMs, most }: StartingOptions): Starting {
  const waiting = new Map<ServerResponse, () => void>()

  function refuse(request: IncomingMessage, response: ServerResponse, why: Failure): void {
    closeAfter(request, response)
    const { method, headers } = request
    sendProblem(response, why, { mode, stalledMs, head: method === 'HEAD', accept: headers.accept })
  }

  return {
    refuse,
    hold(request, response, go) {
      if (waiting.size >= most) return refuse(request, response, notYet())
      waiting.set(response, go)
      response.once('close', () => waiting.delete(response))
    },
    admin(request, response) {
      const isHealth = request.url?.split('?')[0] === '/healthz'
      const text = JSON.stringify(isHealth ? { status: 'alive' } : { ready: false, starting: true })
      closeAfter(request, response)
      response.writeHead(isHealth ? 200 : 503, { 'Content-Type': 'application/json', 'Cache-Control': 'no-store' })
      response.end(text)
    },
    over() {
      const all = [...waiting.values()]
      waiting.clear()
      for (const go of all) go()
    },
  }
}

const notYet = (): Failure =>
  new Failure('overloaded', 'this gateway is starting; retry in a second', { source: 'ours', retryAfterMs: 1000 })
