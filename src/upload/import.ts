// Bytes to blocks in one pass, as they arrive. The profile alone decides how, and so which CID comes out (IPIP-499).
import { importer } from 'ipfs-unixfs-importer'
import type { CID } from 'multiformats/cid'
import type { Profile } from '../../backends/pinning/contract.ts'

const chunkBytes: Readonly<Record<Profile, number>> = {
  'unixfs-v1-2025': 1024 * 1024,
  'unixfs-v0-2015': 256 * 1024,
}

// Blocks of one upload that are written at a time: enough to keep a disk busy while the next ones arrive, and the most
// that an upload holds in memory.
const writesAtOnce: Readonly<Record<Profile, number>> = { 'unixfs-v1-2025': 2, 'unixfs-v0-2015': 8 }

/** `put` is awaited: a slow disk slows the sender down. */
export async function importFile(
  source: AsyncIterable<Uint8Array>,
  profile: Profile,
  put: (cid: CID, bytes: Uint8Array) => Promise<void>,
): Promise<CID> {
  const blockstore = {
    async put(cid: CID, bytes: Uint8Array) {
      await put(cid, bytes)
      return cid
    },
  }
  const options = {
    profile,
    chunker: (bytes: AsyncIterable<Uint8Array>) => chunks(bytes, chunkBytes[profile]),
    blockWriteConcurrency: writesAtOnce[profile],
    fileImportConcurrency: 1,
    wrapWithDirectory: false,
    reduceSingleLeafToSelf: true,
    leafType: 'file' as const,
  }
  let root: CID | undefined
  for await (const { cid } of importer([{ content: source }], blockstore, options)) root = cid
  if (!root) throw new Error('the importer made nothing of a file')
  return root
}

const leastRoom = 64 * 1024

/** Pieces of exactly `size` bytes, and what is left. Room grows with what came, so a slow small upload costs little. */
export async function* chunks(source: AsyncIterable<Uint8Array>, size: number): AsyncGenerator<Uint8Array> {
  let room = Buffer.alloc(0)
  let filled = 0
  let any = false
  for await (const piece of source) {
    for (let at = 0; at < piece.byteLength; ) {
      const taken = Math.min(piece.byteLength - at, size - filled)
      if (filled + taken > room.byteLength) {
        const larger = Buffer.allocUnsafeSlow(Math.min(size, Math.max(leastRoom, 2 * (filled + taken))))
        room.copy(larger, 0, 0, filled)
        room = larger
      }
      room.set(piece.subarray(at, at + taken), filled)
      filled += taken
      at += taken
      if (filled < size) continue
      yield room
      any = true
      room = Buffer.alloc(0)
      filled = 0
    }
  }
  if (filled > 0 || !any) yield room.subarray(0, filled)
}
