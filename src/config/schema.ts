// The strict schema of all options, composed of those of the gateway and of each backend. The
// configuration reference is generated from its descriptions (config/schema.json).

import { statSync } from 'node:fs'
import { isIP } from 'node:net'
import { extname } from 'node:path'
import { z } from 'zod'
import { type CounterKinds, counterKinds } from '../../backends/counters/index.ts'
import { profiles } from '../../backends/pinning/contract.ts'
import { type ProviderKinds, providerKinds } from '../../backends/pinning/index.ts'
import { type TierKinds, tierKinds } from '../../backends/tiers/index.ts'
import { indexerOptions, routerOptions, type UpstreamKinds, upstreamKinds } from '../../backends/upstreams/index.ts'
import { accessModes } from '../core/log.ts'
import { duration, hasNoUser, isUnfilled, serviceUrl, size, unfilled } from '../core/units.ts'
import type { Complaint } from './complaints.ts'
import { entries, entry } from './entries.ts'
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
        .describe('Number of providers that must hold an upload before the 200.'),
      timeout: duration()
        .refine((ms) => ms > 0, 'expected more than 0')
        .prefault('60s')
        .describe('Timeout of one attempt at one provider.'),
      probeEvery: duration()
        .prefault('1m')
        .describe('Interval of the health checks of providers, for /readyz. 0: never.'),
      acceptWhileUnavailable: z
        .boolean()
        .default(false)
        .describe(
          'Accepts uploads while too few providers are reachable: stores them on this disk, responds 200, and retries.',
        ),
      providers: entries<ProviderKinds>(providerKinds)
        .prefault([{ name: 'local', use: 'embedded' }])
        .describe('Providers that store uploads permanently. Empty: no uploads.'),
    })
    .superRefine(({ providers }, context) => {
      const folders = new Set<unknown>()
      for (const [index, { use, options }] of providers.entries()) {
        // If one entry is malformed, zod passes the entries unparsed.
        if (use !== 'embedded' || options === undefined) continue
        const { path = '' } = options as { path?: string }
        const message = 'is the folder of another provider (expected its own `path`)'
        if (folders.has(path)) context.addIssue({ code: 'custom', path: ['providers', index, 'path'], message })
        folders.add(path)
      }
    })
    .superRefine(({ providers }, context) => {
      if (providers.length === 0 || beside.takers > 0) return
      if (providers.some(({ use }) => !providerKinds[use]?.fetchesByCid)) return
      const kinds = [...new Set(providers.map(({ use }) => use))].join(', ')
      const message = `no provider gets the bytes: ${kinds} only fetches them (expected another provider in addition)`
      context.addIssue({ code: 'custom', path: ['providers'], message })
    })
    .superRefine(({ minConfirmations, providers }, context) => {
      const max = providers.length + beside.providers
      if (minConfirmations === 'all' || max === 0 || minConfirmations <= max) return
      const message = `expected at most ${max}, the number of providers, or all`
      context.addIssue({ code: 'custom', path: ['minConfirmations'], message })
    })

const upstreamLimits = {
  perMinute: count().optional().describe('Requests per minute that it allows; beyond the limit others are asked.'),
  perCidPerMinute: count().optional().describe('Requests per minute that it allows for one CID.'),
} as const

