// Assembles the front: limits, hosts, the fast path, and the routes of the public address.
import { readFileSync } from 'node:fs'
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { extname } from 'node:path'
import type { Router } from 'express'
import { version } from '../../config/package.ts'
import { logoTypes } from '../../config/sections/front.ts'
import { Failure } from '../../core/failure.ts'
import type { Route } from '../../http/add/add.ts'
import { createApp } from '../../http/app.ts'
import { type Compression, createCompression } from '../../http/codings/compression.ts'
import { createHotAnswers, type HotAnswers } from '../../http/content/hot-answers.ts'
import { createJsonRule, type JsonRule } from '../../http/content/json-rule.ts'
import { createFrontRoutes } from '../../http/front.ts'
import { createHosts } from '../../http/hosts/hosts.ts'
import type { Limits } from '../../http/limits/limits.ts'
import { createProxyRoute } from '../../http/proxy/proxy.ts'
import { createUnread, type Unread } from '../../http/unread.ts'
import { createRequestIds } from '../../http/wire/request-id.ts'
import { isHttp1 } from '../../http/wire/request-target.ts'
import type { RequestCounts } from '../../observe/requests.ts'
import type { TierStack } from '../../retrieval/tiers/tier-stack.ts'
import type { ReadSide } from '../reading.ts'
import { createElsewhere } from '../team/elsewhere.ts'
import type { WriteSide } from '../uploads.ts'
import type { Whole } from '../whole.ts'
import type { Public } from './public.ts'

export type Front = {
  readonly router: Router
  readonly handler: RequestListener
  /** For a server that parses requests itself. */
  readonly hot: HotAnswers['find']
  readonly serves: (host: string) => boolean
  readonly limits: Limits
  readonly unread: Unread
  readonly requests: RequestCounts
  readonly jsonRule: JsonRule
  readonly compression: Pick<Compression, 'counts'>
}

export function wireFront(
  { config, clock, lease, trace, team }: Whole,
  { retrieval, names, hot, denials }: ReadSide,
  {
    routes,
    tiers,
    stack,
    respond,
    requests,
    forwarded,
    limits,
    clientOf,
    watch,
    hotNotes,
    uploads,
  }: Public & {
    readonly uploads: WriteSide['offered']
    readonly routes: readonly Route[]
    readonly tiers: readonly string[]
    readonly stack: Pick<TierStack, 'holds'>
  },
): Front {
  const { responses, proxy } = config
  const { writeTimeout: stalled } = config.limits
  const unread = lease.take('unread', [config.limits.maxPendingResponseBytes], () =>
    createUnread(config.limits.maxPendingResponseBytes),
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
  const hotAnswers = createHotAnswers({
    hot,
    compression,
    limits,
    stalledMs: stalled,
    requestIds,
    keyOf: hosts.keyOf,
    counts: requests.hot,
    notes: hotNotes,
  })
  const jsonMaxBytes = responses.json.maxBytes
  const jsonRule = lease.take('json rule', [], createJsonRule)
  const { userAgent } = config.retrieval
  const proxied = proxy.length > 0 ? [createProxyRoute(proxy, { respond, userAgent, forwarded })] : []
  const answering = {
    retrieval,
    names,
    hot,
    compression,
    tiers,
    clock,
    limits,
    hosts,
    mode: responses.types,
    jsonMaxBytes,
    jsonRule,
    stalledMs: stalled,
    unread,
    denyRevision: () => denials.lists.revision,
    routes: [...routes, ...proxied],
    ownRoutes: createFrontRoutes({
      version,
      root: config.root,
      name: config.name,
      logo: logoOf(config.logo),
      contact: config.contact,
      ...uploads,
      subdomainHosts: Object.entries(config.hosts).flatMap(([host, one]) => (one.subdomains ? [host] : [])),
      respond,
    }),
    respond,
    requestIds,
    trace,
    clientOf,
    watch,
    holds: stack.holds,
  }
  const { router, handler } = createApp(answering)
  const elsewhere =
    team &&
    createElsewhere({
      team,
      hosts,
      holds: stack.holds,
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
      if (isPlain && hotAnswers.take(request, response)) return
      if (!elsewhere?.take(request, response)) handler(request, response)
    },
    hot: hotAnswers.find,
    serves: hosts.serves,
    limits,
    unread,
    requests,
    jsonRule,
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
