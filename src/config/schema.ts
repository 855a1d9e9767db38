// The strict schema of all options, composed of those of the gateway and of each backend. The
// configuration reference is generated from its descriptions (config/schema.json).

import { statSync } from 'node:fs'
import { isIP } from 'node:net'
import { extname } from 'node:path'
import { z } from 'zod'
import { profiles } from '../../backends/pinning/contract.ts'
import { type ProviderKinds, providerKinds } from '../../backends/pinning/index.ts'
import { type TallyKinds, tallyKinds } from '../../backends/tallies/index.ts'
import { type TierKinds, tierKinds } from '../../backends/tiers/index.ts'
import { indexerOptions, routerOptions, type UpstreamKinds, upstreamKinds } from '../../backends/upstreams/index.ts'
import { accessModes } from '../core/log.ts'
import { duration, hasNoUser, isUnfilled, serviceUrl, size, unfilled } from '../core/units.ts'
import type { Complaint } from './complaints.ts'
import { entries, entriesWith, entry } from './entries.ts'
import { version } from './package.ts'
import {
  address,
  addressText,
  contentPath,
  domain,
  listensOnLoopback,
  namedToken,
  ranges,
  refuseOneAddressTwice,
  token,
} from './values.ts'

const count = (min = 1) => z.int().min(min)

/** Providers that a program passes in addition to the configured ones. */
export type OwnProviders = { readonly providers: number; readonly takers: number }

const pinning = (beside: OwnProviders) =>
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

const expectedRoot = 'expected page, none, /ipfs/<cid>[/<path>], /ipns/<name>, or an http(s) address'

function isRoot(text: string): boolean {
  if (text === 'page' || text === 'none') return true
  const isAddress = /^https?:\/\//.test(text) && URL.canParse(text) && !/[^\x21-\x7e]/.test(text)
  return isAddress || contentPath().safeParse(text).success
}

const root = z
  .string({ error: expectedRoot })
  .refine(isRoot, expectedRoot)
  .default('page')
  .describe(
    'What GET / answers. page: a small page, or JSON for programs. none: 404. A content path or an http(s) address: a redirect to it.',
  )

const publicAddress = z
  .url({ protocol: /^https?$/, error: 'expected an address such as https://gw.example' })
  .refine((url) => URL.parse(url)?.href === `${URL.parse(url)?.origin}/`, {
    error: 'expected a scheme and a host alone: other nodes look for content at its root',
  })
  .optional()
  .describe(
    'The public address of this gateway, such as https://gw.example. With it, /routing/v1 names it as a provider of what is pinned here. Absent: /routing/v1 names nobody.',
  )

const contact = z
  .union([z.email(), z.url({ protocol: /^(https?|mailto)$/ })], {
    error: 'expected an e-mail address, or an address of a page such as https://gw.example/abuse',
  })
  .optional()
  .describe('E-mail address or page of the operator, shown on its pages.')

/** Types of a logo, by the ending of its file. */
export const logoTypes: Readonly<Record<string, string>> = {
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.jpg': 'image/jpeg',
  '.webp': 'image/webp',
}
const maxLogoBytes = 256 * 1024

const isLogo = (file: string): boolean =>
  extname(file).toLowerCase() in logoTypes &&
  (statSync(file, { throwIfNoEntry: false })?.size ?? maxLogoBytes + 1) <= maxLogoBytes

const name = z
  .string()
  .trim()
  .min(1)
  .max(80)
  .default('IPFS gateway')
  .describe('The name of this gateway on its first page.')

const logo = z
  .string()
  .refine(isLogo, `expected an existing ${Object.keys(logoTypes).join(', ')} file of at most 256 KiB`)
  .optional()
  .describe(
    'A picture of the operator, for the first page and as the icon of the site. Relative to where the gateway is started.',
  )

