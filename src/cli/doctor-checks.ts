// The checks of `cidgate doctor`: everything that a configuration uses is tried once, in parallel;
// one line each, with the fix.
import { randomUUID } from 'node:crypto'
import { rm, statfs, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { CID } from 'multiformats/cid'
import type { Check } from '../admin/dashboard/shape.ts'
import { type CheckTarget, runCheck } from '../admin/readiness.ts'
import type { Config } from '../config/load.ts'
import { type Clock, systemClock, withDeadline } from '../core/clock.ts'
import { makeFolders } from '../core/disk/files.ts'
import { Failure, isFailure } from '../core/failure.ts'
import { silentLog } from '../core/log.ts'
import { createTrace } from '../core/wire/trace.ts'
import { processFolders } from '../data-folder/folder.ts'
import { loadDenylists } from '../deny/load.ts'
import { lossIn } from '../store/open.ts'
import { probeTarget } from '../upload/thin.ts'
import { openIndexer, openRouter, takeSharedCounters, wireBackends } from '../wiring/backends.ts'
import { createComponentRegistry, nothingOfItsOwn, takeScheduler, type WiringContext } from '../wiring/components.ts'
import { notesOn, readStore } from '../wiring/orphaned-uploads.ts'
import { notesOnTrust, type SocketAddress, socketsOf, whyNoSocket } from './check.ts'
import { storeFolders } from './stores.ts'

type DoctorOptions = {
  readonly asJson?: boolean
  /** Notes from earlier steps. */
  readonly noted?: readonly string[]
  readonly print?: (line: string) => void
}
const printed = (line: string): void => void process.stdout.write(`${line}\n`)

/**
 * Returns the exit code: 0 if the gateway can work, 1 if a provider, a tier, the data folder or
 * every upstream fails.
 */
export async function runDoctor(
  config: Config,
  { asJson = false, noted = [], print = printed }: DoctorOptions = {},
): Promise<number> {
  const clock = systemClock
  const { forwardTo: through } = config.upload
  const lease = createComponentRegistry().lease()
  const context = {
    config,
    userAgent: config.retrieval.userAgent,
    clock,
    log: silentLog,
    lease,
    turns: takeScheduler(lease, clock),
    folders: processFolders,
    // A gateway may be running over the same folders, so this process does not own them.
    role: { isOwner: false },
    own: nothingOfItsOwn,
    trace: createTrace(),
  }
  const { providers, tiers, upstreams: wired } = wireBackends(context)
  const must: Placed[] = [
    {
      name: `data ${config.data}`,
      check: () => isWritable(config.data).then(() => isSound(config.data, context)),
    },
    ...(await storeFolders(config)).slice(1).map((folder) => ({
      name: `pins ${folder}`,
      check: () => isSound(folder, context),
    })),
    ...socketsOf(config).map((socket) => ({
      name: `${socket.key} unix:${socket.path}`,
      check: () => canListen(socket),
    })),
    ...tiers.map((tier) => ({
      name: `tier ${tier.name}`,
      at: placeOf(config.cache.tiers, tier.name),
      check: async (own: AbortSignal) => tier.probe?.(own),
    })),
    ...sharedCountersOf(context),
    ...(through
      ? [
          {
            name: `through ${new URL(through.url).host}`,
            check: (own: AbortSignal) => probeTarget(through, config.retrieval.userAgent, own),
          },
        ]
      : []),
    ...config.denylists.map((list, index) => ({
      name: `denylists[${index}]`,
      at: withoutSecrets(typeof list === 'object' ? list.url : list),
      check: () => isReadable(list, config, clock),
    })),
    ...providers.map((one) => ({
      name: `provider ${one.name}`,
      at: placeOf(config.pinning.providers, one.name),
      check: (own: AbortSignal) => one.probe(own),
    })),
  ]
  const upstreams: Placed[] = wired.map(({ upstream, of }) => ({
    name: of === undefined ? `upstream ${upstream.name}` : `reading back from ${of}`,
    at: of === undefined ? placeOf(config.retrieval.upstreams, upstream.name) : undefined,
    async check(own) {
      const { usable, findings } = await upstream.probe(own)
      if (!usable) throw new Failure('unavailable', findings.join('; ') || 'it cannot be used', { source: 'upstream' })
    },
  }))
  const tell = (check: Check, at: string | undefined) =>
    print(asJson ? JSON.stringify({ ...check, at }) : lineOf(check, at))
  try {
    const [needed, asked] = await Promise.all([
      runChecks(must, tell),
      runChecks(upstreams, tell),
      runChecks(routersOf(config), tell),
    ])
    const said = [...noted, ...notesOnTrust(config), ...(await notes(context))]
    for (const note of said) print(asJson ? JSON.stringify({ note }) : `note ${note}`)
    // Upstreams that only read back from providers do not count: they rarely have other content.
    const others = asked.filter((_, index) => wired[index]?.of === undefined)
    const isAsking = others.length === 0 || others.some(({ ok }) => ok)
    const canWork = needed.every(({ ok }) => ok) && isAsking
    if (asJson) print(JSON.stringify({ canWork }))
    else {
      if (!isAsking) print('no upstream can be used: only content that is stored here can be read')
      if (![...needed, ...asked].every(({ ok }) => ok))
        print('fix what is bad, or remove it from the configuration; then run doctor again')
    }
    return canWork ? 0 : 1
  } finally {
    // The results are printed already; a backend that cannot be closed does not change them.
    await inTime(lease.end()).catch(() => {})
  }
}

/** Routers are optional: a failing one is reported, and skipped by the gateway while it fails. */
function routersOf({ retrieval: { routers, userAgent }, announce }: Config): Placed[] {
  const how = { userAgent, clock: systemClock }
  const indexers = announce === false ? [] : announce.indexers
  return [
    ...routers.map((entry) => {
      const router = openRouter(entry, how)
      const check = async (signal: AbortSignal) => {
        const { chunks } = await router.providers(CID.parse('bafkqaaa'), signal)
        for await (const _chunk of chunks) break
      }
      const known = (error: unknown) => {
        if (!isFailure(error, 'not-found')) throw error
      }
      return {
        name: `router ${router.name}`,
        at: withoutSecrets(entry.url),
        check: (signal: AbortSignal) => check(signal).catch(known).finally(router.close),
      }
    }),
    ...indexers.map((entry) => {
      const indexer = openIndexer(entry, how)
      return {
        name: `indexer ${indexer.name}`,
        at: withoutSecrets(entry.url),
        // A healthy indexer answers that it does not know this peer.
        check: (signal: AbortSignal) =>
          indexer
            .provider(anyPeer, signal)
            .then(() => {})
            .finally(indexer.close),
      }
    }),
  ]
}

const anyPeer = '12D3KooWRawPbxPtP1eZaJpumGnyWX2DcUyd3RQnydr3eAto4Az7'

const noteMs = 10_000

const inTime = <T>(work: Promise<T>): Promise<T> => {
  const late = () => new Failure('timeout', 'it timed out', { source: 'ours' })
  return withDeadline({ ms: noteMs, clock: systemClock, late }, () => work)
}

/** A data folder that hangs was reported already. */
const notes = (context: WiringContext): Promise<string[]> => inTime(notesOn(context)).catch(() => [])

function sharedCountersOf(context: WiringContext): Placed[] {
  const counters = takeSharedCounters(context)
  if (!counters) return []
  const at = Object(context.config.limits.sharedStore?.options)['url']
  return [{ name: 'limits.sharedStore', at: withoutSecrets(String(at)), check: (own) => counters.probe(own) }]
}

type Placed = CheckTarget & { readonly at?: string | undefined }

/** Reports each check when it ends, so that one that hangs does not delay the others. */
const runChecks = (targets: readonly Placed[], tell: (check: Check, at?: string) => void): Promise<Check[]> =>
  Promise.all(
    targets.map(async (one) => {
      const check = await runCheck(one, systemClock)
      tell(check, one.at)
      return check
    }),
  )

const lineOf = ({ name, ok, why, ms }: Check, at: string | undefined): string =>
  `${ok ? 'ok  ' : 'bad '} ${name}${at === undefined ? '' : ` ${at}`} (${ms} ms)${ok ? '' : `: ${why}`}`

/** The configured address, which the operator needs for the repair. */
function placeOf(
  entries: readonly { readonly name: string; readonly options: unknown }[],
  name: string,
): string | undefined {
  const options = Object(entries.find((one) => one.name === name)?.options) as Readonly<Record<string, unknown>>
  const at = options['url'] ?? options['endpoint'] ?? options['apiUrl'] ?? options['path']
  return typeof at === 'string' ? withoutSecrets(at) : undefined
}

const withoutSecrets = (at: string): string => at.replace(/\/\/[^/?#]*@/, '//').replace(/\?.*$/, '')

/** As at startup: a list that cannot be read may have a copy. */
async function isReadable(
  list: Config['denylists'][number],
  { data, retrieval: { userAgent } }: Config,
  clock: Clock,
): Promise<void> {
  const folder = join(data, 'denylists')
  const entry = typeof list === 'object' ? { ...list, required: true } : list
  const lists = await loadDenylists([entry], { clock, log: silentLog, userAgent, folder, onChange: () => {} })
  lists.close()
}

/** Reads all of the database, beside a gateway that may be running. */
async function isSound(folder: string, context: WiringContext): Promise<void> {
  const loss = lossIn(folder)
  const damage = loss === undefined ? await readStore(folder, context, (store) => store.check()) : [loss]
  if (damage?.length)
    throw new Failure(
      'disk-error',
      `${damage.join('; ')}; restore a backup, or stop cidgate and run doctor --salvage`,
      {
        source: 'ours',
      },
    )
}

const minFreeBytes = 256 * 1024 * 1024

async function canListen(socket: SocketAddress): Promise<void> {
  const why = whyNoSocket(socket)
  if (why !== undefined) throw new Failure('refused', why, { source: 'ours' })
}

/** Writes a file, because permissions are not enough: a disk may be full, or mounted read-only. */
async function isWritable(folder: string): Promise<void> {
  const refused = (why: string, cause?: unknown) => new Failure('refused', why, { source: 'ours', cause })
  try {
    await makeFolders(folder)
    const file = join(folder, `.doctor-${randomUUID()}`)
    await writeFile(file, 'x', { flag: 'wx' }).finally(() => rm(file, { force: true }))
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException
    throw refused(`it cannot be written to (${code}); check its owner, permissions and disk`, cause)
  }
  const { bavail, bsize } = await statfs(folder)
  if (bavail * bsize < minFreeBytes)
    throw refused(
      `${Math.floor((bavail * bsize) / 2 ** 20)} MiB are free, at least ${minFreeBytes / 2 ** 20} MiB are needed; free space, or set data to another folder`,
    )
}
