// Blocks as files of the embedded store: linked where they lie on this disk already, written otherwise, and read back. What
// is there may have rotted, so that it is proved before it counts.
import { stat } from 'node:fs/promises'
import { sep } from 'node:path'
import { type Block, blockKey, isIdentity, maxBlockBytes, proves, provesKey } from '../../../src/core/block.ts'
import { codeOf, isThere, orIfGone } from '../../../src/core/disk/files.ts'
import { readRegular, statRegular } from '../../../src/core/disk/regular.ts'
import type { BlockFile, Upload } from '../contract.ts'
import type { Disk } from './disk.ts'
import { type Shards, shardName } from './shards.ts'

export interface BlockFiles {
  shardOf(key: string): string
  fileOf(key: string): string
  /** Unproved bytes; undefined where there are none, too many, or no file. */
  read(key: string): Promise<Uint8Array | undefined>
  /** Whether `read` would find something. */
  has(key: string): Promise<boolean>
  /**
   * Second names for what already lies on the platter; false where that cannot be done for each of them. `proved` gets those
   * that this process hashed and wrote just now.
   */
  linkAll(files: readonly BlockFile[], keys: LinkedKeys, signal: AbortSignal): Promise<boolean>
  /** `proved` gets what was hashed and written here, and what was there already and whole. */
  writeAll(upload: Upload, keys: LinkedKeys, signal: AbortSignal): Promise<void>
  /** Whether each of them, read from where it is kept, is what its name says. */
  areWhole(keys: ReadonlySet<string>, signal: AbortSignal): Promise<boolean>
}

/** What a pin puts here: `all` its blocks, and `proved` those that need not be read back. */
export type LinkedKeys = { readonly all: Set<string>; readonly proved: Set<string> }

const atOnce = 8
const smallBytes = 64 * 1024
/** A file that was written longer ago is read before it counts: it may have rotted where it lay. */
const freshMs = 60_000

export function createBlockFiles(blocks: string, disk: Disk, shards: Pick<Shards, 'add'>): BlockFiles {
  const shardOf = (key: string): string => blocks + sep + shardName(key)
  const fileOf = (key: string): string => shardOf(key) + sep + key

  const read = (key: string): Promise<Uint8Array | undefined> =>
    orIfGone(readRegular(fileOf(key), maxBlockBytes), undefined)

  const has = async (key: string): Promise<boolean> =>
    (await orIfGone(statRegular(fileOf(key), maxBlockBytes), undefined)) !== undefined

  async function linkAll(files: readonly BlockFile[], keys: LinkedKeys, signal: AbortSignal): Promise<boolean> {
    const rest = [...files]
    let canLink = true
    const work = async () => {
      for (let next = rest.pop(); next && canLink; next = rest.pop()) {
        signal.throwIfAborted()
        keys.all.add(next.key)
        try {
          // What is there already may have rotted: the new one takes its place, at no cost.
          shards.add(shardName(next.key))
          await disk.link(next.file, fileOf(next.key))
          if (await isAsWritten(next)) keys.proved.add(next.key)
        } catch (error) {
          if (!cannotLink.has(codeOf(error) ?? '')) throw error
          canLink = false
        }
      }
    }
    await allOrNone(Array.from({ length: Math.min(atOnce, files.length) }, work))
    return canLink
  }

  async function isAsWritten({ key, written }: BlockFile): Promise<boolean> {
    if (!written || performance.now() - written.atMs > freshMs) return false
    const { size, mtimeMs } = await stat(fileOf(key))
    return size === written.bytes && mtimeMs === written.mtimeMs
  }

  async function writeAll(upload: Upload, keys: LinkedKeys, signal: AbortSignal): Promise<void> {
    const writing = new Set<Promise<void>>()
    const done = new Set<string>()
    const isOnly = upload.cids?.length === 1 && upload.bytes <= smallBytes
    try {
      for await (const block of upload.blocks(signal)) {
        signal.throwIfAborted()
        const key = blockKey(block.cid)
        if (isIdentity(block.cid) || done.has(key)) continue
        done.add(key)
        keys.all.add(key)
        const write = placed(key, block, keys, isOnly).finally(() => writing.delete(write))
        writing.add(write)
        write.catch(() => {})
        if (writing.size >= atOnce) await Promise.race(writing)
      }
    } finally {
      await allOrNone([...writing])
    }
  }

  /** `isOnly`: it is hardly ever there, and a look costs as much as a tenth of the write. */
  async function placed(key: string, { cid, bytes }: Block, { proved }: LinkedKeys, isOnly: boolean): Promise<void> {
    shards.add(shardName(key))
    const there = !isOnly && (await isThere(fileOf(key))) ? await read(key) : undefined
    if (!there || !proves(cid, there)) {
      if (!proves(cid, bytes)) return
      await disk.write(fileOf(key), bytes)
    }
    proved.add(key)
  }

  async function areWhole(keys: ReadonlySet<string>, signal: AbortSignal): Promise<boolean> {
    const rest = [...keys]
    let isWhole = true
    const work = async () => {
      for (let key = rest.pop(); key && isWhole; key = rest.pop()) {
        signal.throwIfAborted()
        const bytes = await read(key)
        if (!bytes || !provesKey(key, bytes)) isWhole = false
      }
    }
    await allOrNone(Array.from({ length: Math.min(atOnce, keys.size) }, work))
    return isWhole
  }

  return { shardOf, fileOf, read, has, linkAll, writeAll, areWhole }
}

const cannotLink: ReadonlySet<string> = new Set([
  'EXDEV',
  'EPERM',
  'ENOTSUP',
  'EOPNOTSUPP',
  'ENOSYS',
  'EMLINK',
  'EACCES',
  'ENOENT',
])

/** Fails with the first that does, once all are over: nothing goes on behind. */
async function allOrNone(work: readonly Promise<void>[]): Promise<void> {
  await Promise.allSettled(work)
  await Promise.all(work)
}