/** `indexer`: the options of one. */
const announce = <Indexer extends z.ZodType>(indexer: Indexer) =>
  z
    .union(
      [
        z.literal(false),
        z.strictObject({
          indexers: z
            .array(indexer)
            .min(1)
            .max(8)
            .prefault([{ url: 'https://cid.contact' }] as z.input<z.ZodArray<Indexer>>)
            .describe('Who is told, and asked whether it took the chain.'),
          every: duration()
            .prefault('1m')
            .describe('How long what was pinned and unpinned is gathered before it is published.'),
          entries: z
            .enum(['roots', 'blocks'])
            .default('roots')
            .describe('roots: the CIDs that uploads were answered with. blocks: every block below them, too.'),
        }),
      ],
      { error: 'expected false, or a mapping of indexers, every and entries; {} for the defaults' },
    )
    .default(false)
    .describe(
      'Publishes what is pinned on this disk to indexers (IPNI), under `public`, so that Kubo, rainbow, helia and lassie find it. All of it becomes public. The key is identity.pem in the data folder; of several instances under one name one announces.',
    )

const atAddress = z.strictObject({
  url: z.url({ protocol: /^https?$/ }).describe('The address of the list.'),
  required: z
    .boolean()
    .default(true)
    .describe(
      'false: while the list cannot be had and no copy of it is there, the gateway starts without it and goes on asking.',
    ),
  copy: z
    .string()
    .min(1)
    .optional()
    .describe('A file with an earlier text of the list, for the first start at which the address gives none.'),
})

const denylists = z
  .array(
    z.union([z.string().min(1), atAddress], {
      error: 'expected a file, an address, or { url, required, copy }',
    }),
  )
  .default([])
  .describe('Files or URLs of compact denylists (IPIP-383).')

const perClient = z
  .strictObject({
    perMinute: count().optional(),
    burst: count().optional(),
    misses: count().optional(),
    exports: count().optional(),
    uploads: count().optional(),
  })
  .refine((said) => Object.keys(said).length > 0, 'expected at least one of perMinute, misses, exports and uploads')
  .refine(({ burst, perMinute }) => burst === undefined || perMinute !== undefined, {
    path: ['burst'],
    error: 'expected `perMinute` beside it',
  })

/** `sharedStore`: the backends that it can name. */
const limits = <SharedStore extends z.ZodType>(sharedStore: SharedStore) =>
  z.strictObject({
    maxConcurrentRequests: count()
      .default(4096)
      .describe('Requests being answered at once; the next is answered with 503.'),
    maxEventLoopDelay: duration()
      .prefault('100ms')
      .describe(
        'While the event loop is later than this and more than 128 requests are in progress, fewer requests are let in, and the others answered with 503, so that answers from memory go on. 0: never.',
      ),
    perClient: z
      .union([z.literal('none'), perClient], {
        error: ({ input }) =>
          typeof input === 'object'
            ? undefined
            : `expected none, or requests a minute: { perMinute: ${typeof input === 'number' && input >= 1 ? Math.floor(input) : 600} }, perhaps with burst`,
      })
      .default('none')
      .describe(
        'Of one address (IPv6: of one /64), a minute: requests, how many of them may come at once (burst), and of these those for content that no tier has (misses), for a CAR or tar (exports), and uploads. More is answered with 429. Behind proxies see `trustedProxies`.',
      ),
    sharedStore: sharedStore
      .optional()
      .describe(
        'Redis in which several instances share the counts of `perClient` and of token quotas. No request waits for it: an instance learns the counts of the others within about a second. While it is unreachable, each counts alone.',
      ),
    maxConnections: count()
      .default(8192)
      .describe(
        'Connections of clients at once, and three quarters of the files that this process may open at most. The longest idle one makes room for the next; where none is idle, the next is answered with 503.',
      ),
    maxConnectionsPerClient: z
      .union([z.literal('auto'), count()])
      .default('auto')
      .describe(
        'Of these, at most so many from one address (IPv6: one /64). auto: half of them. Addresses of `trustedProxies` and unix sockets are not limited.',
      ),
    headersTimeout: duration().prefault('10s').describe('A request must have sent its headers by then.'),
    keepAliveTimeout: duration()
      .prefault('75s')
      .describe('How long an idle connection is kept; longer than your load balancer does.'),
    writeTimeout: duration().prefault('60s').describe('A client that reads nothing for this long is cut off.'),
    maxPendingResponseBytes: size()
      .prefault('512MiB')
      .describe(
        'Memory for blocks that wait for their clients, 250 ms and more for 64 KiB; what comes next may take as much again. Beyond that the client that has kept one waiting the longest is cut off.',
      ),
    shutdownTimeout: duration()
      .prefault('30s')
      .describe('How long requests in progress may continue after a stop or a reload.'),
    shutdownDelay: duration()
      .prefault(0)
      .describe(
        'After a stop: how long connections are still accepted while /readyz says 503, so that a load balancer sees it first. Longer than the time between its probes.',
      ),
  })

