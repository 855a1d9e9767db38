// Assembles the admin side: metrics, periodic checks, and readiness.
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { CID } from 'multiformats/cid'
import type { Provider } from '../../backends/pinning/contract.ts'
import { type AdminDeps, createAdmin } from '../admin/admin.ts'
import type { Processes, Status } from '../admin/dashboard/shape.ts'
import { readStatus, startStateLog } from '../admin/dashboard/status.ts'
import { type ConnectionCounts, type ReloadCounts, readingsOf, type ServerParts } from '../admin/metrics.ts'
import { type Checks, type CheckTarget, diskCheck, readiness, startChecks } from '../admin/readiness.ts'
import { createTakedown, type Takedown } from '../admin/routes.ts'
import type { Publisher } from '../announce/publisher.ts'
import { version } from '../config/package.ts'
import { roomAt } from '../data-folder/folder.ts'
import { createRequestIds, hasBody } from '../http/wire/request.ts'
import { closeAfter } from '../http/wire/write.ts'
import { createHistory } from '../observe/history.ts'
import { createMetrics, type HistogramSample, type Labels, type Metrics, type Sample } from '../observe/metrics.ts'
import { watchProcess } from '../observe/process.ts'
import { type Histogram, type RequestCounts, secondsBounds } from '../observe/requests.ts'
import { belowIn, findPlaces, purge } from '../retrieval/tiers/dag-in-tiers.ts'
import type { TierStack } from '../retrieval/tiers/tier-stack.ts'
import type { StoreReader } from '../store/store.ts'
import { isOwner, type OwnerTeam, type Team, type Totals } from '../team/team.ts'
import { probeTarget, type Target } from '../upload/thin.ts'
import type { ComponentRegistry, Lease, WiringContext } from './components.ts'
import type { Front, Public } from './public.ts'
import type { ReadSide } from './reading.ts'
import { everyStack, type Tiers } from './tiers.ts'
import type { WriteSide } from './uploads.ts'

type Parts = {
  readonly providers: readonly Provider[]
  readonly store: Pick<StoreReader, 'damage'>
  readonly tiers: Tiers
  readonly reading: ReadSide
  readonly writing: WriteSide
  readonly front: Front
  readonly shared: Public
  readonly why: AdminDeps['why']
  readonly publisher: Publisher | undefined
}

export function wireAdmin(context: WiringContext, parts: Parts) {
  const { config, clock, log, lease, team } = context
  const { providers, store, tiers, reading, writing, shared, why, publisher } = parts
  const { pool, finding, denials } = reading
  const { forwardTo } = config.upload
  const checks = forwardTo
    ? [checkThrough(context, forwardTo)]
    : [
        ...providers.map((one) => checkProvider(context, one)),
        ...(providers.length > 0 ? [checkDisk(context, writing)] : []),
      ]
  const list = () => checks.flatMap((one) => one.list())
  const announced = publisher && (() => publisher.state())
  const processes = processesOfTeam(team)
  const { pins, adminAdd } = writing
  const metered = {
    ...metricParts(context, parts, takeReloads(context)),
    ...{ announced, processes },
    uploads: {
      uploads: writing.counts,
      quotas: writing.quotas,
      waiting: pins?.waiting,
      waitingPage: pins?.waitingPage,
      pins: () => pins?.count(),
      checks: list,
      disk: () => roomAt(config.data, clock),
      clock,
    },
  }
  const metrics = createMetrics(countsElsewhere(team))
  metrics.add(...readingsOf(metered))
  const { minConfirmations, acceptWhileUnavailable } = config.pinning
  let draining = false
  const ready = () =>
    readiness({
      draining,
      providers: forwardTo ? 1 : providers.length,
      confirm: forwardTo ? 1 : minConfirmations,
      queue: !forwardTo && acceptWhileUnavailable,
      checks: { list },
      tiers: tiers.guards,
      upstreams: pool.members.map(({ upstream: { name }, health }) => ({ name, state: health.state('').state })),
      damage: [
        { name: 'store', why: forwardTo ? undefined : store.damage() },
        { name: 'takedowns', why: denials.takedowns.damage },
      ],
    })
  const requests = joinedRequests(shared.requests, context)
  const history = takeHistory(context, requests)
  const startedAt = takeStart(context).at
  const requestIds = createRequestIds(shared.forwarded)
  const status = () =>
    readStatus({
      ...{ version, startedAt, clock, ready, history, failures: shared.failures, hasPins: pins !== undefined },
      ...{ pool, tiers, uploads: metered.uploads, finder: finding?.finder, announced, processes },
      http: { ...metered.http, requests },
      providers: forwardTo ? [new URL(forwardTo.url).host] : providers.map(({ name }) => name),
      takes: adminAdd && { maxBytes: adminAdd.maxBytes },
    })
  const make = () =>
    createAdmin({
      requestId: (request) => requestIds.next(request),
      add: adminAdd?.handle,
      leaveBody(request, response) {
        if (hasBody(request)) closeAfter(request, response)
      },
      takedown: takedownOf(context, tiers, reading, writing),
      ...{ status, why, blocks: blocksBy(why, tiers) },
      ...{ log, access: config.adminAccess, metrics, pins, ready },
    })
  // Created on first use: a gateway without an admin address needs none, and a test rarely does.
  let app: RequestListener | undefined
  return {
    handler(request: IncomingMessage, response: ServerResponse): void {
      app ??= make()
      app(request, response)
    },
    drain() {
      draining = true
    },
    begin() {
      followCounts(lease, metrics)
      takeStateLog(context, status)
    },
  }
}

