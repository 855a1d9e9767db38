// The access log: one event for each finished request. No query and no header except the agent's
// name, since they may contain secrets. The log keeps a bounded number of lines for a slow reader
// and never blocks. Failures are rate-limited by kind, so that a client that fails in a loop cannot
// fill the disk or displace other lines.
import type { Clock } from '../../core/clock.ts'
import { type Budget, createBudget } from '../../core/counting/budget.ts'
import type { AccessMode, Log } from '../../core/log.ts'
import type { Trace } from '../../core/wire/trace.ts'
import type { Answered } from '../../observe/requests.ts'
import { type Exchange, requestIdOf } from './exchange.ts'
import type { ParserRefusal } from './refusal.ts'
import type { RequestHead } from './request-head.ts'

export interface AccessLog {
  over(exchange: Exchange, answered: Answered): void
  /** Logs a request that could not be parsed: it has no method and no path. */
  refused(refusal: ParserRefusal, answered: Answered): void
  /** Logs one in this many cached responses; 0 means none. */
  readonly hotEvery: number
  hot(request: RequestHead, requestId: string, status: number, bytes: number): void
}

const sample = 100
const longest = { path: 1024, host: 255, agent: 200 } as const

const burstSeconds = 30

export function createAccessLog(options: {
  readonly access: AccessMode
  readonly failuresPerSecond: number | 'none'
  readonly log: Log
  readonly clock: Clock
  readonly addressOf: (request: RequestHead) => string
  readonly trace: Pick<Trace, 'idOf'>
}): AccessLog | undefined {
  const { access: mode, log, addressOf, trace } = options
  if (mode === 'off') return undefined
  const failures = mode === 'all' ? undefined : createFailureLines(options)
  let others = 0

  function traceOf(request: RequestHead): { readonly trace?: string } {
    const id = trace.idOf(request)
    return id === undefined ? {} : { trace: id }
  }

  /**
   * Decides if a request gets a line, with the number of lines skipped before it; undefined if not.
   */
  function wanted({ status, isWhole }: Answered, kind: string | undefined): { readonly leftOut?: number } | undefined {
    if (status >= 400 || !isWhole) return failures ? failures.take(kind ?? String(status)) : {}
    return mode === 'all' || (mode === 'sampled' && others++ % sample === 0) ? {} : undefined
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
      const before = wanted(answered, 'unread')
      if (!before) return
      const { route, status, source } = answered
      const line = { request: requestId, client, route, status, source, kind: 'malformed', why }
      log('info', 'http.request', { ...line, ...before })
    },
    over({ request, response, url, client, failure, token, account }, answered) {
      const before = wanted(answered, failure?.kind)
      if (!before) return
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
        ...(account && account.brought.length > 1 && { brought: account.brought }),
        ...before,
      })
    },
  }
}

/** Rate limits by kind of failure, or by status if there is none: both have few values. */
function createFailureLines({
  failuresPerSecond: perSecond,
  clock,
}: {
  readonly failuresPerSecond: number | 'none'
  readonly clock: Clock
}) {
  if (perSecond === 'none') return undefined
  const kinds = new Map<string, { readonly budget: Budget; leftOut: number }>()
  return {
    take(name: string): { readonly leftOut?: number } | undefined {
      let kind = kinds.get(name)
      if (!kind)
        kinds.set(
          name,
          (kind = { budget: createBudget({ size: perSecond * burstSeconds, perSecond, clock }), leftOut: 0 }),
        )
      if (!kind.budget.take()) {
        kind.leftOut++
        return undefined
      }
      const { leftOut } = kind
      kind.leftOut = 0
      return leftOut > 0 ? { leftOut } : {}
    },
  }
}

/** Strips the query, and the scheme and authority of an absolute URL. */
export const placeOf = ({ headers }: RequestHead, url: string) => ({
  host: headers.host?.slice(0, longest.host),
  path: (url.split('?', 1)[0] ?? '').replace(/^https?:\/\/[^/]*/i, '').slice(0, longest.path),
  agent: headers['user-agent']?.slice(0, longest.agent),
})

const inMs = (seconds: number): number => Math.round(seconds * 10_000) / 10
