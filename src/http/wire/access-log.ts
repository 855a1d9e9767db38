// The access log: one event for each request that is over. No query, no header but the agent's name: what may be secret is not
// there. It writes to the log, which keeps a bounded number of lines for a slow reader and never waits for it.
import type { IncomingMessage } from 'node:http'
import type { AccessMode, Log } from '../../core/log.ts'
import type { Trace } from '../../core/wire/trace.ts'
import type { Answered } from '../../observe/requests.ts'
import { type Exchange, requestIdOf } from './exchange.ts'
import type { ParserRefusal } from './refusal.ts'

export interface AccessLog {
  over(exchange: Exchange, answered: Answered): void
  /** A request that was never read as a whole: it has no method and no path. */
  refused(refusal: ParserRefusal, answered: Answered): void
  /** Notes one of so many hot answers; 0: none. */
  readonly hotEvery: number
  hot(request: IncomingMessage, requestId: string, status: number, bytes: number): void
}

const sample = 100
const longest = { path: 1024, host: 255, agent: 200 } as const

export function createAccessLog(options: {
  readonly mode: AccessMode
  readonly log: Log
  readonly addressOf: (request: IncomingMessage) => string
  readonly trace: Pick<Trace, 'idOf'>
}): AccessLog | undefined {
  const { mode, log, addressOf, trace } = options
  if (mode === 'off') return undefined
  let others = 0

  function traceOf(request: IncomingMessage): { readonly trace?: string } {
    const id = trace.idOf(request)
    return id === undefined ? {} : { trace: id }
  }

  function isWanted({ status, isWhole }: Answered): boolean {
    if (mode === 'all' || status >= 400 || !isWhole) return true
    return mode === 'sampled' && others++ % sample === 0
  }

  return {
    hotEvery: mode === 'all' ? 1 : mode === 'sampled' ? sample : 0,
    hot(request, requestId, status, bytes) {
      const { method = '', url = '' } = request
      const client = addressOf(request)
      log('info', 'http.request', {
        ...{ request: requestId, client, method, ...placeOf(request, url), ...traceOf(request) },
        ...{ route: 'ipfs', status, source: 'hot', bytes },
      })
    },
    refused({ requestId, address: client, why }, answered) {
      if (!isWanted(answered)) return
      const { route, status, source } = answered
      log('info', 'http.request', { request: requestId, client, route, status, source, kind: 'malformed', why })
    },
    over({ request, response, url, client, failure, token, account }, answered) {
      if (!isWanted(answered)) return
      const { method, route, status, source, seconds, firstByteSeconds, bytesIn, bytesOut, isWhole } = answered
      const isOurs = status >= 500
      log(isOurs ? 'warn' : 'info', 'http.request', {
        ...{
          request: requestIdOf(response),
          client,
          method,
          ...placeOf(request, url),
          ...traceOf(request),
          route,
          status,
          source,
        },
        ms: inMs(seconds),
        ...(firstByteSeconds !== undefined && { firstByteMs: inMs(firstByteSeconds) }),
        bytes: bytesOut,
        ...(bytesIn > 0 && { bytesIn }),
        ...(token !== undefined && { token }),
        ...(!isWhole && { cut: true }),
        ...(failure && { kind: failure.kind, why: failure.message }),
        ...(failure && account && account.attempts.length > 0 && { attempts: account.attempts }),
      })
    },
  }
}

/** Without the query, and without what a whole URL may say before its path. */
export const placeOf = ({ headers }: IncomingMessage, url: string) => ({
  host: headers.host?.slice(0, longest.host),
  path: (url.split('?', 1)[0] ?? '').replace(/^https?:\/\/[^/]*/i, '').slice(0, longest.path),
  agent: headers['user-agent']?.slice(0, longest.agent),
})

const inMs = (seconds: number): number => Math.round(seconds * 10_000) / 10
