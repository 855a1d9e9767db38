// The strict schema of all options, composed of those of the gateway and of each backend. The
// configuration reference is generated from its descriptions (config/schema.json).
import { z } from 'zod'
import { type ProviderKinds, providerKinds } from '../../backends/pinning/index.ts'
import { type TallyKinds, tallyKinds } from '../../backends/tallies/index.ts'
import { type TierKinds, tierKinds } from '../../backends/tiers/index.ts'
import { indexerOptions, routerOptions, type UpstreamKinds, upstreamKinds } from '../../backends/upstreams/index.ts'
import { accessModes } from '../core/log.ts'
import { duration, size } from '../core/units.ts'
import { entries, entriesWith, entry } from './entries.ts'
import { version } from './package.ts'
import { announce, refuseAnnouncingNowhere } from './sections/announce.ts'
import { denylists } from './sections/denylists.ts'
import { contact, logo, name, publicAddress, root } from './sections/front.ts'
import { limits, refuseNothingToShare } from './sections/limits.ts'
import { names } from './sections/names.ts'
import { proxy } from './sections/proxy.ts'
import { refuseBesideThrough } from './sections/thin.ts'
import { upload } from './sections/upload.ts'
import { address, refuseOneAddressTwice } from './values/address.ts'
import { ranges } from './values/ranges.ts'
import { token } from './values/token.ts'

const count = (least = 1) => z.int().min(least)

/** Providers that a program passes in addition to the configured ones. */
export type Beside = { readonly providers: number; readonly takers: number }

const pinning = (beside: Beside) =>
  z
    .strictObject({
      minConfirmations: z
        .union([count(), z.literal('all')])
        .default(1)
        .describe('How many providers must hold an upload before it is answered with 200.'),
      timeout: duration()
        .refine((ms) => ms > 0, 'expected more than 0')
        .prefault('60s')
        .describe('How long one attempt at one provider may take.'),
      probeEvery: duration()
        .prefault('1m')
        .describe('Interval of the health checks of providers, for /readyz. 0: never.'),
      acceptWhileUnavailable: z
        .boolean()
        .default(false)
        .describe('While too few providers can be reached: keep the upload on this disk, answer 200, and retry.'),
      providers: entries<ProviderKinds>(providerKinds)
        .prefault([{ name: 'local', use: 'embedded' }])
        .describe('Where uploads are kept for good. None: this gateway takes no uploads.'),
    })
    .superRefine(({ providers }, context) => {
      const folders = new Set<unknown>()
      for (const [index, { use, options }] of providers.entries()) {
        // If one entry is malformed, zod passes the entries unparsed.
        if (use !== 'embedded' || options === undefined) continue
        const { path = '' } = options as { path?: string }
        const message = 'is the folder of another provider (expected a `path` of its own)'
        if (folders.has(path)) context.addIssue({ code: 'custom', path: ['providers', index, 'path'], message })
        folders.add(path)
      }
    })
    .superRefine(({ providers }, context) => {
      if (providers.length === 0 || beside.takers > 0) return
      if (providers.some(({ use }) => !providerKinds[use]?.fetches)) return
      const kinds = [...new Set(providers.map(({ use }) => use))].join(', ')
      const message = `no provider is given the bytes: ${kinds} only fetches them (expected another provider beside it)`
      context.addIssue({ code: 'custom', path: ['providers'], message })
    })
    .superRefine(({ minConfirmations, providers }, context) => {
      const max = providers.length + beside.providers
      if (minConfirmations === 'all' || max === 0 || minConfirmations <= max) return
      const message = `expected at most ${max}, the number of providers, or all`
      context.addIssue({ code: 'custom', path: ['minConfirmations'], message })
    })

const upstreamLimits = {
  perMinute: count().optional().describe('Requests a minute that it allows; beyond them others are asked.'),
  perCidPerMinute: count().optional().describe('Requests a minute it allows for one CID.'),
} as const

