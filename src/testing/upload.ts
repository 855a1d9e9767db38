// An upload in memory, as providers receive it: readable repeatedly, as a file, as a CAR, as
// blocks.
import type { CID } from 'multiformats/cid'
import type { Profile, Upload } from '../../backends/pinning/contract.ts'
import { type Block, blockKey } from '../core/cid.ts'
import { linksOf } from '../ipld/block-links.ts'
import { carHeader, carSection } from '../ipld/car.ts'
import { addFile, type BlockMap } from './content.ts'

export type MemoryUpload = Upload & { readonly reads: { files: number; cars: number } }

export async function memoryUpload(bytes: Uint8Array, profile: Profile = 'unixfs-v1-2025'): Promise<MemoryUpload> {
  const map: BlockMap = new Map()
  const { cid } = await addFile(map, bytes, profile === 'unixfs-v1-2025' ? 'v1' : 'v0')
  const all: Block[] = []
  const walk = (one: CID) => {
    const block = { cid: one, bytes: map.get(blockKey(one)) as Uint8Array }
    all.push(block)
    for (const link of linksOf(block)) walk(link)
  }
  walk(cid)
  const car = Buffer.concat([carHeader(cid), ...all.flatMap((block) => [...carSection(block)])])
  const reads = { files: 0, cars: 0 }
  const inChunks = async function* (whole: Uint8Array) {
    for (let at = 0; at < whole.byteLength; at += 65_536) yield whole.subarray(at, at + 65_536)
  }
  return {
    cid,
    profile,
    bytes: bytes.byteLength,
    carBytes: car.byteLength,
    reads,
    file() {
      reads.files++
      return inChunks(bytes)
    },
    car() {
      reads.cars++
      return inChunks(car)
    },
    async *blocks() {
      yield* all
    },
  }
}
