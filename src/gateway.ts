// The gateway put together, and the entry of the library.
//
// A GET: http/lane answers from hot, or http/app lets the request in and http/answer makes the answer. content/resolve
// walks the path block by block; each block comes from retrieval/retrieval: the tier stack, or one shared flight
// (block-flight, dag-flight) that races the upstreams in the order that retrieval/order gives and lets only proved bytes
// through, into the answer and the tiers. What fails leaves as a Failure and becomes a status in http/problem. Whatever
// happened is written down once, in the request's Account.
//
// A POST: http/add looks at size and token, upload/receive takes the body apart as it streams, upload/import makes blocks
// of it into a spool, upload/confirm asks the providers side by side and writes down in the journal where each stands; what
// is held goes into the tiers (upload/fill) before the answer is given.
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { join } from 'node:path'
import express, { type Router } from 'express'
import type { CID } from 'multiformats/cid'
import { type Clock, systemClock } from './clock.ts'
import { ConfigError } from './config/complaints.ts'
import { type Config, parseConfig } from './config/load.ts'
import { loadDenylists } from './deny/sources.ts'
import { Failure } from './failure.ts'
import { createAdmin } from './http/admin.ts'
import { createApp } from './http/app.ts'
import { createForwarded } from './http/forwarded.ts'
import { createHosts } from './http/hosts.ts'
import { createHot } from './http/hot.ts'
import { createLane } from './http/lane.ts'
import { createLimits } from './http/limits.ts'
import { createProxyRoute } from './http/proxy.ts'
import { createNames } from './names/names.ts'
import { startChecks } from './observe/checks.ts'
import { createLog, type Log } from './observe/log.ts'
import { createMetrics } from './observe/metrics.ts'
import { readiness } from './observe/readiness.ts'
import { createRequestCounts, describeGateway } from './observe/readings.ts'
import { createParts } from './parts.ts'
import { type GuardedTier, guarded } from './retrieval/guarded-tier.ts'
import { createPool } from './retrieval/pool.ts'
import { startProbes } from './retrieval/probes.ts'
import { proved } from './retrieval/proved-tier.ts'
import { createRetrieval } from './retrieval/retrieval.ts'
import { createTierStack } from './retrieval/tier-stack.ts'
import { createPinsTier } from './upload/pins-tier.ts'
import { createSpools, spoolFolder } from './upload/spool.ts'
import { probeTarget } from './upload/through-probe.ts'
import { createWriteSide } from './write-side.ts'

export { type Config, loadConfig, parseConfig } from './config/load.ts'

export interface Gateway {
  /** Everything the public address answers, as a router that any Express application can mount at its root. */
  readonly router: Router
  /** The same with the fast lane in front, for a server of its own: `http.createServer(gateway.handler)`. */
  readonly handler: RequestListener
  /** Whether this host is served here as a site or gateway of its own: what a client may CONNECT to. */
  serves(host: string): boolean
  /** Health, readiness and metrics: for an address of their own. */
  readonly admin: RequestListener
  /** Says in /readyz that it is about to close, so that nobody is sent here any more. */
  drain(): void
  close(): Promise<void>
}

/** `clock`: for tests that want time to pass. */
export type GatewayOptions = { readonly log?: Log; readonly clock?: Clock }

/** `input`: what `parseConfig` or `loadConfig` gave, or what a configuration file would say, as an object. */
export async function createGateway(
  input: Config | Record<string, unknown> = {},
  options: GatewayOptions = {},
): Promise<Gateway> {
  const config = isParsed(input) ? input : parseConfig(input)
  const log = options.log ?? createLog(config.log.level)
  const clock = options.clock ?? systemClock
  const closers: Closer[] = []
  try {
    return await putTogether(config, log, clock, closers)
  } catch (error) {
    // A configuration that is refused leaves nothing behind that goes on working.
    await closeAll(closers).catch((cause: unknown) => log('error', 'gateway.close', { error: String(cause) }))
    throw error
  }
}

type Closer = () => unknown

/** The last that was made is closed first; one that fails keeps none of the others open. */
async function closeAll(closers: readonly Closer[]): Promise<void> {
  const failed: unknown[] = []
  for (const close of closers.toReversed())
    try {
      await close()
    } catch (error) {
      failed.push(error)
    }
  if (failed.length > 0) throw failed[0]
}

