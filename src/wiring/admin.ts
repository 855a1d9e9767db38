// Assembles the admin side: metrics, periodic checks, and readiness.
import type { RequestListener } from 'node:http'
import { CID } from 'multiformats/cid'
import type { Provider } from '../../backends/pinning/contract.ts'
import { createAdmin } from '../admin/admin.ts'
import { createDashboard, type DashboardDeps } from '../admin/dashboard/dashboard.ts'
import type { Status } from '../admin/dashboard/shape.ts'
import { readStatus, startStateLog } from '../admin/dashboard/status.ts'
import { type ConnectionCounts, type ReloadCounts, readingsOf, type ServerParts } from '../admin/metrics.ts'
import { type Checks, type CheckTarget, diskCheck, readiness, startChecks } from '../admin/readiness.ts'
import { createTakedown, type Takedown } from '../admin/routes.ts'
import type { Publisher } from '../announce/publisher.ts'
import { version } from '../config/package.ts'
import { roomAt } from '../data-folder/folder.ts'
import { createForwarded, createRequestIds } from '../http/wire/client.ts'
import { hasBody } from '../http/wire/request.ts'
import { closeAfter } from '../http/wire/write.ts'
import { createHistory } from '../observe/history.ts'
import { createMetrics, type Metrics } from '../observe/metrics.ts'
import { watchProcess } from '../observe/process.ts'
import type { RecentFailures } from '../observe/recent-failures.ts'
import type { RequestCounts } from '../observe/requests.ts'
import { belowIn, findPlaces, purge } from '../retrieval/tiers/dag-in-tiers.ts'
import type { TierStack } from '../retrieval/tiers/tier-stack.ts'
import type { StoreReader } from '../store/store.ts'
import { isOwner } from '../team/team.ts'
import { probeTarget, type Target } from '../upload/thin.ts'
import type { ComponentRegistry, Lease } from './component-registry.ts'
import type { Front } from './public.ts'
import type { ReadSide } from './reading.ts'
import { countsElsewhere, joinedRequests, processesOfTeam } from './team/counts.ts'
import { everyStack, type Tiers } from './tiers.ts'
import type { WriteSide } from './uploads.ts'
import type { WiringContext } from './wiring-context.ts'

export type Admin = {
  readonly handler: RequestListener
  drain(): void
  /** Starts counting from the totals of the previous gateway. */
  begin(): void
}

export function wireAdmin(
  context: WiringContext,
  parts: {
    readonly providers: readonly Provider[]
    readonly store: Pick<StoreReader, 'damage'>
    readonly tiers: Tiers
    readonly reading: ReadSide
    readonly writing: WriteSide
    readonly front: Front
    readonly failures: RecentFailures
    readonly why: DashboardDeps['why']
    readonly publisher: Publisher | undefined
  },
): Admin {
  const { config } = context
  const { providers, store, tiers, reading, writing, front, failures, why, publisher } = parts
  const { pool, finding, hot, retrieval, names, denials } = reading
  const announced = publisher && (() => publisher.state())
  const { requests, limits, pendingResponses, compression } = front
  const { guards } = tiers
  const { clock, log, spans } = context
  const checks = config.upload.forwardTo
    ? [checkThrough(context, config.upload.forwardTo)]
    : [
        ...providers.map((one) => checkProvider(context, one)),
        ...(providers.length > 0 ? [checkDisk(context, writing)] : []),
      ]
  const list = () => checks.flatMap((one) => one.list())
  const { team } = context
  const metrics = createMetrics(countsElsewhere(team))
  const http = {
    requests,
    limits,
    pendingResponses,
    responses: hot,
    compressions: compression.counts,
    server: takeServer(context),
  }
  const uploads = {
    uploads: writing.counts,
    quotas: writing.quotas,
    waiting: writing.pins?.waiting,
    waitingPage: writing.pins?.waitingPage,
    pins: () => writing.pins?.count(),
    checks: list,
    disk: () => roomAt(config.data, clock),
    clock,
  }
  metrics.add(
    ...readingsOf({
      http,
      upstreams: { pool, finder: finding?.finder, retrieval, names },
      announced,
      tiers,
      uploads,
      gateway: { version, reloads: takeReloads(context), denylists: denials.lists, log, spans },
      process: takeProcess(context),
      processes: processesOfTeam(team),
    }),
  )
  const { minConfirmations: confirm, acceptWhileUnavailable: queue } = config.pinning
  const { forwardTo: through } = config.upload
  let draining = false
  const ready = () =>
    readiness({
      draining,
      providers: through ? 1 : providers.length,
      confirm: through ? 1 : confirm,
      queue: !through && queue,
      checks: { list },
      tiers: guards,
      upstreams: pool.members.map(({ upstream: { name }, health }) => ({ name, state: health.state('').state })),
      damage: [
        { name: 'store', why: through ? undefined : store.damage() },
        { name: 'takedowns', why: denials.lists.takedownDamage },
      ],
    })
  const joined = joinedRequests(requests, context)
  const history = takeHistory(context, joined)
  const startedAt = takeStart(context).at
  const providerNames = through ? [new URL(through.url).host] : providers.map(({ name }) => name)
  const { adminAdd } = writing
  const takes = adminAdd && { maxBytes: adminAdd.maxBytes }
  const requestIds = createRequestIds(createForwarded(config.trustedProxies))
  const status = () =>
    readStatus({
      ...{ version, startedAt, clock, ready, history, failures, hasPins: writing.pins !== undefined, takes },
      ...{ http: { ...http, requests: joined }, pool, tiers, uploads, providers: providerNames },
      ...{ finder: finding?.finder, announced },
      processes: processesOfTeam(team),
    })
  const make = () =>
    createAdmin({
      requestId: (request) => requestIds.next(request),
      add: adminAdd?.handle,
      log,
      access: config.adminAccess,
      leaveBody(request, response) {
        if (hasBody(request)) closeAfter(request, response)
      },
      metrics,
      pins: writing.pins,
      takedown: takedownOf(context, tiers, reading, writing),
      ready,
      dashboard: createDashboard({
        why,
        blocks: blocksBy(why, tiers),
        status,
      }),
    })
  // Created on first use: a gateway without an admin address needs none, and a test rarely does.
  let app: RequestListener | undefined
  return {
    handler(request, response) {
      app ??= make()
      app(request, response)
    },
    drain() {
      draining = true
    },
    begin() {
      const counted = context.lease.take('counted', [], (): { by?: Metrics } => ({}))
      if (counted.by) metrics.goOnFrom(counted.by)
      counted.by = metrics
      takeStateLog(context, status)
    },
  }
}

