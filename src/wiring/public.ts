// Assembles the public address: limits, hosts, the response cache, routes, and the metrics and log of
// their requests.

import { readFileSync } from 'node:fs'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { extname } from 'node:path'
import type { CID } from 'multiformats/cid'
import { version } from '../config/package.ts'
import { logoTypes } from '../config/schema.ts'
import { createJsonDetector } from '../content/json.ts'
import { isProvable, parseCid, parseLeaf } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import { type CounterSync, createCounterSync } from '../core/counting/counter-sync.ts'
import { createTokenBucket } from '../core/counting/token-bucket.ts'
import { Failure } from '../core/failure.ts'
import { createApp } from '../http/app.ts'
import { createCompression } from '../http/compression.ts'
import { createCachedResponses } from '../http/content/response-cache.ts'
import { createFrontRoutes } from '../http/front.ts'
import { createHosts, type Hosts } from '../http/hosts.ts'
import { createLimits, createSharedRateLimits, type Limits } from '../http/limits.ts'
import { createProxyRoute } from '../http/proxy.ts'
import type { Route } from '../http/route.ts'
import { createRequestLog } from '../http/wire/exchange.ts'
import { createRespond } from '../http/wire/problem.ts'
import {
  createForwarded,
  createRequestIds,
  type Forwarded,
  type RequestHead,
  readTarget,
} from '../http/wire/request.ts'
import { createPendingResponses } from '../http/wire/write.ts'
import { createRecentFailures, createRequestCounts, type FailedRequest } from '../observe/requests.ts'
import { decline, isForwarded } from '../team/forward-request.ts'
import { isOwner, isWorker, type Team } from '../team/team.ts'
import { takeSharedCounters } from './backends.ts'
import type { WiringContext } from './components.ts'
import type { ReadSide } from './reading.ts'
import type { Tiers } from './tiers.ts'
import type { WriteSide } from './uploads.ts'

export type Public = ReturnType<typeof wirePublic>

export function wirePublic(context: WiringContext) {
  const { config, clock, log, lease, trace, spans, team } = context
  const requests = lease.take('requests', [], createRequestCounts)
  const failures = lease.take('recent failures', [], createRecentFailures)
  const send = isWorker(team) ? fewASecond(clock, (failed) => team.send('failed', failed)) : () => {}
  if (isOwner(team)) team.on('failed', (said) => failures.note(said as FailedRequest))
  const forwarded = createForwarded(config.trustedProxies)
  const { addressOf } = forwarded
  const { watch, refused, cached } = createRequestLog({
    ...{ ...config.log, requests, log, clock, addressOf, trace, hasSpans: spans !== undefined },
    onFailed(failed) {
      failures.note(failed)
      send(failed)
    },
  })
  const responding: Parameters<typeof createRespond>[0] = {
    mode: config.responses.types,
    stalledMs: config.limits.writeTimeout,
    contact: config.contact,
    onFailed: requests.failed,
    trace,
    onError: (error, about) =>
      log('error', 'request.error', { ...about, error: error instanceof Error ? error.stack : String(error) }),
  }
  return {
    respond: createRespond(responding),
    adminRespond: createRespond({ ...responding, isPublic: false }),
    requests,
    failures,
    forwarded,
    limits: wireLimits(context, forwarded),
    clientOf: forwarded.clientOf,
    watch,
    refused,
    /** Record each cached response. */
    noteCached: cached,
  }
}

/** The owner keeps the last hundred, so a flood need not be reported in full. */
const maxReportsPerSecond = 20

function fewASecond(clock: Clock, send: (failed: FailedRequest) => void): (failed: FailedRequest) => void {
  const budget = createTokenBucket({ size: maxReportsPerSecond, perSecond: maxReportsPerSecond, clock })
  return (failed) => {
    if (budget.take()) send(failed)
  }
}

export type Front = ReturnType<typeof wireFront>

