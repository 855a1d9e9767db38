// Shared by every route of the public address: error responses, their metrics and log, and the
// trusted proxies.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Clock } from '../../core/clock.ts'
import { createBudget } from '../../core/counting/budget.ts'
import { createForwarded, type Forwarded } from '../../http/hosts/forwarded.ts'
import { clientOf } from '../../http/limits/client.ts'
import type { Limits } from '../../http/limits/limits.ts'
import { createRequestSpans, type HotNotes, hotNotesOf } from '../../http/traces/request-spans.ts'
import { createAccessLog, placeOf } from '../../http/wire/access-log.ts'
import { type Exchange, exchangeOf, requestIdOf, watchExchange } from '../../http/wire/exchange.ts'
import { HttpRefusal, type ParserRefusal } from '../../http/wire/refusal.ts'
import { createRespond, type Respond } from '../../http/wire/respond.ts'
import { createRecentFailures, type FailedRequest, type RecentFailures } from '../../observe/recent-failures.ts'
import { type Answered, createRequestCounts, type RequestCounts, sourceOf } from '../../observe/requests.ts'
import { isOwner, isWorker } from '../../team/team.ts'
import type { Whole } from '../whole.ts'
import { wireLimits } from './limits.ts'

export type Public = {
  readonly respond: Respond
  readonly requests: RequestCounts
  readonly failures: RecentFailures
  readonly forwarded: Forwarded
  readonly limits: Limits
  /** Identifies the client of a request for limits. */
  readonly clientOf: (request: IncomingMessage) => string
  readonly hotNotes: HotNotes | undefined
  /** Records the request for metrics and the access log. */
  readonly watch: (request: IncomingMessage, response: ServerResponse) => Exchange
  /** Records a refusal by the server as if by a route. */
  readonly refused: (refusal: ParserRefusal) => void
}

export function wirePublic(whole: Whole): Public {
  const { config, clock, log, lease, trace, spans: recorded, team } = whole
  const requests = lease.take('requests', [], createRequestCounts)
  const failures = lease.take('recent failures', [], createRecentFailures)
  const tell = isWorker(team) ? fewASecond(clock, (failed) => team.tell('failed', failed)) : undefined
  if (isOwner(team)) team.on('failed', (said) => failures.note(said as FailedRequest))
  const noteFailed = (failed: FailedRequest): void => {
    failures.note(failed)
    tell?.(failed)
  }
  const respond = createRespond({
    mode: config.responses.types,
    stalledMs: config.limits.writeTimeout,
    contact: config.contact,
    onFailed: requests.failed,
    trace,
    onError: (error, about) =>
      log('error', 'request.error', { ...about, error: error instanceof Error ? error.stack : String(error) }),
  })
  const forwarded = createForwarded(config.trustedProxies)
  const now = () => clock.monotonic()
  const access = createAccessLog({ ...config.log, log, clock, addressOf: forwarded.addressOf, trace })
  const spans = recorded && createRequestSpans(trace, clock)
  const over = (exchange: Exchange) => {
    const answered = answeredOf(exchange, now())
    requests.answered(answered)
    access?.over(exchange, answered)
    spans?.over(exchange, answered)
    if (answered.status >= 400 || !answered.isWhole)
      noteFailed(failedOf(exchange, answered, { at: clock.now(), addressOf: forwarded.addressOf }))
  }
  return {
    respond,
    requests,
    failures,
    forwarded,
    limits: wireLimits(whole, forwarded),
    clientOf: (request) => clientOf(forwarded.addressOf(request)),
    hotNotes: hotNotesOf(access, spans),
    watch(request, response) {
      const exchange = watchExchange(request, response, now, over)
      if (access) exchange.client ??= forwarded.addressOf(request)
      return exchange
    },
    refused(refusal) {
      const failure = failureOf(refusal)
      requests.failed(failure)
      const exchange = refusal.response && exchangeOf(refusal.response)
      // The rest is counted at its end.
      if (exchange) {
        exchange.refusal = failure
        exchange.failure = failure
        return
      }
      const answered = { ...unread, status: refusal.status }
      requests.answered(answered)
      access?.refused(refusal, answered)
      noteFailed(unreadOf(refusal, clock.now()))
    },
  }
}

/** The owner keeps the last hundred, so a flood need not be reported in full. */
const mostTold = 20

function fewASecond(clock: Clock, tell: (failed: FailedRequest) => void): (failed: FailedRequest) => void {
  const budget = createBudget({ size: mostTold, perSecond: mostTold, clock })
  return (failed) => {
    if (budget.take()) tell(failed)
  }
}

/** nginx's status for a client that left before the response. */
const clientLeft = 499

/** The request line may be malformed, so nothing of it is logged. */
const unread: Omit<Answered, 'status'> = {
  route: 'none',
  method: '',
  source: 'none',
  isWhole: true,
  firstByteSeconds: undefined,
  seconds: 0,
  bytesIn: 0,
  bytesOut: 0,
}

const failureOf = ({ status, why }: ParserRefusal): HttpRefusal =>
  new HttpRefusal('malformed', why, { source: 'client', status })

const unreadOf = ({ status, why, requestId, address }: ParserRefusal, at: number): FailedRequest => ({
  ...{ at, request: requestId, client: address || undefined, method: '', path: '', route: 'none' },
  ...{ status, isCut: false, ms: 0, kind: 'malformed', why },
})

function answeredOf({ request, response, began, ...noted }: Exchange, now: number): Answered {
  const { route, account, failure, answeredAt, bytesIn, bytesOut, refusal } = noted
  return {
    route,
    method: request.method ?? '',
    status: refusal?.status ?? (response.headersSent ? response.statusCode : clientLeft),
    source: sourceOf(account),
    // Kubo's RPC ends a failed stream cleanly.
    isWhole: refusal !== undefined || (response.writableFinished && !(failure && response.statusCode < 400)),
    firstByteSeconds: answeredAt === undefined ? undefined : (answeredAt - began) / 1000,
    seconds: (now - began) / 1000,
    bytesIn,
    bytesOut,
  }
}

type Noting = { readonly at: number; readonly addressOf: (request: IncomingMessage) => string }

function failedOf(exchange: Exchange, answered: Answered, { at, addressOf }: Noting): FailedRequest {
  const { request, response, url, client, failure, account } = exchange
  const { route, method, status, seconds, isWhole } = answered
  return {
    at,
    request: requestIdOf(response),
    // A closed socket has lost its address.
    client: client || addressOf(request) || undefined,
    method: method.slice(0, longestMethod),
    path: placeOf(request, url).path,
    route,
    status,
    isCut: !isWhole,
    ms: Math.round(seconds * 1000),
    ...(failure && { kind: failure.kind, why: failure.message }),
    ...(failure && account && account.attempts.length > 0 && { attempts: account.attempts }),
  }
}

/** A client may send any method. */
const longestMethod = 20
