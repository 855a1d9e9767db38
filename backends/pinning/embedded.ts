// A provider on the local disk: the store of the data folder, or a store in a folder of its own. An
// upload in the gateway's own store is accepted and pinned in one commit, without a call to this
// provider (src/upload/confirm.ts).
import { appendFile, readFile, stat, statfs } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import type { CID } from 'multiformats/cid'
import { z } from 'zod'
import { codeOf, makeFolder, orIfGone, syncFolder, tryToWrite } from '../../src/core/disk/files.ts'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { databaseIn, joinReader, joinStore } from '../../src/store/open.ts'
import type { Entry, Standing } from '../../src/store/store.ts'
import type { LocalStore, OrphanedStore, Provider, ProviderContext, ProviderKind, Upload } from './contract.ts'

const options = z.strictObject({
  path: z.string().min(1).optional().describe('The folder; by default the data folder.'),
})

type Options = z.output<typeof options>

export interface EmbeddedProvider extends Provider {
  readonly store: LocalStore
}

export const embedded: ProviderKind<typeof options> = {
  use: 'embedded',
  options,
  orphanedStores,
  create: createEmbedded,
}

const folderOf = ({ path }: Options, data: string): string => resolve(path ?? data)

export function createEmbedded(settings: Options, context: ProviderContext): EmbeddedProvider {
  const { name, data, folders, role, clock, log } = context
  const root = folderOf(settings, data)
  const folder = folders.enter(root)
  const close = (leave: () => Promise<void>) => async () => {
    await leave()
    folder.leave()
  }
  const traits = { takesBytes: true, local: true }
  const guarded = async <T>(what: string, work: () => Promise<T>, signal?: AbortSignal): Promise<T> => {
    try {
      signal?.throwIfAborted()
      return await work()
    } catch (error) {
      signal?.throwIfAborted()
      throw isOutage(error) ? outage(name, what, root, error) : error
    }
  }
  if (role && !role.isOwner) {
    const { store, leave } = joinReader(folder, { clock, log })
    const never = () => Promise.reject(new Failure('unsupported', 'a worker pins nothing', { source: 'ours' }))
    const status: Provider['status'] = async (cid) => statusOf(await store.ledger.find(cid))
    const probe = () => guarded('write', () => probeFolder(root))
    return { name, traits, pin: never, unpin: never, status, probe, store: store.blocks, close: close(leave) }
  }
  const { store, leave } = joinStore(folder, { clock, log })

  async function pin(upload: Upload, signal: AbortSignal): Promise<CID> {
    const intake = store.begin()
    try {
      const filling = intake.dag()
      for await (const { cid, bytes } of upload.blocks(signal)) {
        signal.throwIfAborted()
        await filling.put(cid, bytes)
      }
      signal.throwIfAborted()
      const staged = filling.finish(upload.cid, upload.profile, upload.bytes)
      await recordFolder(root, data)
      const holders: Record<string, Standing> = { [name]: { kind: 'here', state: 'pinned', tries: 1 } }
      await store.accept([{ staged, at: clock.now(), holders }])
      return upload.cid
    } finally {
      await intake.drop()
    }
  }

  /** If the ledger names another holder, the entry stays without these blocks. */
  async function unpin(cid: CID): Promise<void> {
    const entry = await store.ledger.find(cid)
    if (!entry) return
    const others = Object.values(entry.holders).filter(({ kind }) => kind !== 'here')
    if (others.length === 0) return void (await store.remove(cid))
    const here = Object.entries(entry.holders).filter(([, { kind }]) => kind === 'here')
    await store.update(cid, Object.fromEntries(here.map(([holder]) => [holder, undefined])))
  }

  return {
    name,
    traits,
    ownStore: store,
    pin: (upload, signal) => guarded('write', () => pin(upload, signal), signal),
    unpin: (cid, signal) => guarded('delete', () => unpin(cid), signal),
    status: (cid, signal) => guarded('read', async () => statusOf(await store.ledger.find(cid)), signal),
    probe: (signal) => guarded('write', () => store.probe(), signal),
    store: store.blocks,
    close: close(leave),
  }
}

/** Under any provider name, since names may change. */
const statusOf = (entry: Entry | undefined): 'pinned' | 'missing' =>
  Object.values(entry?.holders ?? {}).some(({ kind, state }) => kind === 'here' && state === 'pinned')
    ? 'pinned'
    : 'missing'

const minFreeBytes = 64 * 1024 * 1024

/** For a process other than the owner of the folder. */
async function probeFolder(root: string): Promise<void> {
  await tryToWrite(root)
  const { bavail, bsize } = await statfs(root)
  if (bavail * bsize < minFreeBytes)
    throw new Failure('disk-full', 'the disk is full: free some space, or set another folder', { source: 'ours' })
}

const isOutage = (error: unknown): boolean =>
  isFailure(error) ? error.source === 'ours' && error.facts.class !== 'content' : codeOf(error) !== undefined

function outage(name: string, what: string, root: string, cause: unknown): Failure {
  const isFull = isFailure(cause, 'disk-full')
  const why = cause instanceof Error ? cause.message : String(cause)
  return new Failure('upstream-error', `provider ${name}: cannot ${what} in ${root}: ${why}`, {
    source: 'provider',
    cause,
    facts: { class: isFull ? 'quota' : 'transient' },
  })
}

/**
 * Folders of embedded providers that ever held a pin, which are read even if they are no longer
 * configured. One JSON string per line; relative paths start at the data folder.
 */
const listIn = (data: string): string => join(data, 'pins.folders')

async function recordFolder(root: string, data: string): Promise<void> {
  if (root === resolve(data) || (await recordedFolders(data)).includes(root)) return
  await makeFolder(data)
  await appendFile(listIn(data), `${JSON.stringify(root)}\n`, { flush: true })
  await syncFolder(data)
}

async function recordedFolders(data: string): Promise<string[]> {
  const text = await orIfGone(readFile(listIn(data), 'utf8'), '')
  return text.split('\n').flatMap((line) => {
    try {
      const root: unknown = JSON.parse(line)
      return typeof root === 'string' && root !== '' ? resolve(data, root) : []
    } catch {
      return []
    }
  })
}

async function orphanedStores(
  data: string,
  configured: readonly Options[],
): Promise<readonly OrphanedStore<Options>[]> {
  const known = configured.map((one) => folderOf(one, data))
  const others = [...new Set(await recordedFolders(data))].filter((root) => !known.includes(root))
  const there = await Promise.all(others.map((root) => orIfGone(stat(databaseIn(root)), undefined)))
  return others.flatMap((path, index) =>
    there[index] === undefined ? [] : [{ options: { path }, place: `the folder ${path}` }],
  )
}
