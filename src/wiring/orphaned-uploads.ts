// Reports uploads that this configuration no longer reads: in the log at startup and after a
// reload, and in `check` and `doctor`.
import { stat } from 'node:fs/promises'
import type { Provider } from '../../backends/pinning/contract.ts'
import type { Config } from '../config/load.ts'
import type { Clock } from '../core/clock.ts'
import { orIfGone, type SharedFolders } from '../core/disk/files.ts'
import type { Log } from '../core/log.ts'
import { databaseIn, joinReader } from '../store/open.ts'
import type { OtherHolder, StoreReader } from '../store/store.ts'
import { orphanedStores, readBackOf } from './backends.ts'
import type { WiringContext } from './components.ts'

type Looking = { readonly folders: SharedFolders; readonly clock: Clock; readonly log: Log }

/** Collects all notes without changing the data folder. */
export async function notesOn({
  config,
  own,
  ...looking
}: Pick<WiringContext, 'config' | 'own'> & Looking): Promise<string[]> {
  const stores = await orphanedStores(config)
  const names = [...config.pinning.providers, ...own.providers].map(({ name }) => name)
  const kept = await namesIn(stores, looking)
  const found = await readStore(config.data, looking, async ({ ledger, damage, ready }) => {
    await ready
    return { others: await ledger.others([...names, ...kept]), damage: damage() }
  })
  return [
    ...notReadBack(config),
    ...stores.map(({ place }) => stillRead(place)),
    ...(found?.others.flatMap(wordsOf) ?? []),
    ...(found?.damage === undefined ? [] : [found.damage]),
  ]
}

/** Reads which providers have stored in these folders. */
async function namesIn(stores: Awaited<ReturnType<typeof orphanedStores>>, looking: Looking): Promise<string[]> {
  const all = stores.map(async ({ options }) => {
    const { path } = options as { path?: string }
    const counted = path === undefined ? undefined : await readStore(path, looking, ({ ledger }) => ledger.counts())
    return counted?.holders.flatMap(({ holder, kind }) => (kind === 'here' ? [holder] : [])) ?? []
  })
  return (await Promise.all(all)).flat()
}

/** Undefined if the folder has no store. */
export async function readStore<T>(
  data: string,
  { folders, ...looking }: Looking,
  read: (store: StoreReader) => Promise<T>,
): Promise<T | undefined> {
  if (!(await orIfGone(stat(databaseIn(data)), undefined))) return undefined
  const folder = folders.enter(data)
  const { store, leave } = joinReader(folder, looking)
  try {
    return await read(store)
  } finally {
    await leave()
    folder.leave()
  }
}

/**
 * Logs uploads orphaned by a change of the configuration, once for each configuration of providers.
 */
export function reportOrphans(
  { config, folders, clock, log, lease }: WiringContext,
  { ledger }: Pick<StoreReader, 'ledger'>,
  providers: readonly Provider[],
  former: readonly Provider[],
): void {
  const names = providers.map(({ name }) => name).sort()
  lease.take(
    'orphaned uploads',
    [config.data, names, former],
    () => {
      let isOver = false
      const tell = async (): Promise<void> => {
        const stores = await orphanedStores(config)
        for (const { place } of stores) log('warn', 'uploads.orphaned-store', { why: stillRead(place) })
        const kept = await namesIn(stores, { folders, clock, log })
        for (const one of await ledger.others([...names, ...kept]))
          for (const why of wordsOf(one)) if (!isOver) log('warn', 'uploads.orphaned', { ...one, why })
      }
      const reported = tell().catch((error: unknown) => {
        if (!isOver) log('warn', 'uploads.orphaned', { error: String(error) })
      })
      const end = () => {
        isOver = true
        return reported
      }
      return { end }
    },
    ({ end }) => end(),
  )
}

const wordsOf = ({ holder, alone, waiting }: OtherHolder): string[] => [
  ...(alone === 0
    ? []
    : [
        `${uploads(alone)} held only by ${holder}, which is not configured: they are readable only if an upstream has them`,
      ]),
  ...(waiting === 0
    ? []
    : [
        `${uploads(waiting)} pending at ${holder}, which is not configured: configure it, or abandon them (DELETE /uploads/<cid>/${holder})`,
      ]),
]

const uploads = (count: number): string => (count === 1 ? '1 upload is' : `${count} uploads are`)

/** Notes on a data folder that is no longer configured. */
export async function orphanedBy(old: Config, { data, pinning }: Config, looking: Looking): Promise<string[]> {
  if (old.data === data) return []
  // A provider without a path of its own uses the new data folder.
  const providers = pinning.providers.filter(({ options }) => (options as { path?: string }).path !== undefined)
  const stores = await orphanedStores({ ...old, pinning: { ...old.pinning, providers } })
  const counted = await readStore(old.data, looking, async ({ ledger }) => ({
    ...{ all: await ledger.counts(), waiting: await ledger.waiting() },
  }))
  const here = counted?.all.holders.find(({ kind, state }) => kind === 'here' && state === 'pinned')?.uploads ?? 0
  const waiting = counted?.waiting.uploads ?? 0
  const moved = `data was ${old.data} and is ${data}`
  return [
    ...(here === 0 ? [] : [`${moved}: ${old.data} holds ${here} uploads, and cidgate no longer reads them`]),
    ...stores.map(({ place }) => `${moved}: ${place} holds uploads, and cidgate no longer reads them`),
    ...(waiting === 0 ? [] : [`${moved}: ${waiting} pending uploads there are no longer delivered to their providers`]),
  ]
}

/** Checks the configuration only. */
function notReadBack({ pinning }: Config): string[] {
  return pinning.providers.flatMap((entry, index) => {
    const where = `pinning.providers[${index}] (${entry.name})`
    const found = readBackOf(entry)
    if (found === 'by itself' || found === false) return []
    if (found === undefined)
      return [
        `${where}: cidgate cannot read back what this provider holds; set its \`gateway\`, or set \`gateway: false\``,
      ]
    return found.lacks === undefined ? [] : [`${where}: cidgate does not read back from it: ${found.lacks}`]
  })
}

const stillRead = (place: string): string =>
  `${place} holds uploads of an earlier configuration, which no provider writes to now: cidgate reads from it until it is removed`