const retrieval = z.strictObject({
  timeout: duration()
    .prefault('5s')
    .describe('Time to the first byte, then 404. Content on the disk of this machine may take longer.'),
  blockTimeout: duration()
    .prefault('30s')
    .describe('Time for each further block of a response; then the connection is reset.'),
  backgroundSearch: duration().prefault('60s').describe('Duration of the background search after a 404. 0: none.'),
  hedgeDelay: z
    .union([z.literal('auto'), duration()])
    .default('auto')
    .describe(
      'Delay before the next upstream is asked too while the first is silent. auto: from its response times; 0: at once. Within a response, the next one is asked when the first falls behind.',
    ),
  readAhead: size().prefault('64MiB').describe('Memory for prefetched blocks of all requests. 0: the next block only.'),
  userAgent: z
    .string()
    .min(1)
    .default(`cidgate/${version}`)
    .describe('User-Agent of requests to upstreams, providers, stores, denylists and DNS over HTTPS.'),
  probeEvery: duration()
    .prefault('10m')
    .describe(
      'Interval of health checks of upstreams and routers. 0: none, except after a failure; all count as usable.',
    ),
  upstreams: entries<UpstreamKinds, typeof upstreamLimits, 'trustless'>(upstreamKinds, upstreamLimits, 'trustless')
    .optional()
    .transform((list) => list ?? [])
    .describe(
      'Gateways that are asked for blocks that no tier has, in addition to providers. Absent: config/upstreams.yaml. Empty: none (an archive).',
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
      'Delegated Routing V1 servers, up to 4: asked when the upstreams are late or lack a CID, at once without upstreams. The HTTP gateways that they name are asked too. Absent: none, or those of config/upstreams.yaml if `upstreams` is absent too.',
    ),
  negativeCache: z
    .strictObject({
      initialTtl: duration().prefault('5s').describe('Lifetime of the first entry of a CID.'),
      maxTtl: duration().prefault('60s').describe('Maximum lifetime; it doubles with each further failure.'),
    })
    .refine(({ initialTtl, maxTtl }) => initialTtl <= maxTtl, {
      path: ['maxTtl'],
      error: 'expected at least as long as `initialTtl`',
    })
    .prefault({})
    .describe('Negative cache: CIDs that no upstream had recently are 404 without a request.'),
})

const cache = z.strictObject({
  responses: z
    .strictObject({
      maxBytes: size().prefault('256MiB').describe('Memory of the response cache. 0: none.'),
      maxItemBytes: size().prefault('1MiB').describe('Largest cached response.'),
    })
    .prefault({})
    .describe('Response cache: complete small responses in memory.'),
  tiers: entries<TierKinds>(tierKinds)
    .prefault([
      { use: 'memory', maxBytes: '64MiB' },
      { use: 'disk', maxBytes: '10GiB' },
    ])
    .describe('Caches of verified blocks, fastest first. Faster tiers are filled from slower ones.'),
  writeQueueBytes: size()
    .prefault('16MiB')
    .describe('Memory of the write queue of each slow tier; beyond it blocks are not written there.'),
})

const responses = z.strictObject({
  types: z
    .enum(['api', 'web'])
    .default('api')
    .describe(
      'api: JSON and bytes, directories as JSON listings, failures as 404. web: media types by name and content, index.html, listings and errors as pages, `_redirects` on an own origin.',
    ),
  json: z
    .strictObject({
      maxBytes: size().prefault('8MiB').describe('Largest file that is tested for JSON.'),
    })
    .prefault({}),
  compression: z
    .boolean()
    .default(true)
    .describe(
      'Compresses text and JSON from 1 KiB to 8 MiB with br, zstd or gzip (Accept-Encoding). false: for a proxy that compresses.',
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
          .describe('Content has its own origin, <cid>.ipfs.<host>; paths under /ipfs and /ipns redirect there.'),
        trustless: z
          .boolean()
          .default(false)
          .describe('Trustless gateway: raw, car and ipns-record only; no pages, no uploads.'),
        provider: z
          .boolean()
          .optional()
          .describe(
            'Serves other nodes: blocks and CARs from the tiers only, 404 for the rest, and no request to upstreams. Default: `provider`.',
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
    'Response to GET /. page: the front page, or JSON for programs. none: 404. A content path or http(s) URL: a redirect.',
  )

const publicAddress = z
  .url({ protocol: /^https?$/, error: 'expected an address such as https://gw.example' })
  .refine((url) => URL.parse(url)?.href === `${URL.parse(url)?.origin}/`, {
    error: 'expected only a scheme and a host: other nodes request content at its root',
  })
  .optional()
  .describe(
    'Public URL of this gateway, such as https://gw.example. /routing/v1 names it as a provider of its pins. Absent: no /routing/v1.',
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
  .describe('Name of this gateway on its front page.')

const logo = z
  .string()
  .refine(isLogo, `expected an existing ${Object.keys(logoTypes).join(', ')} file of at most 256 KiB`)
  .optional()
  .describe('Image file for the front page and as the icon of the site. Relative to the working directory.')

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
            .describe('Indexers that get announcements, and are asked for confirmation.'),
          every: duration().prefault('1m').describe('Interval in which changes are published together.'),
          entries: z
            .enum(['roots', 'blocks'])
            .default('roots')
            .describe('roots: the CIDs of uploads. blocks: every block below them too.'),
        }),
      ],
      { error: 'expected false, or a mapping of indexers, every and entries; {} for the defaults' },
    )
    .default(false)
    .describe(
      'Publishes the pins on this disk to indexers (IPNI), under `public`, so that Kubo, rainbow, helia and lassie find them. All of them become public. The key is identity.pem in the data folder; of several instances under one name, one may announce.',
    )

