// The entry of the library: its types, and createGateway. library/make assembles the parts.
//
// A GET: http/content/response-cache serves the response cache, or http/app admits the request and
// http/content/answer handles it. content/resolve follows the path block by block. Each block comes
// from retrieval: a tier, or one flight (retrieval/flight) that races the upstreams in the order of
// retrieval/upstreams/pool. Only verified bytes reach the response and the tiers. A failure is a
// Failure, which http/wire/problem maps to a status. The RequestRecord records the outcome of a request.
//
// A POST: http/add checks size and token, upload/receive parses the body into blocks as it streams,
// upload/confirm sends them to the providers concurrently, and one commit of the store accepts the
// upload before the response. upload/background-delivery then delivers it to the holders that lack it.
import './config/package.ts'
import type { RequestListener } from 'node:http'
import { ConfigError } from './config/complaints.ts'
import { type Config, type ConfigInput, isConfig, type Parsed, parseConfigFor } from './config/load.ts'
import { type Clock, systemClock } from './core/clock.ts'
import type { Log } from './core/log.ts'
import type { CachedResponses } from './http/content/response-cache.ts'
import { createGatewayHandlers, type Middleware } from './http/gateway-handlers.ts'
import type { ParserRefusal } from './http/wire/request.ts'
import type { Added, AddOptions, AddSource } from './library/add.ts'
import type { GetOptions, Got } from './library/get.ts'
import { type LibraryInside, makeGateway, type OwnBackends, ownOf, refuseMisfits } from './library/make.ts'
import type { TraceEnvironment } from './observe/tracing.ts'
import type { Team } from './team/team.ts'
import { type ComponentRegistry, createComponentRegistry } from './wiring/components.ts'
import { processesOf, shareOf } from './wiring/worker.ts'

export type {
  LocalStore,
  PinState,
  Profile,
  Provider,
  ProviderTraits,
  Upload,
} from '../backends/pinning/contract.ts'
export type { Records, StoredRecord, Tier, TierTraits } from '../backends/tiers/contract.ts'
export {
  type DagWant,
  fromIterable,
  type ProbeReport,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamRequest,
  type UpstreamTraits,
} from '../backends/upstreams/contract.ts'
export { ConfigError } from './config/complaints.ts'
export { type Config, type ConfigInput, loadConfig, type Parsed, parseConfig } from './config/load.ts'
export { type Block, blockKey, maxBlockBytes, proves } from './core/cid.ts'
export { type Clock, systemClock } from './core/clock.ts'
export {
  Failure,
  type FailureKind,
  type FailureOptions,
  type FailureSource,
  isFailure,
} from './core/failure.ts'
export type { Log, LogLevel } from './core/log.ts'
export type { Middleware } from './http/gateway-handlers.ts'
export type { ParserRefusal } from './http/wire/request.ts'
export type { Added, AddOptions, AddSource } from './library/add.ts'
export type { GetOptions, Got } from './library/get.ts'
export type { OwnBackends } from './library/make.ts'

/**
 * A gateway in a program. Nothing is touched before `start`: no folder, network, timer or listener.
 */
export interface Gateway {
  /**
   * Handles everything of the public address, for `app.use` of an Express application, 5 or 4: at
   * its root, or below a path, where `hosts` with subdomains have no effect. Other requests pass to
   * the application, uncounted.
   */
  readonly router: Middleware
  /**
   * The router with the fast path before it and a 404 after it, for a server of its own:
   * `http.createServer(gateway.handler)`. Requests wait while the gateway starts, as at the router.
   * Before `start` and after `close` they get 503.
   */
  readonly handler: RequestListener
  /**
   * Looks up the response cache, for `cidgate serve`, which parses plain requests itself. Undefined
   * unless the gateway runs.
   */
  readonly hot: CachedResponses['take'] | undefined
  /** True if this host is served as a site or gateway, so that a client may CONNECT to it. */
  serves(host: string): boolean
  /**
   * Health, readiness and metrics, for an address of their own. Before the gateway runs, it reports
   * alive and not ready.
   */
  readonly admin: RequestListener
  /**
   * Opens the data folder and the stores, and starts the checks of upstreams and providers. Rejects
   * with a ConfigError or a Failure, after closing everything; create another gateway to try again.
   * A second call returns the result of the first.
   */
  start(): Promise<void>
  /**
   * Reads content without HTTP: `/ipfs/<cid>[/<path>]` or `/ipns/<name>[/<path>]`, encoded as in a
   * URL. Limits, denylists, types and timeouts are those of a GET; the listing of a directory is
   * JSON. Rejects with a Failure.
   */
  get(path: string, options?: GetOptions): Promise<Got>
  /**
   * Adds a file without HTTP; resolves when enough providers hold it and it is readable. Limits and
   * denylists are those of `POST /add`; no token is needed. Rejects with a Failure.
   */
  add(source: AddSource, options?: AddOptions): Promise<Added>
  /**
   * Counts and logs a request that your server refused (`clientError`), like the gateway's own
   * refusals. Before it runs, nothing is counted.
   */
  refused(refusal: ParserRefusal): void
  /**
   * Makes /readyz report the shutdown, so that the load balancer sends no more clients. Requests
   * are served as before.
   */
  drain(): void
  /** The parts for the next gateway: see `previous`. */
  readonly kept: ComponentRegistry
  /**
   * Ends everything that `start` began. Cuts off responses in progress: close your server first.
   */
  close(): Promise<void>
}

