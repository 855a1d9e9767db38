// Assembles the public address: limits, hosts, the response cache, routes, and the metrics and log of
// their requests.

import { readFileSync } from 'node:fs'
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { extname } from 'node:path'
import type { Router } from 'express'
import type { CID } from 'multiformats/cid'
import { version } from '../config/package.ts'
import { logoTypes } from '../config/schema.ts'
import { createJsonDetector, type JsonDetector } from '../content/json.ts'
import { isProvable, parseCid, parseLeaf } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import { type CounterSync, createCounterSync } from '../core/counting/counter-sync.ts'
import { createTokenBucket } from '../core/counting/token-bucket.ts'
import { Failure } from '../core/failure.ts'
import type { Route } from '../http/add/add.ts'
import { createApp } from '../http/app.ts'
import { type Compression, createCompression } from '../http/compression.ts'
import { type CachedResponses, createCachedResponses } from '../http/content/response-cache.ts'
import { createFrontRoutes } from '../http/front.ts'
import { createHosts, type Hosts } from '../http/hosts.ts'
import { createLimits, createSharedRateLimits, type Limits } from '../http/limits.ts'
import { createProxyRoute } from '../http/proxy.ts'
import { clientOf, createForwarded, createRequestIds, type Forwarded } from '../http/wire/client.ts'
import {
  createAccessLog,
  createRequestSpans,
  type Exchange,
  exchangeOf,
  type NoteCached,
  placeOf,
  requestIdOf,
  watchExchange,
} from '../http/wire/exchange.ts'
import { createRespond, type Respond } from '../http/wire/problem.ts'
import { HttpRefusal, isHttp1, type ParserRefusal, type RequestHead, readTarget } from '../http/wire/request.ts'
import { createPendingResponses, type PendingResponses } from '../http/wire/write.ts'
import { createRecentFailures, type FailedRequest, type RecentFailures } from '../observe/recent-failures.ts'
import { type Answered, createRequestCounts, type RequestCounts, sourceOf } from '../observe/requests.ts'
import type { TierStack } from '../retrieval/tiers/tier-stack.ts'
import { decline, isForwarded } from '../team/forward-request.ts'
import { isOwner, isWorker, type Team } from '../team/team.ts'
import { takeTally } from './backends.ts'
import type { ReadSide } from './reading.ts'
import type { WriteSide } from './uploads.ts'
import type { WiringContext } from './wiring-context.ts'

export type Public = {
  readonly respond: Respond
  readonly requests: RequestCounts
  readonly failures: RecentFailures
  readonly forwarded: Forwarded
  readonly limits: Limits
  /** Identifies the client of a request for limits. */
  readonly clientOf: (request: IncomingMessage) => string
  /** Record each cached response. */
  readonly noteCached: readonly NoteCached[]
  /** Records the request for metrics and the access log. */
  readonly watch: (request: IncomingMessage, response: ServerResponse) => Exchange
  /** Records a refusal by the server as if by a route. */
  readonly refused: (refusal: ParserRefusal) => void
}

export function wirePublic(context: WiringContext): Public {
  const { config, clock, log, lease, trace, spans: recorded, team } = context
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
    limits: wireLimits(context, forwarded),
    clientOf: (request) => clientOf(forwarded.addressOf(request)),
    noteCached: [access?.cached, spans?.cached].filter((one) => one !== undefined),
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
      const answered = { ...unparsed, status: refusal.status }
      requests.answered(answered)
      access?.refused(refusal, answered)
      noteFailed(unparsedOf(refusal, clock.now()))
    },
  }
}

/** The owner keeps the last hundred, so a flood need not be reported in full. */
const maxReportsPerSecond = 20

function fewASecond(clock: Clock, tell: (failed: FailedRequest) => void): (failed: FailedRequest) => void {
  const budget = createTokenBucket({ size: maxReportsPerSecond, perSecond: maxReportsPerSecond, clock })
  return (failed) => {
    if (budget.take()) tell(failed)
  }
}

/** nginx's status for a client that left before the response. */
const clientLeft = 499

