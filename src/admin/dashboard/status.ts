// Builds the response of GET /status from the counters of the metrics, in words for operators.
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { Labels, Sample } from '../../observe/metrics.ts'
import type { RecentFailures } from '../../observe/requests.ts'
import { timesOf } from '../../observe/requests.ts'
import type { Member } from '../../retrieval/upstreams/pool.ts'
import type { Waiting } from '../../store/store.ts'
import { type HttpParts, nothingWaits, type TierParts, type UploadParts } from '../metrics.ts'
import type { Readiness } from '../readiness.ts'
import { alertsOf } from './alerts.ts'
import type { PendingUploads, Provider, Requests, Status, Tier, Times, Upstream } from './shape.ts'

type StatusParts = {
  readonly version: string
  readonly startedAt: number
  readonly clock: Clock
  readonly ready: () => Readiness
  readonly http: HttpParts
  readonly pool: { readonly members: readonly Member[] }
  readonly finder?:
    | { found(): readonly { readonly member: Member }[]; routers(): readonly Status['routers'][number][] }
    | undefined
  readonly announced?: (() => Status['announced']) | undefined
  readonly tiers: TierParts
  readonly uploads: UploadParts
  /** Names of the providers. */
  readonly providers: readonly string[]
  /** False in thin mode. */
  readonly hasPins: boolean
  readonly takes: Status['takes']
  readonly processes?: (() => Status['processes']) | undefined
  readonly history: { list(): Status['history'] }
  readonly failures: RecentFailures
}

const maxUploads = 50
// Rounding keeps values stable between polls, so that an unchanged status is a 304.
const roundMs = 1_000
const roundBytes = 1024 * 1024

export async function readStatus(parts: StatusParts): Promise<Status> {
  const { http, uploads, tiers, clock } = parts
  const { ready, draining, uploads: taken, checks } = parts.ready()
  const { responses } = http
  const disk = await uploads.disk()
  const waiting = (await uploads.waiting?.()) ?? nothingWaits
  const facts = {
    version: parts.version,
    startedAt: Math.round(parts.startedAt),
    ready,
    draining,
    uploads: taken,
    takes: parts.takes,
    checks,
    processes: parts.processes?.(),
    requests: requestsOf(http),
    history: parts.history.list(),
    upstreams: parts.pool.members.map((member) => upstreamOf(member, clock)),
    found: (parts.finder?.found() ?? []).map(({ member }) => upstreamOf(member, clock)),
    routers: parts.finder?.routers() ?? [],
    announced: parts.announced?.(),
    tiers: tiersOf(tiers),
    responses: { bytes: responses.bytes, limitBytes: responses.maxBytes, items: responses.items },
    providers: providersOf(parts.providers, uploads, waiting),
    pending: await pendingOf(uploads, waiting),
    pins: parts.hasPins ? pinsOf(uploads) : undefined,
    disk: disk && { ...disk, freeBytes: disk.freeBytes - (disk.freeBytes % roundBytes) },
    failures: parts.failures.list(),
  }
  return { ...facts, alerts: alertsOf(facts, clock.now()) }
}

const sumOf = (counts: Readonly<Record<string, number>>): number =>
  Object.values(counts).reduce((all, one) => all + one, 0)

function requestsOf({ requests, limits }: HttpParts): Requests {
  const byStatus: Record<string, number> = {}
  const bySource: Record<string, number> = {}
  let total = 0
  for (const { labels = {}, value } of requests.requests()) {
    const { route, source = 'none', status = '' } = labels
    total += value
    count(byStatus, `${status[0]}xx`, value)
    if ((route === 'ipfs' || route === 'ipns') && Number(status) < 400) count(bySource, source, value)
  }
  return {
    ...{ total, byStatus, bySource },
    ...{ inProgress: limits.inFlight, shed: limits.shed, rateLimited: sumOf(limits.rateLimited) },
    bytesOut: sum(requests.bytesOut()),
    bytesIn: sum(requests.bytesIn()),
  }
}

function upstreamOf({ upstream: { name }, health }: Member, clock: Clock): Upstream {
  const { state, untilMs } = health.state('')
  const { counts, measured, lastError, pending, budget } = health
  const [p50Ms, p95Ms] = [measured.recent.quantile(0.5), measured.recent.quantile(0.95)]
  const isOut = state !== 'ready'
  return {
    name,
    state,
    ...(isOut && { why: state === 'budget-exhausted' ? 'its budget of this minute is used up' : lastError?.why }),
    ...(isOut && untilMs !== undefined && { until: Math.ceil((clock.now() + untilMs) / roundMs) * roundMs }),
    ...(counts as Record<keyof typeof counts, number>),
    pending,
    bytes: measured.bytes,
    firstByte: { ...(p50Ms !== undefined && { p50Ms }), ...(p95Ms !== undefined && { p95Ms }) },
    budget,
    lastError,
  }
}