const retrieval = z.strictObject({
  timeout: duration()
    .prefault('5s')
    .describe('Time to the first byte; then the response is 404. Content on the disk of this machine is waited for.'),
  blockTimeout: duration()
    .prefault('30s')
    .describe('For each further block of a response that has begun; then the connection is reset.'),
  backgroundSearch: duration()
    .prefault('60s')
    .describe('How long the search goes on in the background after a 404. 0: not at all.'),
  hedgeDelay: z
    .union([z.literal('auto'), duration()])
    .default('auto')
    .describe(
      'When the next upstream is asked too, while nothing has come: after the usual time of this one (auto), a fixed time, or 0, at once. In the middle of an answer it is asked when the answer falls behind.',
    ),
  readAhead: size()
    .prefault('64MiB')
    .describe(
      'Memory for blocks that are fetched before their readers ask for them, over all requests. 0: the next block only.',
    ),
  userAgent: z
    .string()
    .min(1)
    .default(`cidgate/${version}`)
    .describe(
      'The User-Agent that is sent to upstreams, providers, stores, addresses of denylists and DNS over HTTPS.',
    ),
  probeEvery: duration()
    .prefault('10m')
    .describe(
      'How often upstreams and routers are looked at. 0: not on a schedule, all are taken as usable; one that failed lately is looked at all the same.',
    ),
  upstreams: entriesWith<UpstreamKinds, typeof upstreamLimits, 'trustless'>(upstreamKinds, upstreamLimits, 'trustless')
    .optional()
    .transform((list) => list ?? [])
    .describe(
      'The gateways that are asked for blocks that no tier has. Providers are asked too, for what they hold. Absent: config/upstreams.yaml. Empty: none (an archive).',
    ),
  routers: z
    .array(routerOptions)
    .max(4)
    .optional()
    .transform((list) => list ?? [])
    .superRefine((list, context) => {
      const names = list.map(({ name, url }) => name ?? new URL(url).host)
      for (const [index, name] of names.entries())
        if (names.indexOf(name) < index)
          context.addIssue({ code: 'custom', path: [index, 'name'], message: 'expected each name once' })
    })
    .describe(
      'Servers that say who has a CID (Delegated Routing V1), 4 at most: asked when the upstreams are late or do not have it, and at once without upstreams. The HTTP gateways that they name are asked too. Absent: none, or those of config/upstreams.yaml where `upstreams` is absent, too.',
    ),
  negativeCache: z
    .strictObject({
      initialTtl: duration().prefault('5s').describe('How long a CID stays there the first time.'),
      maxTtl: duration().prefault('60s').describe('The limit, as the time doubles with each further failure.'),
    })
    .refine(({ initialTtl, maxTtl }) => initialTtl <= maxTtl, {
      path: ['maxTtl'],
      error: 'expected at least as long as `initialTtl`',
    })
    .prefault({})
    .describe('CIDs that no upstream had lately: answered with 404 without asking.'),
})

const cache = z.strictObject({
  responses: z
    .strictObject({
      maxBytes: size().prefault('256MiB').describe('Memory for it. 0: none.'),
      maxItemBytes: size().prefault('1MiB').describe('The largest response in it.'),
    })
    .prefault({})
    .describe('Response cache: small responses, ready to be written to the socket.'),
  tiers: entries<TierKinds>(tierKinds)
    .prefault([
      { use: 'memory', maxBytes: '64MiB' },
      { use: 'disk', maxBytes: '10GiB' },
    ])
    .describe('Where proved blocks are kept, the fastest first. Faster tiers are filled from slower ones.'),
  writeQueueBytes: size()
    .prefault('16MiB')
    .describe('Memory for blocks that wait to be written to a slow tier. Blocks beyond it are not written there.'),
})

const responses = z.strictObject({
  types: z
    .enum(['api', 'web'])
    .default('api')
    .describe(
      'api: JSON as JSON and everything else as bytes; directories as JSON listings. web: what a browser expects: types by name and content, index.html, listings and errors as pages, `_redirects` on an origin of its own.',
    ),
  json: z
    .strictObject({
      maxBytes: size().prefault('8MiB').describe('The largest file that is parsed to see whether it is JSON.'),
    })
    .prefault({}),
  compression: z
    .boolean()
    .default(true)
    .describe(
      'Text and JSON of more than 1 KiB, and of 8 MiB at most, go out as br, zstd or gzip to clients that take it (Accept-Encoding). false: as they are, for a proxy that compresses.',
    ),
})