// More would not fit the drawing, and a remote store takes its time for each.
const maxBlocks = 100
const blocksMs = 10_000

/** Reads the path as `why` does, to list its blocks. */
const blocksBy =
  (why: DashboardDeps['why'], { order }: Tiers): DashboardDeps['blocks'] =>
  async (path, signal) => {
    const told = await why(path, signal)
    const way = told.steps.map(({ cid }) => CID.parse(cid))
    if (way.length === 0) return { why: told }
    const until = AbortSignal.any([signal, AbortSignal.timeout(blocksMs)])
    return { why: told, placed: await findPlaces(order, way, { signal: until, maxBlocks }) }
  }

/**
 * Denies the CID, deletes it at every provider, and purges it from the tiers and the response
 * caches, including those of gateways before a reload that still answer.
 */
function takedownOf(
  { lease, team }: WiringContext,
  { stack }: Tiers,
  { denials, hot }: ReadSide,
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
      if (!isOwner(team)) return denials.takeDown(cid, hints)
      // It applies in memory at once, even if it cannot be written.
      const written = denials.takeDown(cid, hints)
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
    isPinned: stack.isPinned,
    remove: pins?.remove,
  })
}

/**
 * Separate functions, so that parts which outlive this gateway do not hold its other parts in
 * memory.
 */
const takeProcess = ({ lease }: WiringContext) => lease.open('process', [], watchProcess)

const takeStart = ({ lease, clock }: WiringContext) => lease.take('start', [], () => ({ at: clock.now() }))

const takeHistory = ({ lease, clock }: WiringContext, requests: RequestCounts) =>
  lease.open('history', [requests], () => createHistory(requests, clock))

const takeStateLog = ({ config, clock, log, lease }: WiringContext, read: () => Promise<Status>) =>
  lease.open('state log', [read], () => startStateLog({ read, everyMs: config.log.stateEvery, clock, log }))

const checkProvider = (context: WiringContext, provider: Provider): Checks =>
  takeChecks(context, provider, { name: `provider ${provider.name}`, look: (signal) => provider.probe(signal) })

const checkDisk = (context: WiringContext, { probe }: WriteSide): Checks =>
  takeChecks(context, probe, { name: diskCheck, look: probe })

function checkThrough(context: WiringContext, target: Target): Checks {
  const { userAgent } = context
  return takeChecks(context, [target, userAgent], {
    name: `through ${new URL(target.url).host}`,
    look: (signal) => probeTarget(target, userAgent, signal),
  })
}

/** Takes over the last results of the previous gateway. */
function takeChecks({ config, clock, log, lease }: WiringContext, of: object, looked: CheckTarget): Checks {
  const { probeEvery } = config.pinning
  return lease.open('checks', [of, probeEvery], () => startChecks([looked], { everyMs: probeEvery, clock, log }))
}

/** Counts configuration reloads: incremented by the reloader, reported by the current gateway. */
const takeReloads = ({ lease }: { readonly lease: Lease }): ReloadCounts =>
  lease.take('reloads', [], () => ({ taken: 0, refused: 0, lastTakenAt: Date.now(), wasLastTaken: true }))

/** Connections of cidgate's own server. A program that opens its own socket counts none here. */
const takeServer = ({ lease }: { readonly lease: Lease }): ServerParts => lease.take('server', [], () => ({}))

/** Stored in a part that successive gateways share and report. */
export function noteConnections(kept: ComponentRegistry, connections: ConnectionCounts): void {
  const lease = kept.lease()
  takeServer({ lease }).connections = connections
  void lease.end()
}

/** The running gateway holds the counts, so they outlive this lease. */
export function noteReload(kept: ComponentRegistry, isTaken: boolean): void {
  const lease = kept.lease()
  const counts = takeReloads({ lease })
  counts.wasLastTaken = isTaken
  if (isTaken) {
    counts.taken++
    counts.lastTakenAt = Date.now()
  } else counts.refused++
  void lease.end()
}