/** The parts of the metrics that the owner of the data folder and its workers share. */
export function metricParts(
  { log, lease, spans }: WiringContext,
  { tiers, reading, front, shared }: Pick<Parts, 'tiers' | 'reading' | 'front' | 'shared'>,
  reloads: ReloadCounts,
) {
  const { pool, finding, retrieval, names, hot, denials } = reading
  const { requests, limits } = shared
  const { pendingResponses, compression } = front
  return {
    http: {
      ...{ requests, limits, pendingResponses, responses: hot, compressions: compression.counts },
      server: takeServer({ lease }),
    },
    upstreams: { pool, finder: finding?.finder, retrieval, names },
    tiers,
    gateway: { version, reloads, denylists: denials.lists, log, spans },
    process: lease.open('process', [], watchProcess),
  }
}

/** Starts counting from the totals of the previous gateway. */
export function followCounts(lease: Lease, metrics: Metrics): void {
  const counted = lease.take('counted', [], (): { by?: Metrics } => ({}))
  if (counted.by) metrics.goOnFrom(counted.by)
  counted.by = metrics
}

// More would not fit the drawing, and a remote store takes its time for each.
const maxBlocks = 100
const blocksMs = 10_000

/** Reads the path as `why` does, to list its blocks. */
const blocksBy =
  (why: AdminDeps['why'], { all }: Tiers): AdminDeps['blocks'] =>
  async (path, signal) => {
    const explained = await why(path, signal)
    const cids = explained.steps.map(({ cid }) => CID.parse(cid))
    if (cids.length === 0) return { why: explained }
    const until = AbortSignal.any([signal, AbortSignal.timeout(blocksMs)])
    return { why: explained, placed: await findPlaces(all, cids, { signal: until, maxBlocks }) }
  }

/**
 * Denies the CID, deletes it at every provider, and purges it from the tiers and the response
 * caches, including those of gateways before a reload that still answer.
 */
function takedownOf(
  { lease, team }: WiringContext,
  { stack }: Tiers,
  { denials: { takedowns }, hot }: ReadSide,
  { pins }: WriteSide,
): Takedown {
  const stacks = everyStack(lease)
  /** Runs in the stacks of earlier gateways. Failures of one that closed meanwhile do not count. */
  const inOthers = <Outcome extends { readonly failures: readonly string[] }>(
    work: (one: TierStack) => Promise<Outcome>,
  ) =>
    [...stacks]
      .filter((one) => one !== stack)
      .map(async (one) => {
        const outcome = await work(one)
        return stacks.has(one) ? outcome : { ...outcome, failures: [] }
      })
  return createTakedown({
    async deny(cid, hints) {
      if (!isOwner(team)) return takedowns.takeDown(cid, hints)
      // It applies in memory at once, even if it cannot be written.
      const written = takedowns.takeDown(cid, hints)
      written.catch(() => {})
      const rule = { cid: cid.toString(), ...hints }
      team.noteDenied(rule)
      await team.askAll('deny', rule)
      await written
    },
    async below(cid, signal) {
      const all = await Promise.all([belowIn(stack, cid, signal), ...inOthers((one) => belowIn(one, cid, signal))])
      const cids = new Map(all.flatMap((one) => one.cids.map((found) => [found.toString(), found] as const)))
      return { cids: [...cids.values()], failures: [...new Set(all.flatMap(({ failures }) => failures))] }
    },
    async purge(cids, how) {
      hot.clear()
      const [own, ...rest] = await Promise.all([purge(stack, cids, how), ...inOthers((one) => purge(one, cids, how))])
      if (isOwner(team)) await team.askAll('purge', { cids: cids.map(String), isAll: how.isAll ?? false })
      const failures = [own, ...rest].flatMap((one) => one.failures)
      return { ...own, failures: [...new Set(failures)] }
    },
    isPinned: (cid, signal) => stack.isPinned(cid, signal),
    remove: pins?.remove,
  })
}

/**
 * Separate functions, so that parts which outlive this gateway do not hold its other parts in
 * memory.
 */
const takeStart = ({ lease, clock }: WiringContext) => lease.take('start', [], () => ({ at: clock.now() }))

const takeHistory = ({ lease, clock }: WiringContext, requests: RequestCounts) =>
  lease.open('history', [requests], () => createHistory(requests, clock))

const takeStateLog = ({ config, clock, log, lease }: WiringContext, read: () => Promise<Status>) =>
  lease.open('state log', [read], () => startStateLog({ read, everyMs: config.log.stateEvery, clock, log }))

