// The spool: keeps an upload until every provider holds it, in a folder with one file per block, each synced to the disk when
// its `put` resolves. The embedded store links the same files, so nothing is written twice. An upload of one small block stays
// in memory until `persist`: mostly a provider of this machine writes it a moment later, and nothing else would ever read it here.
import { randomUUID } from 'node:crypto'
import { readdir, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import type { LocalStore, Profile, Upload } from '../../../backends/pinning/contract.ts'
import { blockKey, maxBlockBytes } from '../../core/block.ts'
import { isGone, isLeftOver, isUnfinished, syncFolder } from '../../core/disk/files.ts'
import { readRegular } from '../../core/disk/regular.ts'
import { diskFailure } from '../failures.ts'
import { createFilling, type Filling, type OnlyBlock } from './filling.ts'
import { storedUpload } from './stored-upload.ts'

export interface Spool extends Omit<Filling, 'finish'> {
  readonly id: string
  /** Call it when every block is here: from now on the upload can be read. */
  finish(root: CID, profile: Profile, bytes: number): Promise<Upload>
}

export type SpoolRecord = {
  readonly id: string
  readonly cid: CID
  readonly profile: Profile
  readonly bytes: number
  readonly carBytes: number
}

export interface Spools {
  begin(): Promise<Spool>
  /** Opens a finished upload. `stores`: other places to look for its blocks. */
  open(record: SpoolRecord, stores?: readonly LocalStore[]): Upload
  drop(id: string): Promise<void>
  /** What was in memory is in its folder, synced to the disk, when this resolves. Before that, an upload must not be accepted. */
  persist(id: string): Promise<void>
  /** Whether its blocks are in memory or in its folder: after a crash, not those of a small upload that was not accepted. */
  isHere(id: string): Promise<boolean>
  /** Where its blocks lie, each in a file that its key names. */
  folderOf(id: string): string
  /** Replaces the blocks of `id`, if it still exists, by the same blocks of `by`. */
  replace(id: string, by: string): Promise<void>
  /** Serves its blocks through `store` until it is dropped. Does not reject. */
  offer(id: string): Promise<void>
  /** Calls it with the key of each block that is offered, now and from now on, before it can be read. The answer ends that. */
  onOffer(listener: (key: string) => void): () => void
  /** Reads the blocks of offered uploads. */
  readonly store: LocalStore
  /** Drops the folders that a dead process began: all but these and those that this process began. */
  sweep(keep: ReadonlySet<string>): Promise<void>
}

/** `persisting`: on its way to the disk. `isTried`: its folder may be there, also after a failure. */
type InMemory = OnlyBlock & { persisting: Promise<void> | undefined; isTried: boolean }

export const spoolFolder = (data: string): string => join(data, 'uploads')
/** Of the names of files beside the spools: `copies.ts`. */
export const copyEnd = '.json'

const yes = (): boolean => true
const no = (): boolean => false

/** The spools of a data folder. All gateways over it share them: an upload that one offers, the next one serves. */
export function createSpools(data: string): Spools {
  const root = spoolFolder(data)
  const folderOf = (id: string): string => join(root, id)
  const inUse = new Set<string>()
  const inMemory = new Map<string, InMemory>()
  /** The spools that have a block, by block key; below, the keys of each spool. */
  const offered = new Map<string, Set<string>>()
  const keysOf = new Map<string, readonly string[]>()
  const listeners = new Set<(key: string) => void>()

  const blockIn = (id: string) => () => inMemory.get(id)?.block

  async function persist(id: string): Promise<void> {
    const small = inMemory.get(id)
    if (!small) return
    small.isTried = true
    small.persisting ??= small.write()
    try {
      await small.persisting
    } catch (error) {
      small.persisting = undefined
      throw diskFailure(error, 'take an upload')
    }
    inMemory.delete(id)
  }

  function withdraw(id: string): void {
    for (const key of keysOf.get(id) ?? []) {
      const ids = offered.get(key)
      ids?.delete(id)
      if (ids?.size === 0) offered.delete(key)
    }
    keysOf.delete(id)
  }

  async function read(key: string): Promise<Uint8Array | undefined> {
    for (const id of offered.get(key) ?? []) {
      const bytes = await readRegular(join(folderOf(id), key), maxBlockBytes).catch((error: unknown) => {
        // Another call dropped it just now: the providers that it waited for hold it.
        if (isGone(error)) return undefined
        throw diskFailure(error, 'read an upload')
      })
      if (bytes) return bytes
    }
    return undefined
  }

  return {
    async begin() {
      const id = randomUUID()
      inUse.add(id)
      const filling = createFilling(folderOf(id))
      return {
        ...filling,
        id,
        async finish(cid, profile, bytes) {
          const { stored, only } = await filling.finish(cid, profile, bytes)
          if (!only) return storedUpload(stored)
          inMemory.set(id, { ...only, persisting: undefined, isTried: false })
          return storedUpload({ ...stored, inMemory: blockIn(id) })
        },
      }
    },
    open: ({ id, cid, profile, bytes, carBytes }, stores) =>
      storedUpload({
        ...{ cid, profile, bytes, carBytes, folder: folderOf(id), stores },
        ...(inMemory.has(id) && { inMemory: blockIn(id) }),
      }),
    persist,
    isHere: async (id) => inMemory.has(id) || (await readdir(folderOf(id)).catch(() => [])).length > 0,
    folderOf,
    async drop(id) {
      const small = inMemory.get(id)
      inMemory.delete(id)
      withdraw(id)
      inUse.delete(id)
      if (small && !small.isTried) return
      await small?.persisting?.catch(() => {})
      await rm(folderOf(id), { recursive: true, force: true })
    },
    async replace(id, by) {
      await Promise.all([persist(by), persist(id)])
      try {
        for (const key of await readdir(folderOf(by))) await rename(join(folderOf(by), key), join(folderOf(id), key))
        await syncFolder(folderOf(id))
      } catch (error) {
        // Another call dropped it just now: the providers that it waited for hold it now.
        if (!isGone(error)) throw diskFailure(error, 'take an upload')
      }
    },
    async offer(id) {
      // The set of keys never changes, so readers are not disturbed.
      if (keysOf.has(id)) return
      // What could not be written is offered when it could be.
      if (!(await persist(id).then(yes, no))) return
      const keys = await readdir(folderOf(id)).catch(() => [])
      keysOf.set(id, keys)
      for (const key of keys) for (const tell of listeners) tell(key)
      for (const key of keys) offered.set(key, (offered.get(key) ?? new Set()).add(id))
    },
    onOffer(listener) {
      for (const key of offered.keys()) listener(key)
      listeners.add(listener)
      return () => void listeners.delete(listener)
    },
    store: {
      get: (cid) => read(blockKey(cid)),
      has: async (cid) => offered.has(blockKey(cid)),
      lacks: (cid) => !offered.has(blockKey(cid)),
    },
    async sweep(keep) {
      const names = await readdir(root).catch(() => [])
      for (const name of names) {
        // A copy goes with its entry. What this process writes now is not to be taken from it.
        if (name.endsWith(copyEnd) || (isUnfinished(name) && !isLeftOver(name))) continue
        if (!keep.has(name) && !inUse.has(name)) await rm(folderOf(name), { recursive: true, force: true })
      }
    },
  }
}
