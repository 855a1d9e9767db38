// Tells the operator about uploads that this configuration does not read from where they are: in the log at a start and after
// a reload, and in `check` and `doctor`.
import type { CID } from 'multiformats/cid'
import type { Provider } from '../../backends/pinning/contract.ts'
import type { Config } from '../config/load.ts'
import { Failure } from '../core/failure.ts'
import { countWaiting, type LookBehind, lookBehind, lookBehindAndNote, wordsOf } from '../upload/left-behind.ts'
import { readDamaged, wordsOfDamaged } from '../upload/spool/damaged.ts'
import { leftStores, openLeft, readBackOf, wireBackends } from './backends.ts'
import type { Whole } from './whole.ts'

/** All of it, for who asks: nothing in the data folder is touched. */
export async function notesOn(whole: Whole): Promise<string[]> {
  const { config } = whole
  const stores = await leftStores(config)
  const { providers } = wireBackends(whole)
  const behind = await lookBehind(lookFrom(config, providers, await openLeft(whole)))
  const damaged = wordsOfDamaged(await readDamaged(config.data))
  return [
    ...notReadBack(config),
    ...stores.map(({ place }) => readAnyway(place)),
    ...behind.flatMap(wordsOf),
    ...(damaged === undefined ? [] : [damaged]),
  ]
}

/** What a change left behind, once for each configuration of providers; the rest is for who asks. */
export function tellLeft(
  { config, log, lease }: Whole,
  providers: readonly Provider[],
  left: readonly Provider[],
): void {
  const names = providers.map(({ name }) => name).sort()
  lease.take(
    'left behind',
    [config.data, names, left],
    () => {
      const closing = new AbortController()
      const tell = async (): Promise<void> => {
        for (const { place } of await leftStores(config)) log('warn', 'uploads.left', { why: readAnyway(place) })
        const look = lookFrom(config, providers, left, closing.signal)
        for (const one of await lookBehindAndNote(look))
          for (const why of wordsOf(one)) log('warn', 'uploads.left-behind', { ...one, why })
      }
      const told = tell().catch((error: unknown) => {
        if (!closing.signal.aborted) log('warn', 'uploads.left-behind', { error: String(error) })
      })
      return { closing, told }
    },
    async ({ closing, told }) => {
      closing.abort(new Failure('cancelled', 'this gateway stops', { source: 'ours' }))
      await told
    },
  )
}

/** Of a data folder that is not the one any more. */
export async function leftWith(old: Config, { data, pinning }: Config): Promise<string[]> {
  if (old.data === data) return []
  // Without a path of its own a provider keeps in the new folder.
  const providers = pinning.providers.filter(({ options }) => (options as { path?: string }).path !== undefined)
  const stores = await leftStores({ ...old, pinning: { ...old.pinning, providers } })
  const waiting = await countWaiting(old.data)
  const moved = `data was ${old.data} and is ${data}`
  return [
    ...stores.map(({ place }) => `${moved}: ${place} holds uploads, and cidgate no longer reads them`),
    ...(waiting === 0 ? [] : [`${moved}: ${waiting} uploads that wait there are no longer brought to their providers`]),
  ]
}

/** By the configuration alone. */
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

const readAnyway = (place: string): string =>
  `${place} holds uploads of an earlier configuration, and no provider writes there now: cidgate reads from it until it is removed`

function lookFrom(
  { data }: Config,
  providers: readonly Provider[],
  left: readonly Provider[],
  signal?: AbortSignal,
): LookBehind {
  const isHere = async (cid: CID): Promise<boolean> => {
    for (const { store } of [...providers, ...left]) if (await store?.has(cid)) return true
    return false
  }
  return { data, providers: providers.map(({ name }) => name), isHere, ...(signal && { signal }) }
}
