// The configured routers, and the gateways that they name, which join the race like upstreams.
import type { Member } from '../retrieval/upstreams/pool.ts'
import { createFinder, type Finder } from '../routing/finder.ts'
import { isInside, joinFound, openRouter, type RouterClient, type WiredUpstream } from './backends.ts'
import type { Whole } from './whole.ts'

export type Finding = { readonly finder: Finder<Member>; readonly routers: readonly RouterClient[] }

/** Undefined if no router is configured. */
export function takeFinding(whole: Whole, upstreams: readonly WiredUpstream[]): Finding | undefined {
  const { config, clock, log, lease, trace } = whole
  const { routers: entries, userAgent, timeout: deadline, probeEvery, upstreams: configured } = config.retrieval
  if (entries.length === 0) return undefined
  const asked = new Set(configured.flatMap(({ options }) => originOf((options as { url?: string }).url)))
  for (const origin of originOf(config.public)) asked.add(origin)
  return lease.take(
    'finding',
    [entries, userAgent, deadline, probeEvery, [...asked], upstreams],
    () => {
      const routers = entries.map((entry) => openRouter(entry, { userAgent, clock, trace }))
      const mayBePrivate = new Map(routers.map(({ name }, index) => [name, entries[index]?.allowPrivate === true]))
      const finder = createFinder<Member>({
        routers: routers.map(({ name, providers }, index) => {
          const { timeout, allowPrivate, allowHttp, ports } = entries[index] as (typeof entries)[number]
          return { name, providers, timeoutMs: timeout, rules: { allowPrivate, allowHttp, ports, isInside } }
        }),
        join: (origin, router) => joinFound(whole, origin, { router, allowPrivate: mayBePrivate.get(router) === true }),
        leave: ({ upstream }) => upstream.close(),
        isKnown: (origin) => asked.has(origin),
        probeMs: probeEvery,
        clock,
        log,
      })
      return { finder, routers }
    },
    async ({ finder, routers }) => {
      await finder.close()
      await Promise.all(routers.map((router) => router.close()))
    },
  )
}

const originOf = (url: string | undefined): readonly string[] =>
  url !== undefined && URL.canParse(url) ? [new URL(url).origin] : []
