// Responds to a failed request: the error becomes a Failure, is counted, logged if it is a bug, and
// written as a problem. After the first byte the connection is reset instead.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Failure } from '../../core/failure.ts'
import { createTrace, type Trace } from '../../core/wire/trace.ts'
import type { Account } from '../../observe/account.ts'
import { exchangeOf, requestIdOf } from './exchange.ts'
import { asFailure, type Mode, sendProblem } from './problem.ts'
import { reset } from './write.ts'

/** Facts about the request for the log line. */
export type RequestFacts = { readonly request: string | undefined; readonly method: string; readonly path: string }

export type RespondOptions = {
  readonly mode: Mode
  /** The write timeout. */
  readonly stalledMs: number
  /** The operator's contact address, for pages. */
  readonly contact?: string | undefined
  /** Called for a bug of the gateway. */
  readonly onError: (error: unknown, about: RequestFacts) => void
  readonly onFailed?: (failure: Failure) => void
  /** Default: only a trace that the client began is shown. */
  readonly trace?: Pick<Trace, 'idOf'>
}

export type How = {
  readonly account?: Account
  readonly headers?: Readonly<Record<string, string>>
  /** The Accept header to use. Default: the client's. */
  readonly accept?: string | undefined
  /** Called before a response is written. */
  readonly before?: () => void
  /** Writes an error in another format (Kubo's). */
  readonly write?: (failure: Failure) => void
  /** Ends a response that failed after its first byte. Default: resets the connection. */
  readonly late?: (failure: Failure) => void
}

export interface Respond {
  readonly stalledMs: number
  failed(request: IncomingMessage, response: ServerResponse, error: unknown, how?: How): Failure
}

export function createRespond(options: RespondOptions): Respond {
  const { mode, stalledMs, contact, onError, onFailed, trace = createTrace() } = options
  return {
    stalledMs,
    failed(request, response, error, how = {}) {
      const exchange = exchangeOf(response)
      const failure = exchange?.refusal ?? asFailure(error)
      if (!exchange?.refusal) onFailed?.(failure)
      if (exchange) exchange.failure = failure
      if (failure.kind === 'internal') onError(failure.cause ?? failure, aboutOf(request, response))
      if (response.headersSent && how.late && !exchange?.refusal) how.late(failure)
      else if (response.headersSent) reset(response)
      else if (failure.kind === 'cancelled' || exchange?.refusal || response.destroyed) response.destroy()
      else {
        how.before?.()
        const { account, headers, write } = how
        const accept = 'accept' in how ? how.accept : request.headers.accept
        const head = request.method === 'HEAD'
        const traceId = trace.idOf(request)
        if (write) write(failure)
        else
          sendProblem(response, failure, {
            ...{ mode, stalledMs, account, head, accept, headers, contact, traceId },
          })
      }
      return failure
    },
  }
}

/** Without the query, which is private to the client. */
const aboutOf = ({ method = '', url = '' }: IncomingMessage, response: ServerResponse): RequestFacts => ({
  request: requestIdOf(response),
  method,
  path: url.split('?')[0] ?? '',
})
