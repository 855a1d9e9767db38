// The one place where a request that failed is answered: what went wrong becomes a Failure, is counted, logged when nobody
// expected it, and written as a problem, or, where half of an answer is out already, as a connection that breaks.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Failure } from '../../core/failure.ts'
import type { Account } from '../../observe/account.ts'
import { asFailure, type Mode, sendProblem } from './problem.ts'
import { requestIdOf } from './request-id.ts'
import { reset } from './write.ts'

/** Of a log line: which request it was. */
export type RequestFacts = { readonly request: string | undefined; readonly method: string; readonly path: string }

export type RespondOptions = {
  readonly mode: Mode
  /** How long a client may take nothing of an answer. */
  readonly stalledMs: number
  /** For what nobody expected: a fault of ours. */
  readonly onError: (error: unknown, about: RequestFacts) => void
  readonly onFailed?: (failure: Failure) => void
}

export type How = {
  readonly account?: Account
  readonly headers?: Readonly<Record<string, string>>
  /** What the client reads. By default what it says. */
  readonly accept?: string | undefined
  /** Called once it is certain that an answer is written. */
  readonly before?: () => void
  /** An answer of another shape than ours. */
  readonly write?: (failure: Failure) => void
}

export interface Respond {
  readonly stalledMs: number
  failed(request: IncomingMessage, response: ServerResponse, error: unknown, how?: How): Failure
}

export function createRespond({ mode, stalledMs, onError, onFailed }: RespondOptions): Respond {
  return {
    stalledMs,
    failed(request, response, error, how = {}) {
      const failure = asFailure(error)
      onFailed?.(failure)
      if (failure.kind === 'internal') onError(failure.cause ?? failure, aboutOf(request, response))
      if (response.headersSent) reset(response)
      else if (failure.kind === 'cancelled' || response.destroyed) response.destroy()
      else {
        how.before?.()
        const { account, headers, write } = how
        const accept = 'accept' in how ? how.accept : request.headers.accept
        const head = request.method === 'HEAD'
        if (write) write(failure)
        else sendProblem(response, failure, { mode, stalledMs, account, head, accept, headers })
      }
      return failure
    },
  }
}

/** Without the query, which is the client's own. */
const aboutOf = ({ method = '', url = '' }: IncomingMessage, response: ServerResponse): RequestFacts => ({
  request: requestIdOf(response),
  method,
  path: url.split('?')[0] ?? '',
})
