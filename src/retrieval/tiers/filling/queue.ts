// What waits to be written to a slow tier: blocks with their bytes, as many as there is room for, and beyond that by name only, to be
// read again when it is their turn. First in, first out.
import type { CID } from 'multiformats/cid'

export type QueuedBlock = {
  readonly cid: CID
  /** Undefined: by name. */
  readonly bytes: Uint8Array | undefined
}

export interface FillQueue {
  has(key: string): boolean
  get(key: string): QueuedBlock | undefined
  /** False: there is no room for the bytes, nor, where it may wait by name, for another name. */
  add(key: string, job: QueuedBlock, mayBeByName: boolean): boolean
  hasRoom(bytes: Uint8Array): boolean
  take(key: string): QueuedBlock | undefined
  keys(): Iterable<string>
  clear(): void
  readonly size: number
  readonly bytes: number
  /** The queue has not much room left. */
  readonly isFilling: boolean
}

const mostNames = 16_384
const fullPart = 0.75

export function createFillQueue({ maxBytes, maxBlocks }: { maxBytes: number; maxBlocks: number }): FillQueue {
  const jobs = new Map<string, QueuedBlock>()
  let bytes = 0
  let names = 0

  const hasRoom = (block: Uint8Array): boolean => jobs.size - names < maxBlocks && bytes + block.byteLength <= maxBytes

  return {
    has: (key) => jobs.has(key),
    get: (key) => jobs.get(key),
    add(key, job, mayBeByName) {
      if (job.bytes && hasRoom(job.bytes)) {
        jobs.set(key, job)
        bytes += job.bytes.byteLength
        return true
      }
      if (!mayBeByName || names >= mostNames) return false
      jobs.set(key, { cid: job.cid, bytes: undefined })
      names++
      return true
    },
    hasRoom,
    take(key) {
      const job = jobs.get(key)
      if (!job) return undefined
      jobs.delete(key)
      if (job.bytes) bytes -= job.bytes.byteLength
      else names--
      return job
    },
    keys: () => jobs.keys(),
    clear() {
      jobs.clear()
      bytes = 0
      names = 0
    },
    get size() {
      return jobs.size
    },
    get bytes() {
      return bytes
    },
    get isFilling() {
      return bytes > fullPart * maxBytes || jobs.size > fullPart * maxBlocks
    },
  }
}
