// One spool while it is filled: each block a file, synced to the disk when its `put` resolves. A first block that is small stays
// in memory: where it is the only one, mostly a provider of this machine writes it a moment later.
import { link, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import type { Profile, WrittenFile } from '../../../backends/pinning/contract.ts'
import { type Block, blockKey } from '../../core/block.ts'
import { makeFolder, syncFolder, writeStamped } from '../../core/disk/files.ts'
import { carHeader, carSectionBytes } from '../../ipld/car.ts'
import { diskFailure } from '../failures.ts'
import { blockName, type StoredUpload } from './stored-upload.ts'

export interface Filling {
  put(cid: CID, bytes: Uint8Array): Promise<void>
  has(cid: CID): boolean
  /** The bytes of a block that `put` or `adopt` has taken. */
  read(cid: CID): Promise<Uint8Array>
  /** Takes a block that another spool has, by a second name for its file; resolves with its size. */
  adopt(cid: CID, from: Pick<Filling, 'place'>): Promise<number>
  /** Where a block lies. */
  place(cid: CID): BlockPlace
  /** `only`: the one block, where it is not on the disk yet. */
  finish(root: CID, profile: Profile, bytes: number): Promise<{ stored: StoredUpload; only: OnlyBlock | undefined }>
}

type BlockPlace =
  | { readonly bytes: Uint8Array; readonly file?: undefined }
  | { readonly file: string; readonly written: WrittenFile }

export type OnlyBlock = { readonly block: Block; readonly write: () => Promise<void> }

const mostInMemory = 64 * 1024

export function createFilling(folder: string): Filling {
  const begun = new Set<string>()
  const written = new Map<string, WrittenFile>()
  const cids: CID[] = []
  const counted = new Set<string>()
  let sections = 0
  let only: Block | undefined
  let made: Promise<void> | undefined

  // So that the next write tries it again.
  const notMade = (error: unknown): never => {
    made = undefined
    throw error
  }

  async function onDisk<T>(work: () => Promise<T>): Promise<T> {
    try {
      await (made ??= makeFolder(folder).catch(notMade))
      return await work()
    } catch (error) {
      throw diskFailure(error, 'take an upload')
    }
  }

  async function write(key: string, bytes: Uint8Array): Promise<void> {
    // The importer may change the bytes once this resolves.
    const size = bytes.byteLength
    const file = join(folder, key)
    const mtimeMs = await onDisk(() =>
      writeStamped(file, bytes).catch(async (error: unknown) => {
        // A part of it would be in the way of another try.
        await rm(file, { force: true }).catch(() => {})
        throw error
      }),
    )
    written.set(key, { bytes: size, mtimeMs, atMs: performance.now() })
  }

  /** Whether the block is a new one. */
  function note(cid: CID, bytes: number): boolean {
    const name = blockName(cid)
    if (!counted.has(name)) {
      counted.add(name)
      sections += carSectionBytes(cid, bytes)
    }
    const key = blockKey(cid)
    if (begun.has(key)) return false
    begun.add(key)
    cids.push(cid)
    return true
  }

  async function writeFirst(): Promise<void> {
    const first = only
    only = undefined
    if (first) await write(blockKey(first.cid), first.bytes)
  }

  function place(cid: CID): BlockPlace {
    const key = blockKey(cid)
    if (only && blockKey(only.cid) === key) return only
    const file = written.get(key)
    if (!file) throw new Error(`${cid} is not in this spool`)
    return { file: join(folder, key), written: file }
  }

  async function put(cid: CID, bytes: Uint8Array): Promise<void> {
    if (!note(cid, bytes.byteLength)) return
    if (cids.length === 1 && bytes.byteLength <= mostInMemory) {
      only = { cid, bytes: Uint8Array.from(bytes) }
      return
    }
    await writeFirst()
    await write(blockKey(cid), bytes)
  }

  return {
    put,
    place,
    has: (cid) => begun.has(blockKey(cid)),
    async read(cid) {
      const at = place(cid)
      return at.file === undefined ? at.bytes : onDisk(() => readFile(at.file))
    },
    async adopt(cid, from) {
      const at = from.place(cid)
      if (at.file === undefined) {
        await put(cid, at.bytes)
        return at.bytes.byteLength
      }
      const { file, written: as } = at
      if (note(cid, as.bytes)) {
        await writeFirst()
        const key = blockKey(cid)
        await onDisk(() => link(file, join(folder, key)))
        written.set(key, as)
      }
      return as.bytes
    },
    async finish(cid, profile, bytes) {
      const carBytes = carHeader(cid).byteLength + sections
      const stored = { cid, profile, bytes, carBytes, folder, written, cids }
      if (!only) {
        await onDisk(() => syncFolder(folder))
        return { stored, only: undefined }
      }
      const block = only
      const writeAll = () => write(blockKey(block.cid), block.bytes).then(() => syncFolder(folder))
      return { stored, only: { block, write: writeAll } }
    },
  }
}