const dnsServer = z.string().refine(isDnsServer, {
  error:
    'expected https://…/dns-query without a user or password, or the address of a DNS server such as 9.9.9.9 or [2620:fe::fe]:53',
})

function isDnsServer(text: string): boolean {
  if (/^https?:\/\//.test(text)) return URL.canParse(text) && hasNoUser(text)
  if (isIP(text) !== 0) return true
  const [, bracketed, plain, port] = /^(?:\[([^\]]+)\]|([^:]+))(?::(\d{1,5}))?$/.exec(text) ?? []
  return isIP(bracketed ?? plain ?? '') !== 0 && Number(port ?? 53) <= 65_535
}

const links = z
  .record(z.string().regex(domain, { error: 'expected a domain such as docs.house.example' }), contentPath())
  .superRefine((all, context) => {
    const spelled = new Set<string>()
    for (const name of Object.keys(all)) {
      const one = name.toLowerCase().replace(/\.$/, '')
      if (spelled.has(one)) context.addIssue({ code: 'custom', path: [name], message: 'expected each domain once' })
      spelled.add(one)
    }
  })

const names = z
  .strictObject({
    dns: z
      .union([z.literal('system'), z.array(dnsServer).min(1)], {
        error: 'expected system, or a list of https://…/dns-query and addresses of DNS servers',
      })
      .default('system')
      .describe('DNS servers for DNSLink, asked one after another until one answers.'),
    static: links
      .default({})
      .describe('Domains with a fixed target, not looked up in DNS: for tests and internal names.'),
    dnslinkSites: z
      .boolean()
      .default(false)
      .describe('Whether a host with a DNSLink serves that site: https://<domain>/ is /ipns/<domain>/.'),
    timeout: duration().prefault('5s').describe('For each step from a name to content; then the answer is 404.'),
    ttl: z
      .strictObject({
        min: duration().prefault('5s').describe('The shortest time between two lookups of a name.'),
        max: duration().prefault('1h').describe('The longest time for which a record is used, whatever its own TTL.'),
      })
      .refine(({ min, max }) => min <= max, { path: ['max'], error: 'expected at least as long as `min`' })
      .prefault({})
      .describe('Bounds of the TTL that a record or DNS gives. Past its end a record is never believed.'),
    negativeTtl: duration().prefault('5s').describe('How long a failed lookup is cached.'),
    maxEntries: z
      .int()
      .min(1)
      .default(10_000)
      .describe('Names in the cache; records of keys are also kept in the database.'),
  })
  .prefault({})

const ours: readonly string[] = ['/ipfs', '/ipns', '/add', '/openapi.json', '/api/v0', '/routing/v1', '/ipni/v1']
const methods = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'] as const
const isWithin = (path: string, outer: string): boolean => path === outer || path.startsWith(`${outer}/`)

