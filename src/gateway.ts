// The entry of the library: its types, and createGateway. The parts are put together in library/make.
//
// A GET: http/content/fast-path answers from the response cache, or http/app admits the request and http/content/answer makes
// the answer. content/resolve walks the path block by block; each block comes from retrieval: the tier stack, or one flight
// (retrieval/fetch) that races the upstreams in the order of retrieval/upstreams/order and lets only proved bytes through,
// into the answer and the tiers. A failure is a Failure, which http/wire/problem turns into a status. The request's Account
// records once what happened.
//
// A POST: http/add checks size and token, upload/intake parses the body as it streams into blocks, upload/confirm asks the
// providers side by side, and one commit of the store accepts the upload before the client gets its answer; upload/behind brings
// it to the holders that lack it.
import './config/node-version.ts'
import type { RequestListener } from 'node:http'
import { ConfigError } from './config/complaints.ts'
import { type Config, type ConfigInput, isConfig, type Parsed, parseConfigBeside } from './config/load.ts'
import { type Clock, systemClock } from './core/clock.ts'
import type { Log } from './core/log.ts'
import type { HotAnswers } from './http/content/hot-answers.ts'
import { createDoors, type Doors, type Middleware } from './http/doors.ts'
import type { ParserRefusal } from './http/wire/refusal.ts'
import type { Added, AddOptions, AddSource } from './library/add.ts'
import type { GetOptions, Got } from './library/get.ts'
import { createLifecycle, notStarted } from './library/lifecycle.ts'
import { makeGateway } from './library/make.ts'
import { type OwnBackends, ownOf, refuseBeside } from './library/own.ts'
import type { TraceEnvironment } from './observe/tracing/settings.ts'
import type { Team } from './team/team.ts'
import { createKept, type Kept } from './wiring/kept.ts'
import { processesOf, shareOf } from './wiring/team/shares.ts'

export type {
  LocalStore,
  PinState,
  Profile,
  Provider,
  ProviderTraits,
  Upload,
} from '../backends/pinning/contract.ts'
export type { Call, Records, StoredRecord, Tier, TierTraits } from '../backends/tiers/contract.ts'
export type { DagWant, ProbeReport, Upstream, UpstreamTraits } from '../backends/upstreams/contract.ts'
export { ConfigError } from './config/complaints.ts'
export { type Config, type ConfigInput, loadConfig, type Parsed, parseConfig } from './config/load.ts'
export { type Block, blockKey, maxBlockBytes, proves } from './core/block.ts'
export { type Clock, systemClock } from './core/clock.ts'
export {
  Failure,
  type FailureKind,
  type FailureOptions,
  type FailureSource,
  isFailure,
} from './core/failure.ts'
export type { Log, LogLevel } from './core/log.ts'
export type { Middleware } from './http/doors.ts'
export type { ParserRefusal } from './http/wire/refusal.ts'
export type { Added, AddOptions, AddSource } from './library/add.ts'
export type { GetOptions, Got } from './library/get.ts'
export type { OwnBackends } from './library/own.ts'

/** A gateway in a program. Nothing is touched before `start`: no folder, no network, no timer, no listener. */
export interface Gateway {
  /**
   * Everything the public address answers, for `app.use` of an Express application, 5 or 4: at its root, or below a path, where
   * `hosts` with subdomains have no effect. What is not ours goes on to the application, uncounted.
   */
  readonly router: Middleware
  /**
   * The same with the fast path in front and a 404 behind it, for a server of its own: `http.createServer(gateway.handler)`.
   * Requests wait while the gateway starts, as they do at the router. Before `start` and after `close` they are 503.
   */
  readonly handler: RequestListener
  /** For `cidgate serve`, which reads plain requests by itself: what the response cache answers. */
  readonly hot: HotAnswers['find']
  /** Whether this host is served here as a site or gateway of its own: what a client may CONNECT to. */
  serves(host: string): boolean
  /** Health, readiness and metrics: for an address of their own. Before the gateway runs, it is alive and not ready. */
  readonly admin: RequestListener
  /**
   * Opens it: the data folder, the stores, the journal of uploads, and the looks at upstreams and providers. Rejects with a
   * ConfigError or a Failure where that cannot be, and then leaves nothing open; make another one to try again. A second call
   * gives what the first one gave.
   */
  start(): Promise<void>
  /**
   * What a path leads to, without HTTP: `/ipfs/<cid>[/<path>]` or `/ipns/<name>[/<path>]`, encoded as in a URL. Limits, denials,
   * types and deadlines are those of a GET; the listing of a directory is JSON. Rejects with a Failure.
   */
  get(path: string, options?: GetOptions): Promise<Got>
  /**
   * Adds a file, without HTTP: what resolves is held by enough providers and readable. Limits and denials are those of
   * `POST /add`; it needs no token. Rejects with a Failure.
   */
  add(source: AddSource, options?: AddOptions): Promise<Added>
  /**
   * Counts and logs a request that your server refused (`clientError`) as the gateway does with those that it refuses itself.
   * Before it runs, nothing is counted.
   */
  refused(refusal: ParserRefusal): void
  /** Makes /readyz say that it is about to close, so that the load balancer sends no more clients. It answers as before. */
  drain(): void
  /** What the gateway after this one takes over: see `previous`. */
  readonly kept: Kept
  /** Ends everything that `start` began. What is being answered is cut: close your server first. */
  close(): Promise<void>
}