const atAddress = z.strictObject({
  url: z.url({ protocol: /^https?$/ }).describe('URL of the list.'),
  required: z
    .boolean()
    .default(true)
    .describe('false: the gateway starts without the list while it is unavailable without a copy, and retries.'),
  copy: z
    .string()
    .min(1)
    .optional()
    .describe('File with an earlier text of the list, for a first start while the URL fails.'),
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
    error: 'expected it together with `perMinute`',
  })

/** `sharedStore`: the backends that it can name. */
const limits = <SharedStore extends z.ZodType>(sharedStore: SharedStore) =>
  z.strictObject({
    maxConcurrentRequests: count().default(4096).describe('Limit of concurrent requests; beyond it 503.'),
    maxEventLoopDelay: duration()
      .prefault('100ms')
      .describe(
        'Event-loop delay above which fewer requests are admitted, down to 128; the others get 503, so that cached responses stay fast. 0: off.',
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
        'Rate limits per minute and address (IPv6: /64): requests with a burst, and of these cache misses, exports (CAR, tar) and uploads. Beyond a limit 429. Behind proxies set `trustedProxies`.',
      ),
    sharedStore: sharedStore
      .optional()
      .describe(
        'Redis that shares the counts of `perClient` and of token quotas between instances, within about a second. No request waits for it; while it is unreachable, each instance counts alone.',
      ),
    maxConnections: count()
      .default(8192)
      .describe(
        'Limit of client connections, at most three quarters of the file descriptors. A new one replaces the longest idle one; if none is idle, it gets 503.',
      ),
    maxConnectionsPerClient: z
      .union([z.literal('auto'), count()])
      .default('auto')
      .describe(
        'Limit of connections per address (IPv6: /64). auto: half of `maxConnections`. `trustedProxies` and unix sockets are exempt.',
      ),
    headersTimeout: duration().prefault('10s').describe('Time for the headers of a request.'),
    keepAliveTimeout: duration()
      .prefault('75s')
      .describe('Lifetime of an idle connection; set it longer than that of your load balancer.'),
    writeTimeout: duration().prefault('60s').describe('Time after which a client that reads nothing is disconnected.'),
    maxPendingResponseBytes: size()
      .prefault('512MiB')
      .describe(
        'Memory for responses to slow clients (over 250 ms for 64 KiB). Beyond it the longest waiting client is disconnected.',
      ),
    shutdownTimeout: duration().prefault('30s').describe('Time for requests in progress after a stop or a reload.'),
    shutdownDelay: duration()
      .prefault(0)
      .describe(
        'Time after a stop in which connections are accepted while /readyz is 503. Set it longer than the probe interval of your load balancer.',
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
      .describe('DNS servers for DNSLink, tried in order.'),
    static: links.default({}).describe('Domains with a fixed target instead of DNS, for tests and internal names.'),
    dnslinkSites: z
      .boolean()
      .default(false)
      .describe('Serves the DNSLink site of the Host: https://<domain>/ is /ipns/<domain>/.'),
    timeout: duration().prefault('5s').describe('Time for each step from a name to content; then 404.'),
    ttl: z
      .strictObject({
        min: duration().prefault('5s').describe('Minimum time between two lookups of a name.'),
        max: duration().prefault('1h').describe('Maximum time for which a record is used.'),
      })
      .refine(({ min, max }) => min <= max, { path: ['max'], error: 'expected at least as long as `min`' })
      .prefault({})
      .describe('Bounds of the TTL of a record or DNS answer. An expired record is never used.'),
    negativeTtl: duration().prefault('5s').describe('Cache lifetime of a failed lookup.'),
    maxEntries: z
      .int()
      .min(1)
      .default(10_000)
      .describe('Limit of cached names; records of keys are also stored in the database.'),
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
    .describe('Proxied path, with everything below it.'),
  to: serviceUrl()
    .refine((url) => !/[?#]/.test(url), 'expected an address without ? and #')
    .describe('Target URL; the rest of the path is appended. Redirects are not followed.'),
  methods: z.array(z.enum(methods)).min(1).default(['GET', 'HEAD']).describe('Allowed methods; others are 405.'),
  sendAuthorization: z.boolean().default(false).describe('Forwards Authorization and cookies in both directions.'),
  maxBytes: size().prefault('1MiB').describe('Largest request body.'),
  timeout: duration().prefault('30s').describe('Time without a byte from the service.'),
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
    maxBytes: size().prefault('100MiB').describe('Largest upload; beyond it 413.'),
    profile: z
      .enum(profiles)
      .default('unixfs-v1-2025')
      .describe(
        'Layout of the blocks, which determines the CID (IPIP-499): another profile gives the same file another CID.',
      ),
    auth: z
      .union([z.enum(['none', 'open']), z.strictObject({ tokens: z.array(namedToken()).min(1) })])
      .default('none')
      .describe(
        'Clients that may upload. tokens: those that send one as `Authorization: Bearer …`. none: those of this machine, if `listen` is loopback. open: all.',
      ),
    concurrency: z
      .int()
      .min(1)
      .default(64)
      .describe('Limit of concurrent uploads; as many more wait up to 5 s, others get 503.'),
    perClient: z
      .union([z.literal('auto'), z.int().min(1)])
      .default('auto')
      .describe(
        'Limit of concurrent uploads per address (IPv6: /64). auto: three times the free slots, so that one client never has all. Behind proxies set `trustedProxies`.',
      ),
    idleTimeout: duration()
      .refine((ms) => ms > 0, 'expected more than 0')
      .prefault('30s')
      .describe('Time after which a silent upload gets 408.'),
    maxPendingBytes: size()
      .optional()
      .describe('Limit of bytes of uploads in progress; beyond it 503. Default: 1GiB, or twice `maxBytes` if more.'),
    schemas: z
      .record(z.string().regex(/^[a-z0-9-]+$/), z.record(z.string(), z.unknown()))
      .default({})
      .describe(
        'Your JSON Schemas (2020-12) for POST /add?schema=<name>, in addition to evidence, policy and dispute-template.',
      ),
    forwardTo: z
      .union([
        serviceUrl().transform((url): { url: string; authorization?: string | undefined } => ({ url })),
        z.strictObject({ url: serviceUrl(), authorization: authorization().optional() }),
      ])
      .optional()
      .describe(
        'Thin mode: forwards uploads to this /add, or to the /api/v0 of a Kubo, as they arrive; stores nothing.',
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
        'Bytes per second below which an upload is ended as stuck; eight times that for each upload waiting for a slot, the slowest first.',
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
        'Public address: host and port, or `unix:/path/to.sock`, for its owner and group; other permissions as `unix:/path/to.sock,mode=0666`.',
      ),
    admin: z
      .union([z.literal(false), address()])
      .prefault('127.0.0.1:8081')
      .describe(
        'Address of health, readiness, metrics and the dashboard. false: none. A unix socket is for its owner only, unless it has a mode.',
      ),
    adminAccess: z
      .strictObject({
        hosts: z
          .array(z.string().min(1))
          .default([])
          .describe(
            'Host names of the admin address, in addition to IP addresses, names without a dot, and names under .local, .internal, .localhost and .svc.',
          ),
        tokens: z
          .array(token())
          .default([])
          .describe(
            'Tokens for clients on other machines (`Authorization: Bearer …`). Without tokens these get /healthz, /readyz and /metrics only.',
          ),
      })
      .prefault({})
      .describe('Access to the admin address. Clients on loopback or a unix socket without a proxy need no token.'),
    workers: z
      .union([z.literal('auto'), count().max(64)])
      .default(1)
      .describe(
        'Number of processes, including the first, which owns the data folder. auto: one per processor. They divide memory, concurrent requests and requests per minute at upstreams. Only `cidgate serve` starts them.',
      ),
    data: z
      .string()
      .min(1)
      .default('./data')
      .describe(
        'Folder of the embedded stores, relative to the working directory. A second process over it is refused.',
      ),
    public: publicAddress,
    announce: announce(indexerOptions),
    root,
    name,
    logo,
    contact,
    upload: upload.prefault({}).describe('POST /add.'),
    pinning: pinning(beside).prefault({}).describe('Storage of uploads.'),
    retrieval: retrieval.prefault({}).describe('Fetching of content that no tier has.'),
    cache: cache.prefault({}).describe('Caches: memory, disk, Redis, S3.'),
    hosts: hosts.describe('Settings of single hosts. Other hosts serve paths (/ipfs/…).'),
    provider: z
      .boolean()
      .default(false)
      .describe('Default of `hosts.<name>.provider`, except for hosts with subdomains.'),
    trustedProxies: ranges()
      .default([])
      .describe(
        'Addresses or ranges of your proxies (`unix`: unix sockets), whose X-Forwarded-Host, X-Forwarded-Proto and X-Forwarded-For are trusted. They must set the first two and append to the third.',
      ),
    names: names.describe('Resolution of keys and domains under /ipns.'),
    responses: responses.prefault({}).describe('Form of responses.'),
    limits: limits(entry<CounterKinds>(counterKinds)).prefault({}).describe('Limits per client and in total.'),
    proxy: proxy.describe('Paths proxied to your services, without verification. The longest match wins.'),
    denylists,
    log: z
      .strictObject({
        level: z.enum(['debug', 'info', 'warn', 'error']).default('info').describe('Lowest level in the log.'),
        access: z
          .enum(accessModes)
          .default('errors')
          .describe(
            'Requests with a line `http.request`. errors: statuses from 400 on, and aborted responses. sampled: also one in 100 others. all: each one, without failuresPerSecond.',
          ),
        failuresPerSecond: z
          .union([z.literal('none'), count()])
          .default(20)
          .describe(
            'Lines per second and kind of failure, after a burst of half a minute. The next line counts the omitted ones (leftOut). none: no limit.',
          ),
        stateEvery: duration()
          .prefault('15m')
          .describe('Interval of the line `gateway.state`, with tiers, upstreams and pending uploads. 0: never.'),
        format: z
          .enum(['auto', 'json', 'text'])
          .default('auto')
          .describe('text: for people. auto: text on a terminal, otherwise json.'),
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
    issue('this disk stores nothing to announce (expected an `embedded` provider)', ['announce'])
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
    refuse(['upload', 'kuboRpc'], 'expected false with `upload.forwardTo`: thin mode stores no uploads')
  if (pinning.minConfirmations !== 1) refuse(['pinning', 'minConfirmations'], 'expected 1 with `upload.forwardTo`')
  if (pinning.acceptWhileUnavailable)
    refuse(['pinning', 'acceptWhileUnavailable'], 'expected false with `upload.forwardTo`, which has no queue')
  for (const [index, { use }] of pinning.providers.entries()) {
    // An embedded provider may hold earlier uploads, which are read.
    if (use === 'embedded') continue
    const message = 'gets nothing with `upload.forwardTo` (expected no provider, or an embedded one to be read)'
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
