// Creates the configured providers, tiers and upstreams by the registry of their kind, or takes
// them over from the previous gateway if their entry is unchanged. Without I/O.

import type { SharedCounters } from '../../backends/counters/contract.ts'
import { counterKinds } from '../../backends/counters/index.ts'
import type { Provider, ReadBack } from '../../backends/pinning/contract.ts'
import { providerKinds } from '../../backends/pinning/index.ts'
import type { Tier } from '../../backends/tiers/contract.ts'
import { tierKinds } from '../../backends/tiers/index.ts'
import type { Upstream } from '../../backends/upstreams/contract.ts'
import { isInside, openIndexer, openRouter, type RouterClient, upstreamKinds } from '../../backends/upstreams/index.ts'
import type { Config } from '../config/load.ts'
import { Failure } from '../core/failure.ts'
import { UpstreamHealth } from '../retrieval/upstreams/upstream-health.ts'
import type { WiringContext } from './components.ts'

export { isInside, openIndexer, openRouter, type RouterClient }

export type WiredUpstream = {
  readonly upstream: Upstream
  /** The provider whose configuration it was derived from, if any. */
  readonly of: string | undefined
  readonly perMinute: number | undefined
  readonly perCidPerMinute: number | undefined
  readonly health: UpstreamHealth
}

/** Tiers fastest first, as configured; without circuit breakers or verification. */
export function wireBackends(context: WiringContext) {
  const { config, userAgent, own, clock, log, lease, role } = context
  const { pinning, cache, retrieval, data } = config
  const tierOf = ({ use, name, options }: ConfiguredBackend): Tier =>
    lease.open('tier', [use, name, options, data, userAgent, role], () =>
      kindOf(tierKinds, use).create(options, { name, userAgent, data, role, log, clock }),
    )
  return {
    providers: [...pinning.providers.map((entry) => takeProvider(context, entry)), ...own.providers],
    tiers: [...cache.tiers.map(tierOf), ...own.tiers],
    upstreams: [
      ...retrieval.upstreams.map((entry) => takeUpstream(context, { ...entry, of: undefined })),
      ...own.upstreams.map((upstream) => lease.take('upstream', [upstream], () => wireUpstream(context, upstream))),
      ...readBacks(context).map((entry) => takeUpstream(context, entry)),
    ],
  }
}

type ConfiguredBackend = { readonly use: string; readonly name: string; readonly options: unknown }

function takeProvider(
  { config: { data }, userAgent, clock, log, lease, folders, role, trace }: WiringContext,
  { use, name, options }: ConfiguredBackend,
): Provider {
  const parts = { name, userAgent, data, folders, role, log, clock, trace }
  return lease.open('provider', [use, name, options, data, userAgent, role], () =>
    kindOf(providerKinds, use).create(options, parts),
  )
}

/** Takes over its state too: its speed, request budget and health. */
function takeUpstream(
  context: WiringContext,
  entry: UpstreamEntry & { readonly of: string | undefined },
): WiredUpstream {
  const { userAgent, clock, log, lease, trace } = context
  const { use, name, options, ...limits } = entry
  return lease.take(
    'upstream',
    [entry, userAgent],
    () =>
      wireUpstream(context, kindOf(upstreamKinds, use).create(options, { name, userAgent, log, clock, trace }), limits),
    ({ upstream }) => upstream.close(),
  )
}

/**
 * Creates an upstream for a gateway that a router named. It is not probed: its first verified block
 * is the probe.
 */
export function joinFound(
  context: WiringContext,
  origin: string,
  { router, allowPrivate }: { readonly router: string; readonly allowPrivate: boolean },
): WiredUpstream & { readonly isFound: true } {
  const { userAgent, clock, log, trace } = context
  const kind = kindOf(upstreamKinds, 'trustless')
  // Asks for content that it holds only: a gateway that searches elsewhere could ask this one in
  // turn.
  const headers = { 'cache-control': 'only-if-cached' }
  const options = kind.options.parse({ url: origin, headers, maxConnections: foundConnections, allowPrivate })
  const name = `${new URL(origin).host} via ${router}`
  const upstream = kind.create(options, { name, isFound: true, userAgent, log, clock, trace })
  return { ...wireUpstream(context, upstream), isFound: true }
}

