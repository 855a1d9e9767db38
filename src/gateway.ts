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
import './config/node-version.ts'
import type { RequestListener } from 'node:http'
import type { Router } from 'express'
import { type ConfigInput, isConfig, type Parsed, parseConfig } from './config/load.ts'
import { type Clock, systemClock } from './core/clock.ts'
import { createLog, type Log } from './core/log.ts'
import { createSpools, spoolFolder } from './upload/spool/spool.ts'
import { type Admin, wireAdmin } from './wiring/admin.ts'
import { openLeft, wireBackends } from './wiring/backends.ts'
import { ownDataFolder } from './wiring/data-folder.ts'
import { wireFront } from './wiring/front.ts'
import { createKept, type Kept } from './wiring/kept.ts'
import { tellLeft } from './wiring/left.ts'
import { wirePublic } from './wiring/public.ts'
import { wireReading } from './wiring/reading.ts'
import { wireTiers } from './wiring/tiers.ts'
import { wireUploads } from './wiring/uploads.ts'
import type { Whole } from './wiring/whole.ts'

export type {
  BlockFile,
  LocalStore,
  PinState,
  Profile,
  Provider,
  ProviderTraits,
  Upload,
} from '../backends/pinning/contract.ts'
export type { Call, Held, Records, Tier, TierTraits } from '../backends/tiers/contract.ts'
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

export interface Gateway {
  /**
   * Everything the public address answers, as a router for an Express application: at its root, or below a path, where
   * `hosts` with subdomains have no effect. What is not ours goes on to the application, uncounted.
   */
  readonly router: Router
  /** The same with the fast lane in front and a 404 behind it, for a server of its own: `http.createServer(gateway.handler)`. */
  readonly handler: RequestListener
  /** Whether this host is served here as a site or gateway of its own: what a client may CONNECT to. */
  serves(host: string): boolean
  /** Health, readiness and metrics: for an address of their own. */
  readonly admin: RequestListener
  /** Says in /readyz that it is about to close, so that nobody is sent here any more. */
  drain(): void
  /** What the gateway after this one takes over: see `previous`. */
  readonly kept: Kept
  close(): Promise<void>
}

export type GatewayOptions = {
  readonly log?: Log
  /** For tests that want time to pass. */
  readonly clock?: Clock
  /**
   * The gateway that this one takes over from. Whatever is configured there as it is here goes over as it is: memory, what is
   * known of upstreams, uploads under way, counters. Close that one when its last request is answered.
   */
  readonly previous?: Pick<Gateway, 'kept'> | undefined
}

/**
 * `input`: what a configuration file would say, as an object; or what `parseConfig` or `loadConfig` gave, or a copy of that
 * with other values in it. Throws a ConfigError that names every mistake.
 */
export async function createGateway(
  input: ConfigInput | Parsed = {},
  { log, clock = systemClock, previous }: GatewayOptions = {},
): Promise<Gateway> {
  const config = isConfig(input) ? input : parseConfig(input)
  const own = log ?? createLog(config.log.level)
  const kept = previous?.kept ?? createKept()
  const lease = kept.lease()
  const logs = lease.take('log', [], () => ({ newest: own }))
  try {
    const newest: Log = (...line) => logs.newest(...line)
    const whole = { config, clock, lease, log: Object.assign(newest, { lost: () => logs.newest.lost?.() ?? 0 }) }
    const { begin, ...parts } = await putTogether(whole)
    logs.newest = own
    begin()
    return { ...parts, kept, close: lease.end }
  } catch (error) {
    // A configuration that is refused leaves nothing behind that goes on working.
    await lease.end().catch((cause: unknown) => own('error', 'gateway.close', { error: String(cause) }))
    throw error
  }
}

type Ready = Omit<Gateway, 'kept' | 'close'> & Pick<Admin, 'begin'>

async function putTogether(whole: Whole): Promise<Ready> {
  const { config, lease } = whole
  await ownDataFolder(whole)
  const { providers, tiers: bare, members } = wireBackends(whole)
  const left = await openLeft(whole)
  const spools = lease.take('spools', [config.data], () => createSpools(spoolFolder(config.data)))
  const tiers = wireTiers(whole, bare, { providers, left, spools })
  const reading = await wireReading(whole, { ...tiers, members })
  const shared = wirePublic(whole)
  const writing = wireUploads(whole, { providers, left, spools, reading, ...shared })
  const front = wireFront(whole, reading, { ...shared, routes: writing.routes, stack: tiers.stack })
  const { router, handler, serves } = front
  const { handler: admin, drain, begin } = wireAdmin(whole, { providers, tiers, reading, writing, front })
  // What was acknowledged is never 404, not even to whoever comes first.
  await writing.open
  return {
    router,
    handler,
    serves,
    admin,
    drain,
    begin() {
      begin()
      reading.denials.begin()
      tellLeft(whole, providers, left)
    },
  }
}