function tiersOf({ stack, guards, usage }: TierParts): Tier[] {
  const used = new Map(usage().map(({ tier, usage: one }) => [tier, one]))
  return stack.stats().map(({ tier: name, hits, misses, outages, corrupt, queued, dropped, failed }) => {
    const guard = guards.find((one) => one.name === name)
    return {
      ...{ name, hits, misses, outages, corrupt, queued, dropped, failedWrites: failed },
      ...used.get(name),
      isDown: guard?.isDown ?? false,
      reads: guard ? timesOf(guard.took.reads.bounds, guard.took.reads.counts) : {},
    }
  })
}

function providersOf(names: readonly string[], { uploads, checks }: UploadParts, waiting: Waiting): Provider[] {
  const seen = checks()
  const attempts = [...uploads.attempts()]
  const took = [...uploads.took.read()]
  return names.map((name) => {
    const check = seen.find((one) => one.name === `provider ${name}` || one.name === `through ${name}`)
    const own = attempts.filter(({ labels }) => labels?.['provider'] === name)
    const failed: Record<string, number> = {}
    for (const { labels, value } of own) if (outcomeOf(labels) !== 'pinned') count(failed, outcomeOf(labels), value)
    const times = took.find(({ labels }) => labels.provider === name)
    return {
      name,
      ok: check?.ok,
      why: check?.why,
      pinned: sum(own.filter(({ labels }) => outcomeOf(labels) === 'pinned')),
      failed,
      waiting: waiting.holders.find(({ holder }) => holder === name)?.uploads ?? 0,
      took: times ? timesOf(times.histogram.bounds, times.histogram.counts) : {},
    }
  })
}

function pinsOf({ pins }: UploadParts): Status['pins'] {
  const count = pins()
  return { pins: count?.pins, bytes: count?.bytes }
}

async function pendingOf(
  { waitingPage }: UploadParts,
  { uploads: open, bytes, oldestAt }: Waiting,
): Promise<PendingUploads> {
  const uploads = open > 0 ? ((await waitingPage?.(maxUploads)) ?? []) : []
  return { open, bytes, oldestAt, uploads }
}

const outcomeOf = (labels: Labels = {}): string => labels['outcome'] ?? ''

function count(all: Record<string, number>, key: string, value: number): void {
  all[key] = (all[key] ?? 0) + value
}

function sum(samples: Iterable<Sample>): number {
  let all = 0
  for (const { value } of samples) all += value
  return all
}

type StateLogOptions = {
  readonly read: () => Promise<Status>
  /** 0 means never. */
  readonly everyMs: number
  readonly clock: Clock
  readonly log: Log
}

/**
 * Logs the status periodically, so that the log shows later which upstream was slow or sent wrong
 * bytes, how full each tier was, and what was pending.
 */
export function startStateLog({ read, everyMs, clock, log }: StateLogOptions) {
  let isClosed = false
  let cancel = everyMs > 0 ? again() : undefined

  function again(): () => void {
    return clock.after(everyMs, () => {
      write().catch((error: unknown) => log('error', 'gateway.state-failed', { error: String(error) }))
      cancel = again()
    })
  }

  async function write(): Promise<void> {
    const { ready, requests, responses, disk, pending, pins, ...rest } = await read()
    if (isClosed) return
    log('info', 'gateway.state', {
      ready,
      requests: requests.total,
      byStatus: requests.byStatus,
      bySource: requests.bySource,
      responseCacheBytes: responses.bytes,
      tiers: rest.tiers.map(tierInLog),
      upstreams: rest.upstreams.map(upstreamInLog),
      providers: rest.providers.map(providerInLog),
      waiting: pending.open,
      ...(pending.oldestAt !== undefined && { oldestWaiting: new Date(pending.oldestAt).toISOString() }),
      ...(pins?.pins !== undefined && { pins: pins.pins }),
      ...(disk && { freeBytes: disk.freeBytes }),
    })
  }

  return {
    close(): void {
      isClosed = true
      cancel?.()
    },
  }
}

/** Milliseconds. */
const rounded = ({ p50Ms, p95Ms }: Times) => ({
  ...(p50Ms !== undefined && { p50: Math.round(p50Ms) }),
  ...(p95Ms !== undefined && { p95: Math.round(p95Ms) }),
})

const tierInLog = ({ name: tier, bytes, limitBytes, hits, misses, outages, corrupt, isDown, reads }: Tier) => ({
  ...{ tier, bytes, limitBytes, hits, misses, outages, corrupt, isDown },
  ...rounded(reads),
})

const upstreamInLog = ({ name: upstream, state, why, asked, won, failed, hashMismatch, firstByte }: Upstream) => ({
  ...{ upstream, state, why, asked, won, failed, hashMismatch },
  ...rounded(firstByte),
})

const providerInLog = ({ name: provider, ok, why, pinned, waiting }: Provider) => ({
  provider,
  ok,
  why,
  pinned,
  waiting,
})