/** Options of a gateway in addition to its configuration. */
export type GatewayOptions = OwnBackends & {
  /** The log. Default: lines of JSON on standard error, from `log.level` on. */
  readonly log?: Log | undefined
  /**
   * OpenTelemetry variables (`OTEL_EXPORTER_OTLP_ENDPOINT` and others) for the export of spans. The
   * command line passes its environment; the default is none, since a program may have its own
   * tracing. With `previous`, those of the previous gateway.
   */
  readonly tracing?: TraceEnvironment | undefined
  /** A fake clock for tests. */
  readonly clock?: Clock | undefined
  /**
   * The gateway to replace. Parts with the same configuration in both are taken over: memory, the
   * health of upstreams, running uploads, counters. Close the old one when its last request is
   * answered.
   */
  readonly previous?: Pick<Gateway, 'kept'> | undefined
  /** The processes of this gateway; only for `cidgate serve`. */
  readonly team?: Team | undefined
}

/**
 * Creates a gateway, which `start` opens. `input`: the content of a configuration file as an
 * object, the result of `parseConfig` or `loadConfig`, or a modified copy of that. Throws a
 * ConfigError that names every mistake.
 */
export function createGateway(input: ConfigInput | Parsed = {}, options: GatewayOptions = {}): Gateway {
  const own = ownOf(options)
  const takers = own.providers.filter(({ traits }) => traits.takesBytes).length
  const whole = isConfig(input) ? input : parseConfigFor({ providers: own.providers.length, takers }, input)
  const { team } = options
  if (!team && processesOf(whole) > 1) throw new ConfigError([onlyServed])
  const config = team ? shareOf(whole, processesOf(whole)) : whole
  refuseMisfits(own, config)
  const { log, clock = systemClock, previous, tracing = {} } = options
  const kept = previous?.kept ?? createComponentRegistry()
  let isDraining = false
  const handlers = handlersOf(config, async () => {
    const made = await makeGateway({ config, log, clock, kept, own, tracing, team })
    if (isDraining) made.drain()
    return made
  })
  const { router, handler, admin, serves, start, close, current, running } = handlers
  return {
    ...{ router, handler, admin, serves, kept, start, close },
    get hot() {
      return current()?.hot
    },
    get: async (path, how) => (await running()).get(path, how),
    add: async (source, how) => (await running()).add(source, how),
    refused: (refusal) => current()?.refused(refusal),
    drain() {
      isDraining = true
      current()?.drain()
    },
  }
}

const onlyServed =
  'workers: a program has one process of its own; start more of them, or use `cidgate serve` (expected 1)'

const handlersOf = (
  { responses, limits, hosts, names, trustedProxies, upload, proxy, public: address }: Config,
  make: () => Promise<LibraryInside>,
) =>
  createGatewayHandlers({
    make,
    mode: responses.types,
    stalledMs: limits.writeTimeout,
    max: limits.maxConcurrentRequests,
    hosts,
    sites: names.dnslinkSites,
    trustedProxies,
    paths: [
      ...[
        '/add',
        '/openapi.json',
        ...(upload.kuboRpc ? ['/api/v0'] : []),
        ...(address ? ['/routing/v1', '/ipni/v1'] : []),
      ],
      ...proxy.map(({ path }) => path),
    ],
  })