const proxied = z.strictObject({
  path: z
    .string()
    .regex(/^(\/[A-Za-z0-9._~-]+)+$/, 'expected a path such as /status, without a slash at its end')
    .refine((path) => !/\/\.{1,2}(\/|$)/.test(path), 'expected a path without . and .. segments')
    .refine((path) => !ours.some((own) => isWithin(path, own) || isWithin(own, path)), {
      error: `expected none of the gateway's own paths (${ours.join(', ')})`,
    })
    .describe('This path and all below it are passed on.'),
  to: serviceUrl()
    .refine((url) => !/[?#]/.test(url), 'expected an address without ? and #')
    .describe('Where to: what follows `path` is put behind it. Its redirects are never followed here.'),
  methods: z.array(z.enum(methods)).min(1).default(['GET', 'HEAD']).describe('What is passed on; the rest is 405.'),
  sendAuthorization: z.boolean().default(false).describe('Whether Authorization and cookies pass in both directions.'),
  maxBytes: size().prefault('1MiB').describe('The largest body that is passed on.'),
  timeout: duration().prefault('30s').describe('Longest time without a byte from the service.'),
})

const proxy = z
  .array(proxied)
  .superRefine((entries, context) => {
    for (const [index, { path }] of entries.entries())
      if (entries.findIndex((one) => one.path === path) < index)
        context.addIssue({
          code: 'custom',
          path: [index, 'path'],
          message: `expected each path once; ${path} is there twice`,
        })
  })
  .default([])

const authorization = () =>
  z
    .string()
    .min(1)
    .refine((text) => !text.split(' ').some(isUnfilled), unfilled)

const upload = z
  .strictObject({
    maxBytes: size().prefault('100MiB').describe('The largest upload; more is answered with 413.'),
    profile: z
      .enum(profiles)
      .default('unixfs-v1-2025')
      .describe('How a file becomes blocks, and so its CID (IPIP-499). Change it, and the same file gets another CID.'),
    auth: z
      .union([z.enum(['none', 'open']), z.strictObject({ tokens: z.array(namedToken()).min(1) })])
      .default('none')
      .describe(
        'Which clients may upload: those that send one of these as `Authorization: Bearer …`. none: all clients of this machine; refused where `listen` is another address than loopback, or a unix socket. open: all clients.',
      ),
    concurrency: z
      .int()
      .min(1)
      .default(64)
      .describe('Uploads received at once; the next waits up to 5 s, then gets 503.'),
    perClient: z
      .union([z.literal('auto'), z.int().min(1)])
      .default('auto')
      .describe(
        'Of these, at most so many from one address (IPv6: one /64). auto: three times the free ones, so that one client never has all. Behind proxies see `trustedProxies`.',
      ),
    idleTimeout: duration()
      .refine((ms) => ms > 0, 'expected more than 0')
      .prefault('30s')
      .describe('An upload that sends nothing for this long gets 408.'),
    maxPendingBytes: size()
      .optional()
      .describe(
        'Bytes of uploads in progress; beyond them uploads get 503. By default 1GiB, or twice `maxBytes` if that is more.',
      ),
    schemas: z
      .record(z.string().regex(/^[a-z0-9-]+$/), z.record(z.string(), z.unknown()))
      .default({})
      .describe(
        'JSON Schemas (2020-12) of your own for POST /add?schema=<name>, beside evidence, policy and dispute-template.',
      ),
    forwardTo: z
      .union([
        serviceUrl().transform((url): { url: string; authorization?: string | undefined } => ({ url })),
        z.strictObject({ url: serviceUrl(), authorization: authorization().optional() }),
      ])
      .optional()
      .describe(
        'Thin mode: uploads go on to this /add, or to the /api/v0 of a Kubo, as they arrive; nothing is kept here.',
      ),
    kuboRpc: z
      .boolean()
      .default(false)
      .describe(
        "A part of Kubo's RPC API under /api/v0: add, block/get, block/put, cat, dag/export, dag/import, get, ls, pin/add, pin/ls, pin/rm.",
      ),
    minRate: size()
      .prefault('1KiB')
      .describe(
        'Bytes a second, on average, below which an upload is ended as stuck. Eight times that for each upload that waits for a slot, over the last seconds; the slowest go first.',
      ),
  })
  .transform(({ maxPendingBytes, ...rest }) => ({
    ...rest,
    maxPendingBytes: maxPendingBytes ?? Math.max(2 ** 30, 2 * rest.maxBytes),
  }))
  .refine(({ maxBytes, maxPendingBytes }) => maxBytes <= maxPendingBytes, {
    path: ['maxPendingBytes'],
    error: 'expected at least `maxBytes`, or the largest uploads would never be taken',
  })

const everything = (beside: OwnProviders) =>
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

type Sections = z.output<ReturnType<typeof everything>>
type Refinement = z.core.$RefinementCtx

function refuseAnnouncingNowhere({ announce: said, public: address, pinning }: Sections, context: Refinement): void {
  if (said === false) return
  const issue = (message: string, path: string[]) => context.addIssue({ code: 'custom', path, message })
  if (address === undefined)
    return issue('others could not reach this gateway (expected `public`, its https address)', ['announce'])
  const { protocol, hostname } = new URL(address)
  // Plain HTTP is for tests on one machine: nodes accept it at literal addresses only.
  if (protocol !== 'https:' && isIP(hostname.replace(/^\[|\]$/g, '')) === 0)
    issue('other nodes ask a name over https alone (expected https://…)', ['public'])
  if (!pinning.providers.some(({ use }) => use === 'embedded'))
    issue('nothing is kept on this disk that could be announced (expected an `embedded` provider)', ['announce'])
}

/** Refuses a shared store without limits to share. */
function refuseNothingToShare({ limits, upload }: Sections, context: Refinement): void {
  const tokens = typeof upload.auth === 'string' ? [] : upload.auth.tokens
  const hasQuota = tokens.some((one) => typeof one === 'object' && one.quota !== undefined)
  if (limits.sharedStore === undefined || limits.perClient !== 'none' || hasQuota) return
  const message = 'there is nothing to count (expected `limits.perClient`, or a token with a quota)'
  context.addIssue({ code: 'custom', path: ['limits', 'sharedStore'], message })
}

/** Refuses options without effect in thin mode, because the operator expects one. */
function refuseWithForwarding({ upload, pinning }: Sections, context: Refinement): void {
  if (upload.forwardTo === undefined) return
  const refuse = (path: (string | number)[], message: string) => context.addIssue({ code: 'custom', path, message })
  if (upload.kuboRpc)
    refuse(
      ['upload', 'kuboRpc'],
      'expected false beside `upload.forwardTo`: its uploads are kept here, and thin mode keeps none',
    )
  if (pinning.minConfirmations !== 1)
    refuse(['pinning', 'minConfirmations'], 'expected nothing else than 1 beside `upload.forwardTo`')
  if (pinning.acceptWhileUnavailable)
    refuse(['pinning', 'acceptWhileUnavailable'], 'expected false beside `upload.forwardTo`, which has no queue')
  for (const [index, { use }] of pinning.providers.entries()) {
    // An embedded provider may hold earlier uploads, which are read.
    if (use === 'embedded') continue
    const message = 'gets nothing beside `upload.forwardTo` (expected no provider, or an embedded one to be read)'
    refuse(['pinning', 'providers', index], message)
  }
}

/**
 * Refuses uploads without a token on a public address, unless the operator confirms them, because
 * uploads are stored permanently. Only for a gateway with its own listener: a program that mounts
 * the router decides which clients reach it.
 */
export function openUploads({ listen, upload, pinning }: Sections): Complaint[] {
  const takesUploads = upload.forwardTo !== undefined || pinning.providers.length > 0
  if (upload.auth !== 'none' || !takesUploads || listensOnLoopback(listen)) return []
  const what = `every client that reaches ${addressText(listen)} could upload, and fill the disk (expected { tokens: [...] }, or open if that is meant)`
  return [{ path: ['upload', 'auth'], what }]
}

export const configSchemaFor = (beside: OwnProviders) =>
  everything(beside)
    .superRefine(refuseWithForwarding)
    .superRefine(refuseAnnouncingNowhere)
    .superRefine(refuseOneAddressTwice)
    .superRefine(refuseNothingToShare)

export const configSchema = configSchemaFor({ providers: 0, takers: 0 })

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
