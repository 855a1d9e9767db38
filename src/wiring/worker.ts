// Assembles a worker: the read side of a gateway, over the tiers that its owner fills and evicts.
// It forwards everything except content to the owner, and has no uploads, pins or admin address.
import { availableParallelism } from 'node:os'
import { CID } from 'multiformats/cid'
import type { LocalStore } from '../../backends/pinning/contract.ts'
import { readingsOf } from '../admin/metrics.ts'
import type { Config } from '../config/load.ts'
import { Failure } from '../core/failure.ts'
import { roomAt } from '../data-folder/folder.ts'
import { createMetrics, type Metrics } from '../observe/metrics.ts'
import { createUploadCounts } from '../observe/requests.ts'
import { purge } from '../retrieval/tiers/dag-in-tiers.ts'
import { joinReader } from '../store/open.ts'
import type { StoreReader } from '../store/store.ts'
import type { DeniedRule, WorkerCounts, WorkerTeam } from '../team/team.ts'
import { followCounts, metricParts } from './admin.ts'
import { openOrphaned, wireBackends } from './backends.ts'
import type { WiringContext } from './components.ts'
import { wireFront, wirePublic } from './public.ts'
import { type ReadSide, type RecordPlace, wireReading } from './reading.ts'
import { wireTiers } from './tiers.ts'

/** For a block of an upload that the owner has not written to its tiers yet. */
const blockMs = 3000
const countsEveryMs = 1000
const purgeMs = 4000

export async function wireWorker(context: WiringContext, team: WorkerTeam) {
  const { config, clock, lease } = context
  const { providers, tiers: configured, upstreams } = wireBackends(context)
  const former = await openOrphaned(context)
  const waiting = lease.take('waiting at the owner', [], () => ({ store: storeOfOwner(team) }))
  const store = takeReader(context)
  const tiers = wireTiers(context, configured, [...providers, ...former], store, waiting)
  const reading = await wireReading(context, tiers, upstreams, recordsAt(team, store))
  const shared = wirePublic(context)
  const noUploads = { uploadsFor: () => 'closed' as const, isSameForAll: true, maxBytes: 0 }
  const front = wireFront(context, reading, tiers, shared, [], noUploads)
  const { hot, denials } = reading
  for (const rule of team.denied) hold(denials, rule)
  team.on('deny', (body) => hold(denials, body as DeniedRule))
  team.on('purge', async (body) => {
    const { cids, isAll } = body as { readonly cids: readonly string[]; readonly isAll: boolean }
    hot.clear()
    // Blocks below that were never in the owner's tiers are not listed.
    for (const tier of configured) tier.clear?.()
    const signal = AbortSignal.timeout(purgeMs)
    await purge(tiers.stack, cids.map(parsed), { signal, isAll })
  })
  const reloads = lease.take('reloads of the owner', [], () => ({
    ...{ accepted: 0, refused: 0, lastAcceptedAt: 0, wasLastAccepted: true },
  }))
  const metrics = createMetrics()
  metrics.add(
    ...readingsOf({
      ...metricParts(context, { tiers, reading, front, shared }, reloads),
      uploads: {
        uploads: lease.take('upload counts', [], createUploadCounts),
        quotas: () => [],
        pins: () => undefined,
        checks: () => [],
        disk: () => roomAt(config.data, clock),
        clock,
      },
    }),
  )
  return { reading, tiers, front, shared, begin: () => reportCounts(context, team, metrics) }
}

/** A separate function, because parts that outlive this gateway hold it. */
const recordsAt = (team: WorkerTeam, store: StoreReader): RecordPlace => ({
  store,
  write: async (found) => team.send('records', found),
})

const parsed = (cid: string): CID => CID.parse(cid)

const hold = ({ takedowns }: ReadSide['denials'], { cid, legal, reason }: DeniedRule): void =>
  takedowns.hold(CID.parse(cid), { legal, reason })

function takeReader({ config: { data }, folders, lease, clock, log }: WiringContext): StoreReader {
  const { reader } = lease.take(
    'store of the owner',
    [data],
    () => {
      const folder = folders.enter(data)
      return { folder, reader: joinReader(folder, { clock, log }) }
    },
    async ({ folder, reader }) => {
      await reader.leave()
      folder.leave()
    },
  )
  return reader.store
}

const storeOfOwner = (team: WorkerTeam): LocalStore => ({
  async get(cid) {
    if (team.uploadEpochs.of(cid) === 0) return undefined
    const bytes = await team.ask('block', cid.toString(), blockMs).catch((cause: unknown) => {
      throw new Failure('upstream-error', 'the process that holds uploads does not answer', { source: 'tier', cause })
    })
    return bytes instanceof Uint8Array ? bytes : undefined
  },
  has: async (cid) =>
    team.uploadEpochs.of(cid) !== 0 &&
    (await team.ask('block', cid.toString(), blockMs).catch(() => undefined)) !== undefined,
  lacks: (cid) => team.uploadEpochs.of(cid) === 0,
})

/** The owner keeps the counts of a worker that exits, so they are sent once more at the end. */
function reportCounts({ clock, lease }: WiringContext, team: WorkerTeam, metrics: Metrics): void {
  followCounts(lease, metrics)
  const reporter = lease.take(
    'counts sent to the owner',
    [],
    () => ({ cancel: () => {}, send: () => {} }),
    ({ send }) => send(),
  )
  reporter.cancel()
  reporter.send = () => {
    const counts: WorkerCounts = { totals: metrics.totals(), gauges: metrics.sums() }
    team.send('counts', counts)
    reporter.cancel = clock.after(countsEveryMs, reporter.send)
  }
  reporter.send()
}

export const processesOf = ({ workers }: Pick<Config, 'workers'>): number =>
  workers === 'auto' ? availableParallelism() : workers

/**
 * Connections are not divided: the kernel chooses who accepts one, and each process has its own
 * descriptors.
 */
export function shareOf(config: Config, size: number): Config {
  if (size === 1) return config
  const part = (max: number): number => Math.max(1, Math.floor(max / size))
  const bytes = (max: number): number => Math.floor(max / size)
  const { cache, limits, retrieval } = config
  return {
    ...config,
    cache: {
      ...cache,
      writeQueueBytes: bytes(cache.writeQueueBytes),
      responses: { ...cache.responses, maxBytes: bytes(cache.responses.maxBytes) },
      tiers: cache.tiers.map((tier) =>
        tier.use === 'memory' ? { ...tier, options: withPart(tier.options, part) } : tier,
      ),
    },
    limits: {
      ...limits,
      maxConcurrentRequests: part(limits.maxConcurrentRequests),
      maxPendingResponseBytes: bytes(limits.maxPendingResponseBytes),
    },
    retrieval: {
      ...retrieval,
      readAhead: bytes(retrieval.readAhead),
      upstreams: retrieval.upstreams.map((one) => ({
        ...one,
        perMinute: one.perMinute && part(one.perMinute),
        perCidPerMinute: one.perCidPerMinute && part(one.perCidPerMinute),
      })),
    },
  }
}

function withPart(options: unknown, part: (max: number) => number): unknown {
  const own = options as { readonly maxBytes: number }
  return { ...own, maxBytes: part(own.maxBytes) }
}