const checkProvider = (context: WiringContext, provider: Provider): Checks =>
  takeChecks(context, provider, { name: `provider ${provider.name}`, check: (signal) => provider.probe(signal) })

const checkDisk = (context: WiringContext, { probe }: WriteSide): Checks =>
  takeChecks(context, probe, { name: diskCheck, check: probe })

function checkThrough(context: WiringContext, target: Target): Checks {
  const { userAgent } = context
  return takeChecks(context, [target, userAgent], {
    name: `through ${new URL(target.url).host}`,
    check: (signal) => probeTarget(target, userAgent, signal),
  })
}

/** Takes over the last results of the previous gateway. */
function takeChecks({ config, clock, log, lease }: WiringContext, of: object, looked: CheckTarget): Checks {
  const { probeEvery } = config.pinning
  return lease.open('checks', [of, probeEvery], () => startChecks([looked], { everyMs: probeEvery, clock, log }))
}

/** Counts configuration reloads: incremented by the reloader, reported by the current gateway. */
const takeReloads = ({ lease }: { readonly lease: Lease }): ReloadCounts =>
  lease.take('reloads', [], () => ({ accepted: 0, refused: 0, lastAcceptedAt: Date.now(), wasLastAccepted: true }))

/** Connections of cidgate's own server. A program that opens its own socket counts none here. */
const takeServer = ({ lease }: { readonly lease: Lease }): ServerParts => lease.take('server', [], () => ({}))

/** Stored in a part that successive gateways share and report. */
export function noteConnections(kept: ComponentRegistry, connections: ConnectionCounts): void {
  const lease = kept.lease()
  takeServer({ lease }).connections = connections
  void lease.end()
}

/** The running gateway holds the counts, so they outlive this lease. */
export function noteReload(kept: ComponentRegistry, isAccepted: boolean): void {
  const lease = kept.lease()
  const counts = takeReloads({ lease })
  counts.wasLastAccepted = isAccepted
  if (isAccepted) {
    counts.accepted++
    counts.lastAcceptedAt = Date.now()
  } else counts.refused++
  void lease.end()
}

const othersOf = (team: OwnerTeam): readonly Totals[] => [
  team.endedTotals,
  ...team.workers().map(({ counts }) => counts.totals),
]

/** Counters, histograms and summed gauges of the other processes. */
function countsElsewhere(team: Team | undefined): (() => readonly Totals[]) | undefined {
  if (!isOwner(team)) return undefined
  return () => [...othersOf(team), ...team.workers().map(({ counts }) => counts.gauges)]
}

function processesOfTeam(team: Team | undefined): (() => Processes) | undefined {
  if (!isOwner(team)) return undefined
  return () => ({ wanted: team.size, answering: 1 + team.workers().length, restarts: team.restarts })
}

/** Request counts of all processes, for the dashboard and the status. */
function joinedRequests(own: RequestCounts, { team, lease }: WiringContext): RequestCounts {
  return isOwner(team) ? lease.take('joined requests', [own, team], () => joined(own, team)) : own
}

function joined(own: RequestCounts, team: OwnerTeam): RequestCounts {
  const samples = (name: string) =>
    function* (): Iterable<Sample> {
      for (const totals of othersOf(team))
        for (const [series, value] of totals)
          if (series.startsWith(`${name}{`)) yield { labels: labelsIn(series), value }
    }
  const requests = samples('cidgate_http_requests_total')
  const bytesOut = samples('cidgate_http_response_body_bytes_total')
  return {
    ...own,
    *requests() {
      yield* own.requests()
      yield* requests()
    },
    *bytesOut() {
      yield* own.bytesOut()
      yield* bytesOut()
    },
    *firstByte() {
      yield* own.firstByte()
      for (const totals of othersOf(team)) yield* histogramsIn(totals, 'cidgate_http_time_to_first_byte_seconds')
    },
  }
}

const labelsIn = (series: string): Labels =>
  Object.fromEntries(
    [...series.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name = '', value = '']) => [name, value]),
  )

function* histogramsIn(totals: Totals, name: string): Iterable<HistogramSample> {
  const found = new Map<string, { readonly labels: Labels; readonly counts: Float64Array }>()
  for (const [series, value] of totals) {
    if (!series.startsWith(`${name}_bucket{`)) continue
    const { le = '', ...labels } = labelsIn(series)
    const key = JSON.stringify(labels)
    const one = found.get(key) ?? { labels, counts: new Float64Array(secondsBounds.length + 1) }
    found.set(key, one)
    const at = le === '+Inf' ? secondsBounds.length : secondsBounds.indexOf(Number(le))
    if (at >= 0) one.counts[at] = value
  }
  for (const { labels, counts } of found.values()) {
    for (let at = counts.length - 1; at > 0; at--) counts[at] = (counts[at] ?? 0) - (counts[at - 1] ?? 0)
    const histogram: Histogram = { bounds: secondsBounds, counts, sum: 0, observe() {} }
    yield { labels, histogram }
  }
}