async function putTogether(config: Config, log: Log, clock: Clock, closers: Closer[]): Promise<Gateway> {
  const { userAgent } = config.retrieval

  const { providers, tiers: bare, members } = createParts(config, { log, clock })
  closers.push(() => Promise.all(members.map(({ upstream }) => upstream.close())))
  closers.push(() => Promise.all(providers.map((provider) => provider.close())))
  const pins = providers.flatMap(({ name, store }) =>
    store ? [createPinsTier(name, store, { keeps: true, log })] : [],
  )
  // What is acknowledged and not yet everywhere, where no provider of ours keeps it on this disk.
  const spools = createSpools(spoolFolder(config.data))
  if (providers.length === 0 || providers.some(({ traits }) => !traits.local))
    pins.push(createPinsTier('uploads', spools.store, { keeps: false, log }))

  const corrupt = new Map<string, number>()
  const onCorrupt = (tier: string) => corrupt.set(tier, (corrupt.get(tier) ?? 0) + 1)
  const guards: GuardedTier[] = []
  const tiers = bare.map((tier) => {
    if (tier.traits.trusted) return tier
    const guard = guarded(tier, { clock, log })
    guards.push(guard)
    return proved(guard, { log, onCorrupt })
  })
  // What is pinned here is looked for before any cache but memory: it is as near, and it is surely whole.
  const isMemory = ({ traits }: { traits: { persistent: boolean } }) => !traits.persistent
  const layers = [...tiers.filter(isMemory), ...pins, ...tiers.filter((tier) => !isMemory(tier))]
  const stack = createTierStack(layers, { clock, log, fillBytes: config.cache.fillBytes })

  const pool = createPool({ members, hedge: config.retrieval.hedge, clock, log })
  const retrieval = createRetrieval({
    stack,
    pool,
    clock,
    log,
    deadlineMs: config.retrieval.deadline,
    blockDeadlineMs: config.retrieval.blockDeadline,
    keepLookingMs: config.retrieval.keepLooking,
    notFound: { firstMs: config.retrieval.notFound.first, mostMs: config.retrieval.notFound.most },
  })
  closers.push(() => retrieval.close())

  const hot = createHot(config.cache.hot)
  const denylists = await loadDenylists(config.denylists, {
    clock,
    log,
    userAgent,
    folder: join(config.data, 'denylists'),
    onChange: () => hot.clear(),
  }).catch((error: unknown) => {
    throw new ConfigError([`denylists: ${error instanceof Error ? error.message : error}`])
  })
  closers.push(() => denylists.close())
  const visit = (cid: CID, rest: readonly string[]) => {
    const denial = denylists.path(cid, rest)
    if (denial) throw denied(denial)
  }
  const names = createNames({
    settings: config.names,
    pool,
    folder: join(config.data, 'names'),
    visit(name, rest) {
      const denial = denylists.belowName(name, rest)
      if (denial) throw denied(denial)
    },
    userAgent,
    clock,
    log,
  })
  closers.push(() => names.close())
  const forwarded = createForwarded(config.trustedProxies)
  const limits = createLimits({ ...config.limits, addressOf: forwarded.addressOf, clock })
  const hosts = createHosts({
    table: config.hosts,
    hasLink: config.names.sites ? names.hasLink : undefined,
    forwarded,
  })
  const lane = createLane(hot, limits, config.limits.stalled, hosts.keyOf)
  const requests = createRequestCounts()
  const onError = (error: unknown) =>
    log('error', 'request.broke', { error: error instanceof Error ? error.stack : String(error) })
  const writing = createWriteSide({ config, providers, spools, retrieval, visit, clock, log, onError })
  closers.push(() => writing.close())
  const proxied = createProxyRoute(config.proxy, {
    mode: config.responses.types,
    userAgent,
    forwarded,
  })
  const router = createApp({
    retrieval,
    names,
    hot,
    clock,
    limits,
    hosts,
    mode: config.responses.types,
    jsonMaxBytes: config.responses.json.maxBytes,
    stalledMs: config.limits.stalled,
    visit,
    denyRevision: () => denylists.revision,
    routes: config.proxy.length > 0 ? [...writing.routes, proxied] : writing.routes,
    onEnd: requests.ended,
    onError,
  })
  const app = express()
  app.disable('x-powered-by')
  app.disable('etag')
  app.enable('case sensitive routing')
  app.use(router)

  const metrics = createMetrics()
  describeGateway(metrics, { requests, hot, lane, limits, pool, stack, retrieval, names, corrupt, denylists })
  let draining = false
  const { through } = config.upload
  const looked = through
    ? [{ name: `through ${new URL(through.url).host}`, look: (signal: AbortSignal) => probeTarget(through, signal) }]
    : providers.map((provider) => ({
        name: `provider ${provider.name}`,
        look: (signal: AbortSignal) => provider.probe(signal),
      }))
  const checks = startChecks(looked, { everyMs: config.pinning.probeEvery, clock, log })
  closers.push(() => checks.close())
  const { confirm, queue } = config.pinning
  const admin = createAdmin({
    metrics,
    uploads: writing.confirmation,
    ready: () =>
      readiness({
        draining,
        providers: looked.length,
        confirm: through ? 1 : confirm,
        queue: !through && queue,
        checks,
        tiers: guards,
        upstreams: pool.members.map(({ upstream: { name }, standing }) => ({ name, state: standing.state('').state })),
      }),
  })
  const probes = startProbes({ pool, everyMs: config.retrieval.probeEvery, clock, log })
  closers.push(() => probes.close())
  // What a store answers now is worth a line in the log, and no reason not to start: it may come back.
  stack.probeAll().then(
    (failures) => {
      for (const { tier, failure } of failures) log('warn', 'tier.unusable', { tier, why: failure.message })
    },
    () => {},
  )

  return {
    router,
    handler: (request: IncomingMessage, response: ServerResponse) => {
      if (!lane.take(request, response)) app(request, response)
    },
    serves: hosts.serves,
    admin,
    drain() {
      draining = true
    },
    close: () => closeAll(closers),
  }
}

const isParsed = (input: object): input is Config => Object.isFrozen(input)

function denied({ list, legal, reason }: { list: string; legal: boolean; reason: string | undefined }): Failure {
  const why = reason === undefined ? '' : `: ${reason}`
  return new Failure('denied', `the list ${list} of this gateway's operator denies it${why}`, {
    source: 'ours',
    facts: { legal },
  })
}