export function wireFront(
  { config, userAgent, clock, lease, trace, team }: WiringContext,
  { retrieval, names, hot, denials }: ReadSide,
  { stack, names: tiers }: Pick<Tiers, 'stack' | 'names'>,
  shared: Public,
  routes: readonly Route[],
  uploads: WriteSide['offered'],
) {
  const { respond, requests, forwarded, limits, watch, noteCached } = shared
  const { responses, proxy, root, name, contact } = config
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
  const compression = lease.make(createCompression, { isOn: responses.compression })
  const cached = createCachedResponses({
    ...{ hot, compression, limits, stalledMs, requestIds, keyOf: hosts.keyOf },
    ...{ counts: requests.hot, notes: noteCached },
  })
  const holds = (cid: CID): boolean => stack.hasNow(cid) === true
  const jsonDetector = lease.take('json detector', [], createJsonDetector)
  const subdomainHosts = Object.entries(config.hosts).flatMap(([host, one]) => (one.subdomains ? [host] : []))
  const { router, handler } = createApp({
    ...{ ...shared, retrieval, names, hot, compression, tiers, clock, hosts, jsonDetector, stalledMs },
    ...{ cached, pendingResponses, requestIds, trace, mode: responses.types, jsonMaxBytes: responses.json.maxBytes },
    denyRevision: () => denials.lists.revision,
    routes: [...routes, ...(proxy.length > 0 ? [createProxyRoute(proxy, { respond, userAgent, forwarded })] : [])],
    ownRoutes: createFrontRoutes({
      ...{ version, root, name, contact, ...uploads, respond, subdomainHosts, logo: logoOf(config.logo) },
    }),
    holds,
  })
  const forwarder =
    team &&
    createOwnerForwarder({
      ...{ team, hosts, holds, limits, here: handler },
      refuse(request, response) {
        watch(request, response).requestId = requestIds.next(request)
        respond.failed(request, response, ownerIsGone())
      },
    })
  return {
    router,
    handler: forwarder
      ? (request: IncomingMessage, response: ServerResponse) => {
          if (!forwarder.take(request, response)) handler(request, response)
        }
      : handler,
    /** For a server that parses requests itself. */
    hot: cached.take,
    pendingResponses,
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
  const shared = counterSync && lease.make(createSharedRateLimits, { counterSync, clock })
  const isAnnouncing = config.announce !== false
  return lease.take('limits', [inFlight, loopDelay, perClient, shared, config.trustedProxies, team, isAnnouncing], () =>
    createLimits({
      ...{ inFlight, loopDelay, perClient, shared, clock },
      isStoreDown: () => counterSync?.isStoreDown ?? false,
      clientOf: forwarded.clientOf,
      budgets: team?.budgets,
      isShared: sharedBy(forwarded),
      isExempt: isAnnouncing ? isOfChain : undefined,
    }),
  )
}

/** An indexer that is refused one advertisement gives up the whole chain. */
const isOfChain = ({ url }: RequestHead): boolean => url?.startsWith('/ipni/v1/ad/') ?? false

/** A separate function, so that the closure holds nothing else of this gateway. */
const sharedBy =
  (forwarded: Forwarded) =>
  (request: IncomingMessage): boolean =>
    isForwarded(request) || forwarded.isPassedOn(request)

export function takeCounterSync(context: WiringContext): CounterSync | undefined {
  const { clock, log, lease } = context
  const counters = takeSharedCounters(context)
  return counters && lease.open('counter sync', [counters], () => createCounterSync({ add: counters.add, clock, log }))
}

type OwnerForwarderOptions = {
  readonly team: Team
  readonly hosts: Pick<Hosts, 'locate' | 'keyOf'>
  readonly holds: (cid: CID) => boolean
  readonly limits: Pick<Limits, 'inFlight' | 'concurrency' | 'wouldRefuse'>
  /** Handles it in this process. */
  readonly here: (request: IncomingMessage, response: ServerResponse) => void
  /** Called if the owner is unreachable. */
  readonly refuse: (request: IncomingMessage, response: ServerResponse) => void
}

export function createOwnerForwarder({ team, hosts, holds, limits, here, refuse }: OwnerForwarderOptions) {
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

  function forwardToFetcher(path: string, request: IncomingMessage, response: ServerResponse): boolean {
    const fetcher = team.inProgress.fetcherOf(path)
    if (fetcher === undefined) return false
    team.forward(request, response, fetcher, () => here(request, response))
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
      if (forwardToFetcher(path, request, response)) return true
      const text = path.split('/', 3)[2] ?? ''
      const root = parseLeaf(text) ?? parseCid(text)
      if (root && isProvable(root) && !holds(root)) {
        // Another process may have begun during the disk read.
        if (forwardToFetcher(path, request, response)) return true
        const letGo = team.inProgress.hold(path)
        if (letGo) response.once('close', letGo)
      }
      return false
    },
  }
}
