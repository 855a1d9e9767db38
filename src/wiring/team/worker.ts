// Assembles a worker: the read side of a gateway, over the tiers that its owner fills and evicts.
// It forwards everything except content to the owner, and has no uploads, pins or admin address.
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { CID } from 'multiformats/cid'
import type { LocalStore } from '../../../backends/pinning/contract.ts'
import { readingsOf } from '../../admin/metrics.ts'
import { version } from '../../config/package.ts'
import { Failure } from '../../core/failure.ts'
import { roomAt } from '../../data-folder/folder.ts'
import type { QueuedRecord } from '../../names/ipns-record.ts'
import { createMetrics, type Metrics } from '../../observe/metrics.ts'
import { watchProcess } from '../../observe/process.ts'
import { createUploadCounts } from '../../observe/requests.ts'
import { purge } from '../../retrieval/tiers/dag-in-tiers.ts'
import { joinReader } from '../../store/open.ts'
import type { StoreReader } from '../../store/store.ts'
import type { DeniedRule, WorkerCounts, WorkerTeam } from '../../team/team.ts'
import { openOrphaned, wireBackends } from '../backends.ts'
import { type Front, type Public, wireFront, wirePublic } from '../public.ts'
import { type ReadSide, wireReading } from '../reading.ts'
import { type Tiers, wireTiers } from '../tiers.ts'
import type { WiringContext } from '../wiring-context.ts'

export type Worker = {
  readonly reading: ReadSide
  readonly tiers: Tiers
  readonly front: Front
  readonly shared: Public
  readonly admin: RequestListener
  begin(): void
}

/** For a block of an upload that the owner has not written to its tiers yet. */
const blockMs = 3000
const countsEveryMs = 1000
const purgeMs = 4000

export async function wireWorker(context: WiringContext, team: WorkerTeam): Promise<Worker> {
  const { providers, tiers: configured, upstreams } = wireBackends(context)
  const former = await openOrphaned(context)
  const waiting = context.lease.take('waiting at the owner', [], () => ({ store: storeOfOwner(team) }))
  const store = takeReader(context)
  const tiers = wireTiers(context, configured, { providers, former, store, waiting })
  const records = { store, write: async (found: readonly QueuedRecord[]) => team.tell('records', found) }
  const reading = await wireReading(context, { ...tiers, upstreams, records })
  const shared = wirePublic(context)
  const tierNames = tiers.stack.stats().map(({ tier }) => tier)
  const front = wireFront(context, reading, {
    ...shared,
    routes: [],
    uploads: { uploadsFor: () => 'closed', isSameForAll: true, maxBytes: 0 },
    tiers: tierNames,
    stack: tiers.stack,
  })
  const { hot, denials } = reading
  for (const rule of team.denied) hold(denials, rule)
  team.on('deny', (said) => hold(denials, said as DeniedRule))
  team.on('purge', async (said) => {
    const { cids, isAll } = said as { readonly cids: readonly string[]; readonly isAll: boolean }
    hot.clear()
    // Blocks below that were never in the owner's tiers are not listed.
    for (const tier of configured) tier.clear?.()
    await purge(
      tiers.stack,
      cids.map((cid) => CID.parse(cid)),
      { signal: AbortSignal.timeout(purgeMs), isAll },
    )
  })
  return {
    reading,
    tiers,
    front,
    shared,
    admin: (_request: IncomingMessage, response: ServerResponse) => void response.destroy(),
    begin: () => reportCounts(context, team, metricsOf(context, { reading, tiers, front })),
  }
}

const hold = (denials: ReadSide['denials'], { cid, legal, reason }: DeniedRule): void =>
  denials.lists.hold(CID.parse(cid), { legal, reason })

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
    const said = await team.ask('block', cid.toString(), blockMs).catch((cause: unknown) => {
      throw new Failure('upstream-error', 'the process that holds uploads does not answer', { source: 'tier', cause })
    })
    return said instanceof Uint8Array ? said : undefined
  },
  has: async (cid) =>
    team.uploadEpochs.of(cid) !== 0 &&
    (await team.ask('block', cid.toString(), blockMs).catch(() => undefined)) !== undefined,
  lacks: (cid) => team.uploadEpochs.of(cid) === 0,
})

function metricsOf(
  context: WiringContext,
  { reading, tiers, front }: Pick<Worker, 'reading' | 'tiers' | 'front'>,
): Metrics {
  const { config, clock, log, lease, spans } = context
  const { pool, finding, retrieval, names, hot, denials } = reading
  const { requests, limits, pendingResponses, compression } = front
  const metrics = createMetrics()
  const counts = lease.take('upload counts', [], createUploadCounts)
  metrics.add(
    ...readingsOf({
      http: {
        ...{ requests, limits, pendingResponses, responses: hot, compressions: compression.counts },
        server: lease.take('server', [], () => ({})),
      },
      upstreams: { pool, finder: finding?.finder, retrieval, names },
      tiers,
      uploads: {
        uploads: counts,
        quotas: () => [],
        pins: () => undefined,
        checks: () => [],
        disk: () => roomAt(config.data, clock),
        clock,
      },
      gateway: {
        ...{ version, denylists: denials.lists, log, spans },
        reloads: lease.take('reloads of the owner', [], () => ({
          ...{ taken: 0, refused: 0, lastTakenAt: 0, wasLastTaken: true },
        })),
      },
      process: lease.open('process', [], watchProcess),
    }),
  )
  return metrics
}

type Counted = { by?: Metrics; cancel?: () => void; tell?: () => void }

/** Starts counting from the totals of the previous gateway. */
function reportCounts({ clock, lease }: WiringContext, team: WorkerTeam, metrics: Metrics): void {
  const counted = lease.take(
    'counted',
    [],
    (): Counted => ({}),
    // The owner keeps the counts of a worker that exits.
    ({ tell }) => tell?.(),
  )
  counted.cancel?.()
  if (counted.by) metrics.goOnFrom(counted.by)
  counted.by = metrics
  const tell = (): void => {
    const counts: WorkerCounts = { totals: metrics.totals(), gauges: metrics.sums() }
    team.tell('counts', counts)
    counted.cancel = clock.after(countsEveryMs, tell)
  }
  counted.tell = tell
  tell()
}