const foundConnections = 8

function wireUpstream(
  { clock, turns, log }: WiringContext,
  upstream: Upstream,
  { of, perMinute, perCidPerMinute }: Partial<Pick<WiredUpstream, 'of' | 'perMinute' | 'perCidPerMinute'>> = {},
): WiredUpstream {
  const { name, traits } = upstream
  const budget = { connections: traits.connections, perMinute, perCidPerMinute }
  return {
    upstream,
    health: new UpstreamHealth({ name, clock, turns, log, ...budget }),
    of,
    perMinute,
    perCidPerMinute,
  }
}

type UpstreamEntry = Config['retrieval']['upstreams'][number]

/**
 * Derives an upstream from each provider, unless the operator configured one with the same address.
 */
function readBacks({ config, own }: WiringContext): (UpstreamEntry & { readonly of: string })[] {
  const { pinning, retrieval } = config
  const names = new Set([...retrieval.upstreams, ...own.upstreams].map(({ name }) => name))
  const addresses = new Set(retrieval.upstreams.map(addressOf))
  return pinning.providers.flatMap(({ use: provider, name: of, options: given }) => {
    const found = readBackOf({ use: provider, options: given })
    if (!found || found === 'by itself') return []
    const { use, perMinute, perCidPerMinute } = found
    const options = kindOf(upstreamKinds, use).options.parse(found.options)
    const address = addressOf({ use, options })
    if (addresses.has(address)) return []
    addresses.add(address)
    let name = of
    while (names.has(name)) name = `provider-${name}`
    names.add(name)
    return [{ use, name, options, perMinute, perCidPerMinute, of }]
  })
}

/** The store for shared rate limits; undefined if this instance counts alone. */
export function takeSharedCounters({ config, userAgent, clock, lease }: WiringContext): SharedCounters | undefined {
  const { sharedStore: entry } = config.limits
  if (!entry) return undefined
  return lease.open('shared counters', [entry, userAgent], () =>
    kindOf(counterKinds, entry.use).create(entry.options, { userAgent, clock }),
  )
}

/** The upstream options for reading back from a provider, as its kind defines them. */
export function readBackOf({
  use,
  options,
}: Pick<ConfiguredBackend, 'use' | 'options'>): ReadBack | false | undefined | 'by itself' {
  const { readBack } = kindOf(providerKinds, use)
  return readBack ? readBack(options) : 'by itself'
}

/** Entries with the same address are the same upstream, even with different timeouts. */
function addressOf({ use, options }: { readonly use: string; readonly options: unknown }): string {
  const { url = '', headers = {} } = options as { url?: string; headers?: Readonly<Record<string, string>> }
  const sent = Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value])
  return JSON.stringify([use, new URL(url).href.replace(/\/+$/, ''), sent.sort()])
}

/** Local stores of providers that are no longer configured. */
export async function orphanedStores({
  data,
  pinning,
}: Config): Promise<(ConfiguredBackend & { readonly place: string })[]> {
  const all = Object.values(providerKinds).map(async ({ use, orphanedStores }) => {
    const configured = pinning.providers.filter((one) => one.use === use).map(({ options }) => options)
    return ((await orphanedStores?.(data, configured)) ?? []).map((store, index) => ({
      ...store,
      use,
      name: index === 0 ? 'pins' : `pins-${index + 1}`,
    }))
  })
  return (await Promise.all(all)).flat()
}

/** Opens them for reading only. */
export async function openOrphaned(context: WiringContext): Promise<Provider[]> {
  const stores = await orphanedStores(context.config).catch((error: unknown) => {
    context.log('error', 'pins.read-failed', { error: String(error) })
    return []
  })
  return stores.map((one) => takeProvider(context, one))
}

function kindOf<Kind>(kinds: Readonly<Record<string, Kind>>, use: string): Kind {
  const kind = kinds[use]
  if (!kind) throw new Failure('malformed', `there is no ${use}`, { source: 'ours' })
  return kind
}
