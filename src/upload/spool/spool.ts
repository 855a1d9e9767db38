// Where an upload lies until every provider holds it: a folder of its own with one file per block, each on the platter
// when its `put` resolves. The same files are linked into the embedded store, so nothing is written twice.
import { randomUUID } from 'node:crypto'
import { readdir, readFile, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import type { LocalStore, Profile, Upload } from '../../../backends/pinning/contract.ts'
import { blockKey } from '../../core/block.ts'
import { isGone, makeFolder, syncFolder, writeSynced } from '../../core/files.ts'
import { carHeader, carSectionBytes } from '../../ipld/car.ts'
import { diskFailure } from '../failures.ts'
import { blockName, storedUpload } from './stored-upload.ts'

export interface Spool {
  readonly id: string
  put(cid: CID, bytes: Uint8Array): Promise<void>
  /** Every block is here: from now on it can be read. */
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
  /** What was finished before. `stores`: where its blocks are looked for besides. */
  open(record: SpoolRecord, stores?: readonly LocalStore[]): Upload
  drop(id: string): Promise<void>
  /** The blocks of `by` take the place of the same ones of `id`, if that is still there. */
  replace(id: string, by: string): Promise<void>
  /** Lets what lies here be read by block, until it is dropped. Does not reject. */
  offer(id: string): Promise<void>
  /** The blocks that are offered. */
  readonly store: LocalStore
  /** Drops every folder but these and those that were begun here: what a process that died had begun. */
  sweep(keep: ReadonlySet<string>): Promise<void>
}

export const spoolFolder = (data: string): string => join(data, 'uploads')

/** Those of a data folder: all gateways over it share them, so that what one offers, the one after it serves. */
export function createSpools(data: string): Spools {
  const root = spoolFolder(data)
  const folderOf = (id: string): string => join(root, id)
  const inUse = new Set<string>()
  /** Which spools have a block, by its key; and the keys of each. */
  const offered = new Map<string, Set<string>>()
  const keysOf = new Map<string, readonly string[]>()

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
      const bytes = await readFile(join(folderOf(id), key)).catch((error: unknown) => {
        // It was dropped just now: whoever made that happen holds it.
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
      const folder = folderOf(id)
      const written = new Set<string>()
      const counted = new Set<string>()
      let sections = 0
      await makeFolder(folder).catch((error: unknown) => {
        throw diskFailure(error, 'take an upload')
      })
      return {
        id,
        async put(cid, bytes) {
          const name = blockName(cid)
          if (!counted.has(name)) {
            counted.add(name)
            sections += carSectionBytes(cid, bytes.byteLength)
          }
          const key = blockKey(cid)
          if (written.has(key)) return
          written.add(key)
          await writeSynced(join(folder, key), bytes).catch((error: unknown) => {
            throw diskFailure(error, 'take an upload')
          })
        },
        async finish(cid, profile, bytes) {
          await syncFolder(folder).catch((error: unknown) => {
            throw diskFailure(error, 'take an upload')
          })
          const carBytes = carHeader(cid).byteLength + sections
          return storedUpload({ cid, profile, bytes, carBytes, folder })
        },
      }
    },
    open: ({ id, cid, profile, bytes, carBytes }, stores) =>
      storedUpload({ cid, profile, bytes, carBytes, folder: folderOf(id), stores }),
    drop(id) {
      withdraw(id)
      inUse.delete(id)
      return rm(folderOf(id), { recursive: true, force: true })
    },
    async replace(id, by) {
      try {
        for (const key of await readdir(folderOf(by))) await rename(join(folderOf(by), key), join(folderOf(id), key))
        await syncFolder(folderOf(id))
      } catch (error) {
        // It was dropped just now: whoever it waited for holds it.
        if (!isGone(error)) throw diskFailure(error, 'take an upload')
      }
    },
    async offer(id) {
      // It never changes, and whoever reads it now goes on.
      if (keysOf.has(id)) return
      const keys = await readdir(folderOf(id)).catch(() => [])
      keysOf.set(id, keys)
      for (const key of keys) offered.set(key, (offered.get(key) ?? new Set()).add(id))
    },
    store: {
      get: (cid) => read(blockKey(cid)),
      has: async (cid) => offered.has(blockKey(cid)),
    },
    async sweep(keep) {
      const ids = await readdir(root).catch(() => [])
      for (const id of ids)
        if (!keep.has(id) && !inUse.has(id)) await rm(folderOf(id), { recursive: true, force: true })
    },
  }
}
