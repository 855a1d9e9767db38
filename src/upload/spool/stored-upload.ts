// A stored upload, read from its block files as a file, a CAR or blocks, as often as needed. Every block read from the disk
// is hashed again: a provider must never get damaged bytes.
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { decode as decodePb } from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import type { CID } from 'multiformats/cid'
import type { BlockFile, LocalStore, Profile, Upload, WrittenFile } from '../../../backends/pinning/contract.ts'
import { createPending } from '../../content/dag/pending.ts'
import { entityOf } from '../../content/resolve.ts'
import { type Block, blockKey, isIdentity, maxBlockBytes, proves } from '../../core/block.ts'
import { codec } from '../../core/cid.ts'
import { orIfGone } from '../../core/disk/files.ts'
import { readRegular } from '../../core/disk/regular.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import { blocksBelow } from '../../ipld/block-links.ts'
import { writeCar } from '../../ipld/car.ts'
import { type LazyLink, lazyLinksInOrder } from '../../ipld/dag-links.ts'
import { claimedSize, readNode } from '../../ipld/unixfs.ts'

export type StoredUpload = {
  readonly cid: CID
  readonly profile: Profile
  readonly bytes: number
  readonly carBytes: number
  /** Holds one file per block, named by the block's key. */
  readonly folder: string
  /** Other places to look for a block that is missing or damaged in the folder. */
  readonly stores?: readonly LocalStore[] | undefined
  /** What this process wrote into the folder, by block key. */
  readonly written?: ReadonlyMap<string, WrittenFile>
  readonly cids?: readonly CID[]
  /** Its only block while that is in memory and in no folder. */
  readonly inMemory?: () => Block | undefined
}

export function storedUpload({
  cid: root,
  profile,
  bytes,
  carBytes,
  folder,
  stores = [],
  ...stored
}: StoredUpload): Upload {
  const { written, cids, inMemory } = stored

  async function read(cid: CID, signal: AbortSignal): Promise<Uint8Array> {
    signal.throwIfAborted()
    if (isIdentity(cid)) return cid.multihash.digest
    const only = inMemory?.()
    if (only && blockKey(only.cid) === blockKey(cid)) return only.bytes
    let cause: unknown
    const block = await readRegular(join(folder, blockKey(cid)), maxBlockBytes).catch((error: unknown) => {
      cause = error
    })
    signal.throwIfAborted()
    if (block && proves(cid, block)) return block
    for (const store of stores) {
      const kept = await store.get(cid).catch(() => undefined)
      if (kept && proves(cid, kept)) return kept
    }
    throw lost(cid, cause)
  }

  /** Each block once, parents first. A link waits only if it is new: a few blocks may have millions of links to the same ones. */
  async function* walk(signal: AbortSignal): AsyncGenerator<Block> {
    const seen = new Set([blockName(root)])
    const isNew = (cid: CID): boolean => {
      const name = blockName(cid)
      if (seen.has(name)) return false
      seen.add(name)
      return true
    }
    const ahead: CID[] = [root]
    for (let cid = ahead.pop(); cid; cid = ahead.pop()) {
      const block = { cid, bytes: await read(cid, signal) }
      const links = await blocksBelow(block, isNew)
      yield block
      for (let link = links.pop(); link; link = links.pop()) ahead.push(link)
    }
  }

  /** Depth first, a block as often as it is linked to. */
  async function* walkAgain(signal: AbortSignal): AsyncGenerator<Block & { readonly isLeaf: boolean }> {
    const pending = createPending<LazyLink>()
    pending.push([{ Hash: root }], 0)
    for (let link = pending.pop(); link; link = pending.pop()) {
      const { Hash: cid } = link
      const block = { cid, bytes: await read(cid, signal) }
      const links = await lazyLinksInOrder(block)
      yield { ...block, isLeaf: links.length === 0 }
      pending.push(links, block.bytes.byteLength + links.length * bytesALink)
    }
  }

  async function files(): Promise<BlockFile[] | undefined> {
    const keys = await orIfGone(readdir(folder), [])
    // A crash may have left the folder without its block.
    if (keys.length === 0) return undefined
    return keys.map((key) => ({ key, file: join(folder, key), written: written?.get(key) }))
  }

  return {
    cid: root,
    profile,
    bytes,
    carBytes,
    // What another process left may be cut: linked, it would take the place of a good copy.
    ...(!inMemory && written && { files }),
    cids,
    async *file(signal) {
      if (fileBytesOf({ cid: root, bytes: await read(root, signal) }) === undefined)
        throw noFile(root, 'it is no file, and such a provider takes nothing else')
      let left = bytes
      // A pinned DAG comes from strangers: a few blocks that link to each other can stand for any number of pieces.
      let pieces = mostEmptyPieces + 2 * bytes
      for await (const { cid, bytes: block, isLeaf } of walkAgain(signal)) {
        if (--pieces < 0) throw noFile(root, 'it is made of too many empty blocks')
        if (cid.code === codec.dagPb && !isLeaf) continue
        const piece =
          cid.code === codec.dagPb ? (UnixFS.unmarshal(decodePb(block).Data ?? nothing).data ?? nothing) : block
        left -= piece.byteLength
        if (left < 0) break
        yield piece
      }
      if (left !== 0) throw noFile(root, 'it has other bytes than it declares')
    },
    car: (signal) => writeCar(root, walk(signal)),
    async *blocks(signal) {
      for await (const { cid, bytes: block } of walk(signal)) if (!isIdentity(cid)) yield { cid, bytes: block }
    },
  }
}

const nothing = new Uint8Array()
const mostEmptyPieces = 1024
/** What a link that waits takes besides the bytes of its block. */
const bytesALink = 256

/** The size of the file that this block is the root of; undefined if it is no file. */
export function fileBytesOf({ cid, bytes }: Block): number | undefined {
  try {
    const { kind, size } = entityOf(cid, bytes)
    return kind === 'file' ? size : undefined
  } catch (error) {
    if (isFailure(error, 'malformed')) return undefined
    throw error
  }
}

/**
 * Whether this block is the root of a file, or of a part of one, that declares more bytes than `most` or than a number can
 * count: a few blocks that are repeated can stand for any number of bytes.
 */
export function declaresMore({ cid, bytes }: Block, most: number): boolean {
  if (cid.code !== codec.dagPb) return false
  try {
    return !(claimedSize(readNode(cid, bytes)) <= Math.min(most, Number.MAX_SAFE_INTEGER))
  } catch (error) {
    if (isFailure(error, 'malformed')) return false
    throw error
  }
}

const noFile = (cid: CID, why: string): Failure =>
  new Failure('unsupported', `${cid} cannot be sent as a file: ${why}`, {
    source: 'content',
    facts: { class: 'content' },
  })

/** The name of a block in a CAR: the same bytes under another codec are another block. */
export const blockName = (cid: CID): string => `${cid.code}:${blockKey(cid)}`

const lost = (cid: CID, cause?: unknown): Failure =>
  new Failure(
    'broken',
    `the block ${cid} of an unfinished upload is lost or damaged on this disk; upload the file again`,
    {
      source: 'ours',
      cause,
      facts: { class: 'content' },
    },
  )
