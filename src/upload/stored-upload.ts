// An upload in a store of this machine, read as a file, a CAR or blocks, as often as needed. Every block is hashed as it is read: a
// provider must never get damaged bytes.
import { decode as decodePb } from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import type { CID } from 'multiformats/cid'
import type { LocalStore, Profile, Upload } from '../../backends/pinning/contract.ts'
import { createPending } from '../content/dag/pending.ts'
import { entityOf } from '../content/resolve.ts'
import { type Block, codec, isIdentity, proves } from '../core/cid.ts'
import { Failure, isFailure } from '../core/failure.ts'
import { dagBlocks, type LazyLink, lazyLinksInOrder } from '../ipld/block-links.ts'
import { writeCar } from '../ipld/car.ts'
import { claimedSize, readNode } from '../ipld/unixfs.ts'

type Stored = {
  readonly cid: CID
  readonly profile: Profile
  readonly bytes: number
  readonly carBytes: number
  /** Its blocks, each once, where that is known without reading it. */
  readonly cids?: readonly CID[]
  readonly name?: string | undefined
}

/** `places`: where a block may be, asked in this order. */
export function storedUpload(
  { cid: root, profile, bytes, carBytes, cids, name }: Stored,
  places: readonly Pick<LocalStore, 'get'>[],
): Upload {
  async function read(cid: CID, signal: AbortSignal): Promise<Uint8Array> {
    signal.throwIfAborted()
    if (isIdentity(cid)) return cid.multihash.digest
    let cause: unknown
    for (const place of places) {
      const block = await place.get(cid).catch((error: unknown) => {
        cause = error
        return undefined
      })
      signal.throwIfAborted()
      if (block && proves(cid, block)) return block
    }
    throw lost(cid, cause)
  }

  /** Depth first, a block as often as it is linked to. */
  async function* blocksInOrder(signal: AbortSignal): AsyncGenerator<Block & { readonly isLeaf: boolean }> {
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

  const blocks = (signal: AbortSignal): AsyncGenerator<Block> => dagBlocks(root, (cid) => read(cid, signal))

  return {
    cid: root,
    profile,
    bytes,
    carBytes,
    cids,
    ...(name !== undefined && { name }),
    async *file(signal) {
      if (fileBytesOf({ cid: root, bytes: await read(root, signal) }) === undefined)
        throw noFile(root, 'it is no file, and such a provider takes nothing else')
      let remaining = bytes
      // A pinned DAG comes from strangers: a few blocks that link to each other can stand for any number of pieces.
      let pieces = maxEmptyPieces + 2 * bytes
      for await (const { cid, bytes: block, isLeaf } of blocksInOrder(signal)) {
        if (--pieces < 0) throw noFile(root, 'it is made of too many empty blocks')
        if (cid.code === codec.dagPb && !isLeaf) continue
        const piece =
          cid.code === codec.dagPb ? (UnixFS.unmarshal(decodePb(block).Data ?? nothing).data ?? nothing) : block
        remaining -= piece.byteLength
        if (remaining < 0) break
        yield piece
      }
      if (remaining !== 0) throw noFile(root, 'it has other bytes than it declares')
    },
    car: (signal) => writeCar(root, blocks(signal)),
    blocks,
  }
}

const nothing = new Uint8Array()
const maxEmptyPieces = 1024
/** Memory that a waiting link takes besides the bytes of its block. */
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
 * True if this block is the root of a file, or of a part of one, that declares more bytes than `maxBytes` or than a number can
 * count: a few blocks that are repeated can stand for any number of bytes.
 */
export function declaresMore({ cid, bytes }: Block, maxBytes: number): boolean {
  if (cid.code !== codec.dagPb) return false
  try {
    return !(claimedSize(readNode(cid, bytes)) <= Math.min(maxBytes, Number.MAX_SAFE_INTEGER))
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

/** The name of an upload: v0 and v1 of a CID are one. */
export const nameOf = (cid: CID): string => cid.toV1().toString()

const lost = (cid: CID, cause?: unknown): Failure =>
  new Failure(
    'upstream-error',
    `the block ${cid} of this upload is lost or damaged on this disk; upload the file again`,
    {
      source: 'ours',
      cause,
      facts: { class: 'content' },
    },
  )