/** What a gateway is made with, beside its configuration. */
export type GatewayOptions = OwnBackends & {
  /** Where its log goes. By default lines of JSON on standard error, from `log.level` on. */
  readonly log?: Log | undefined
  /**
   * The variables of OpenTelemetry (`OTEL_EXPORTER_OTLP_ENDPOINT` and others): where spans are sent to. The command line
   * passes its environment; by default there are none, since a program may have its own. A gateway that takes over from
   * another one goes on with what that one had.
   */
  readonly tracing?: TraceEnvironment | undefined
  /** For tests that want time to pass. */
  readonly clock?: Clock | undefined
  /**
   * The gateway that this one takes over from. Parts with the same configuration in both go over unchanged: memory, the health
   * of upstreams, running uploads, counters. Close the old one when its last request is answered.
   */
  readonly previous?: Pick<Gateway, 'kept'> | undefined
  /** The processes that answer for this gateway: of `cidgate serve` alone. */
  readonly team?: Team | undefined
}

/**
 * Makes a gateway, which `start` opens. `input`: what a configuration file would say, as an object; or what `parseConfig` or
 * `loadConfig` gave, or a copy of that with other values in it. Throws a ConfigError that names every mistake.
 */
export function createGateway(input: ConfigInput | Parsed = {}, options: GatewayOptions = {}): Gateway {
  const own = ownOf(options)
  const takers = own.providers.filter(({ traits }) => traits.takesBytes).length
  const whole = isConfig(input) ? input : parseConfigBeside({ providers: own.providers.length, takers }, input)
  const { team } = options
  if (!team && processesOf(whole) > 1) throw new ConfigError([onlyServed])
  const config = team ? shareOf(whole, processesOf(whole)) : whole
  refuseBeside(own, config)
  const { log, clock = systemClock, previous, tracing = {} } = options
  const kept = previous?.kept ?? createKept()
  const doors = doorsOf(config)
  let isDraining = false
  const { start, close, current, running } = createLifecycle({
    make: () => makeGateway({ config, log, clock, kept, own, tracing, team }),
    onStart: doors.hold,
    onRunning(made) {
      if (isDraining) made.drain()
      doors.open(made)
    },
    onOver: doors.shut,
  })
  return {
    router: doors.router,
    handler: doors.handler,
    admin: doors.admin,
    hot: doors.hot,
    serves: doors.serves,
    kept,
    start,
    get: async (path, how) => (await running()).get(path, how),
    add: async (source, how) => (await running()).add(source, how),
    refused: (refusal) => current()?.refused(refusal),
    drain() {
      isDraining = true
      current()?.drain()
    },
    close,
  }
}

const onlyServed =
  'workers: a program has one process of its own; start more of them, or use `cidgate serve` (expected 1)'

const doorsOf = ({ responses, limits, hosts, names, trustedProxies, upload, proxy, public: address }: Config): Doors =>
  createDoors({
    mode: responses.types,
    stalledMs: limits.writeTimeout,
    most: limits.maxConcurrentRequests,
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
    why: notStarted(),
  })