const hosts = z
  .record(
    z.string().regex(/^[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*$/, 'expected a host name without scheme and port'),
    z
      .strictObject({
        subdomains: z
          .boolean()
          .default(false)
          .describe(
            'Content gets an origin of its own: <cid>.ipfs.<host>; paths under /ipfs and /ipns are sent there.',
          ),
        trustless: z
          .boolean()
          .default(false)
          .describe('A trustless gateway: raw, car and ipns-record only. No pages, no uploads.'),
        provider: z
          .boolean()
          .optional()
          .describe(
            'Only blocks and CARs that the tiers hold, at once, and 404 for others: other nodes fetch from here, and nobody is asked for what they want. Absent: as `provider` says.',
          ),
      })
      .refine(({ subdomains, trustless }) => !(subdomains && trustless), {
        path: ['trustless'],
        error:
          'expected a host that is either for subdomains or trustless: sites on subdomains need deserialised answers',
      })
      .refine(({ subdomains, provider }) => !(subdomains && provider), {
        path: ['provider'],
        error:
          'expected a host that is either for subdomains or a provider: sites on subdomains need deserialised answers',
      }),
  )
  .default({})

const everything = (beside: Beside) =>
  z.strictObject({
    listen: address()
      .prefault('127.0.0.1:8080')
      .describe(
        'The public address: host and port, or `unix:/path/to.sock`, for its owner and group; other permissions as `unix:/path/to.sock,mode=0666`.',
      ),
    admin: z
      .union([z.literal(false), address()])
      .prefault('127.0.0.1:8081')
      .describe(
        'Health, readiness and metrics. false: none. A unix socket is for its owner alone, unless it has a mode.',
      ),
    adminAccess: z
      .strictObject({
        hosts: z
          .array(z.string().min(1))
          .default([])
          .describe(
            'Host names of the admin address. IP addresses, names without a dot, and names under .local, .internal, .localhost and .svc need not be listed.',
          ),
        tokens: z
          .array(token())
          .default([])
          .describe(
            'Clients on other machines send one as `Authorization: Bearer …`. Without tokens they get /healthz, /readyz and /metrics alone.',
          ),
      })
      .prefault({})
      .describe(
        'Access to the admin address. Clients on loopback or a unix socket, without a proxy between, need no token.',
      ),
    workers: z
      .union([z.literal('auto'), count().max(64)])
      .default(1)
      .describe(
        'How many processes answer requests, the first included, which owns the data folder. auto: one for each processor. Memory, requests in flight and requests a minute at upstreams are shared out among them. `cidgate serve` alone starts them.',
      ),
    data: z
      .string()
      .min(1)
      .default('./data')
      .describe(
        'The folder of the embedded stores; relative to where it is started. One process to a folder: a second one is refused.',
      ),
    public: publicAddress,
    announce: announce(indexerOptions),
    root,
    name,
    logo,
    contact,
    upload: upload.prefault({}).describe('POST /add.'),
    pinning: pinning(beside).prefault({}).describe('Where uploads are kept.'),
    retrieval: retrieval.prefault({}).describe('How content that no tier has is fetched.'),
    cache: cache.prefault({}).describe('Caches: memory, disk, Redis, S3.'),
    hosts: hosts.describe('Settings of single hosts. Every other host serves paths (/ipfs/…).'),
    provider: z
      .boolean()
      .default(false)
      .describe(
        'Every host answers only blocks and CARs that the tiers hold, as `hosts.<name>.provider` says. Hosts with subdomains do not.',
      ),
    trustedProxies: ranges()
      .default([])
      .describe(
        'Addresses or ranges of proxies in front (`unix`: what comes over a unix socket), whose X-Forwarded-Host, X-Forwarded-Proto and X-Forwarded-For are believed. They must set the first two themselves, and add to the third.',
      ),
    names: names.describe('How keys and domains under /ipns are resolved.'),
    responses: responses.prefault({}).describe('The form of responses.'),
    limits: limits(entry<TallyKinds>(tallyKinds)).prefault({}).describe('Limits for one client and for all together.'),
    proxy: proxy.describe('Paths that are proxied to services of yours, without verification. The longest match wins.'),
    denylists,
    log: z
      .strictObject({
        level: z.enum(['debug', 'info', 'warn', 'error']).default('info').describe('The lowest level that is logged.'),
        access: z
          .enum(accessModes)
          .default('errors')
          .describe(
            'The requests that get a line, `http.request`. errors: statuses from 400 on, and answers that were cut. sampled: those, and one of 100 others. all: each one, without failuresPerSecond.',
          ),
        failuresPerSecond: z
          .union([z.literal('none'), count()])
          .default(20)
          .describe(
            'Lines in a second for each kind of failure, after a burst of half a minute. The next line says how many were left out (leftOut). none: no bound.',
          ),
        stateEvery: duration()
          .prefault('15m')
          .describe(
            'How often a line, `gateway.state`, says how full each tier is, how each upstream does and what waits for which provider. 0: never.',
          ),
        format: z
          .enum(['auto', 'json', 'text'])
          .default('auto')
          .describe('text: for people. auto: that on a terminal, json elsewhere.'),
      })
      .prefault({})
      .describe('One line per event, on standard error.'),
  })

export const configSchemaBeside = (beside: Beside) =>
  everything(beside)
    .superRefine(refuseBesideThrough)
    .superRefine(refuseAnnouncingNowhere)
    .superRefine(refuseOneAddressTwice)
    .superRefine(refuseNothingToShare)

export const configSchema = configSchemaBeside({ providers: 0, takers: 0 })

/**
 * A validated configuration with all defaults: the result of `parseConfig` and `loadConfig`.
 * Frozen.
 */
export type Config = z.output<typeof configSchema> & Parsed

declare const parsed: unique symbol

/**
 * Marks a validated configuration, and its copies `{ ...config, listen: ':80' }`. For the compiler
 * only.
 */
export type Parsed = { readonly [parsed]: true }

/**
 * The input of a configuration: the keys of `cidgate.yaml`, with its units (`5s`, `10MiB`, or 0).
 * Backends are discriminated by `use`. See docs/configuration.md for each key.
 */
export interface ConfigInput extends DeepReadonly<z.input<typeof configSchema>> {}

type DeepReadonly<T> = T extends readonly (infer Item)[]
  ? readonly DeepReadonly<Item>[]
  : T extends object
    ? { readonly [Key in keyof T]: DeepReadonly<T[Key]> }
    : T