/** The request line may be malformed, so nothing of it is logged. */
const unparsed: Omit<Answered, 'status'> = {
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

const unparsedOf = ({ status, why, requestId, address }: ParserRefusal, at: number): FailedRequest => ({
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

export type Front = {
  readonly router: Router
  readonly handler: RequestListener
  /** For a server that parses requests itself. */
  readonly hot: CachedResponses['find']
  readonly serves: (host: string) => boolean
  readonly limits: Limits
  readonly pendingResponses: PendingResponses
  readonly requests: RequestCounts
  readonly jsonDetector: JsonDetector
  readonly compression: Pick<Compression, 'counts'>
}

export function wireFront(
  { config, userAgent, clock, lease, trace, team }: WiringContext,
  { retrieval, names, hot, denials }: ReadSide,
  shared: Public & {
    readonly uploads: WriteSide['offered']
    readonly routes: readonly Route[]
    readonly tiers: readonly string[]
    readonly stack: Pick<TierStack, 'hasNow'>
  },
): Front {
  const { stack, respond, requests, forwarded, limits, watch, noteCached } = shared
  const { responses, proxy } = config
  const { writeTimeout: stalledMs, maxPendingResponseBytes } = config.limits
  const pendingResponses = lease.take('pending responses', [maxPendingResponseBytes], () =>
    createPendingResponses(maxPendingResponseBytes),
  )
  const hosts = createHosts({
    table: config.hosts,
    provider: config.provider,
    hasLink: config.names.dnslinkSites ? names.hasLink : undefined,
    forwarded,
  })
  const requestIds = createRequestIds(forwarded)
  const compression = lease.take('compression', [responses.compression], () =>
    createCompression({ isOn: responses.compression }),
  )
  const cachedResponses = createCachedResponses({
    hot,
    compression,
    ...{ limits, stalledMs, requestIds },
    keyOf: hosts.keyOf,
    counts: requests.hot,
    notes: noteCached,
  })
  const jsonDetector = lease.take('json rule', [], createJsonDetector)
  const proxied = proxy.length > 0 ? [createProxyRoute(proxy, { respond, userAgent, forwarded })] : []
  const { router, handler } = createApp({
    ...shared,
    ...{
      retrieval,
      names,
      hot,
      compression,
      clock,
      hosts,
      jsonDetector,
      stalledMs,
      pendingResponses,
      requestIds,
      trace,
    },
    mode: responses.types,
    jsonMaxBytes: responses.json.maxBytes,
    denyRevision: () => denials.lists.revision,
    routes: [...shared.routes, ...proxied],
    ownRoutes: createFrontRoutes({
      version,
      root: config.root,
      name: config.name,
      logo: logoOf(config.logo),
      contact: config.contact,
      ...shared.uploads,
      subdomainHosts: Object.entries(config.hosts).flatMap(([host, one]) => (one.subdomains ? [host] : [])),
      respond,
    }),
    holds: (cid) => stack.hasNow(cid) === true,
  })
  const elsewhere =
    team &&
    createElsewhere({
      team,
      hosts,
      holds: (cid) => stack.hasNow(cid) === true,
      limits,
      here: handler,
      refuse(request, response) {
        watch(request, response).requestId = requestIds.next(request)
        respond.failed(request, response, ownerIsGone())
      },
    })
  return {
    router,
    handler: (request: IncomingMessage, response: ServerResponse) => {
      // `readTarget` refuses every other version.
      const isPlain = isHttp1(request)
      if (isPlain && cachedResponses.take(request, response)) return
      if (!elsewhere?.take(request, response)) handler(request, response)
    },
    hot: cachedResponses.find,
    serves: hosts.serves,
    limits,
    pendingResponses,
    requests,
    jsonDetector,
    compression,
  }
}

const ownerIsGone = (): Failure =>
  new Failure('overloaded', 'the process of this gateway that answers this cannot be reached now; retry in a second', {
    source: 'ours',
    retryAfterMs: 1000,
  })

const logoOf = (file: string | undefined) =>
  file === undefined
    ? undefined
    : { bytes: readFileSync(file), type: logoTypes[extname(file).toLowerCase()] ?? 'application/octet-stream' }

function wireLimits(context: WiringContext, forwarded: Forwarded): Limits {
  const { config, clock, lease, team } = context
  const { maxConcurrentRequests: inFlight, maxEventLoopDelay: loopDelay, perClient } = config.limits
  const counterSync = takeCounterSync(context)
  const shared =
    counterSync && lease.take('shared rate limits', [counterSync], () => createSharedRateLimits({ counterSync, clock }))
  const isAnnouncing = config.announce !== false
  return lease.take('limits', [inFlight, loopDelay, perClient, shared, config.trustedProxies, team, isAnnouncing], () =>
    createLimits({
      ...{ inFlight, loopDelay, perClient, shared, clock },
      isStoreDown: () => counterSync?.isStoreDown ?? false,
      addressOf: forwarded.addressOf,
      budgets: team?.budgets,
      isShared: sharedBy(forwarded),
      isExempt: isAnnouncing ? isOfChain : undefined,
    }),
  )
}

/** An indexer that is refused one advertisement gives up the context chain. */
const isOfChain = ({ url }: RequestHead): boolean => url?.startsWith('/ipni/v1/ad/') ?? false

/** A separate function, so that the closure holds nothing else of this gateway. */
const sharedBy =
  (forwarded: Forwarded) =>
  (request: IncomingMessage): boolean =>
    isForwarded(request) || forwarded.isPassedOn(request)

export function takeCounterSync(context: WiringContext): CounterSync | undefined {
  const { clock, log, lease } = context
  const tally = takeTally(context)
  return tally && lease.open('counter sync', [tally], () => createCounterSync({ add: tally.add, clock, log }))
}

type ElsewhereOptions = {
  readonly team: Team
  readonly hosts: Pick<Hosts, 'locate' | 'keyOf'>
  readonly holds: (cid: CID) => boolean
  readonly limits: Pick<Limits, 'inFlight' | 'concurrency' | 'wouldRefuse'>
  /** Handles it in this process. */
  readonly here: (request: IncomingMessage, response: ServerResponse) => void
  /** Called if the owner is unreachable. */
  readonly refuse: (request: IncomingMessage, response: ServerResponse) => void
}

export function createElsewhere({ team, hosts, holds, limits, here, refuse }: ElsewhereOptions) {
  /** Undefined unless it is plain content of this gateway. Throws for a malformed request. */
  function contentOf(request: IncomingMessage): string | undefined {
    const { method, url = '' } = request
    const isRead = method === 'GET' || method === 'HEAD'
    // The most common form. Every process reports other errors in it alike.
    if (isRead && url.startsWith('/ipfs/') && hosts.keyOf(request) === url) return url.split('?', 1)[0]
    const target = readTarget(request)
    if (!isRead) return undefined
    const found = hosts.locate(request, target)
    const path = found.kind === 'place' ? found.place.path : found.kind === 'by-path' ? target.path : ''
    return path.startsWith('/ipfs/') ? path : undefined
  }

  function forwardToHolder(path: string, request: IncomingMessage, response: ServerResponse): boolean {
    const holder = team.inProgress.holderOf(path)
    if (holder === undefined) return false
    team.forward(request, response, holder, () => here(request, response))
    return true
  }

  const isFull = (): boolean => limits.inFlight >= limits.concurrency

  /** The accepting process may have the capacity that this one lacks. */
  function declines(path: string | undefined, response: ServerResponse): boolean {
    if (path === undefined || !isFull()) return false
    decline(response)
    return true
  }

  return {
    /** Returns true if another process handles it. */
    take(request: IncomingMessage, response: ServerResponse): boolean {
      let path: string | undefined
      try {
        path = contentOf(request)
      } catch {
        // Malformed: every process refuses it alike, so it is not forwarded.
        return false
      }
      // A forwarded request goes no further: it is handled here, or returned.
      if (isForwarded(request)) return declines(path, response)
      if (path === undefined) {
        if (!isWorker(team)) return false
        team.toOwner(request, response, () => refuse(request, response))
        return true
      }
      // A request that will be refused costs no disk read, and is not forwarded.
      if (isFull() || limits.wouldRefuse(request)) return false
      if (forwardToHolder(path, request, response)) return true
      const text = path.split('/', 3)[2] ?? ''
      const root = parseLeaf(text) ?? parseCid(text)
      if (root && isProvable(root) && !holds(root)) {
        // Another process may have begun during the disk read.
        if (forwardToHolder(path, request, response)) return true
        const letGo = team.inProgress.hold(path)
        if (letGo) response.once('close', letGo)
      }
      return false
    },
  }
}
