// Which shards of the blocks folder exist. Most blocks that a gateway is asked for are not pinned here, and where their shard
// does not exist that is known without a look at the disk. All stores over one folder share this.
import { readdir } from 'node:fs/promises'
import { orIfGone } from '../../../src/core/disk/files.ts'
import { blocksIn } from './folders.ts'

/** Each is called by the name of its folder. */
export interface Shards {
  /** Before the first file is written into a shard. */
  add(shard: string): void
  /** Exact for what this process wrote; what others put there is seen after a second at most. */
  has(shard: string, now: number): Promise<boolean>
  /** The same at once: false where the disk has to be asked first. */
  lacks(shard: string, now: number): boolean
}

const believedMs = 1000

export const shardName = (key: string): string => key.slice(-2)

export function createShards(root: string): Shards {
  const known = new Set<string>()
  let listedAt = Number.NEGATIVE_INFINITY
  let listing: Promise<void> | undefined

  async function list(now: number): Promise<void> {
    for (const name of await orIfGone(readdir(blocksIn(root)), [])) known.add(name)
    listedAt = now
  }

  return {
    lacks: (shard, now) => now - listedAt < believedMs && !known.has(shard),
    add: (shard) => void known.add(shard),
    async has(shard, now) {
      if (known.has(shard)) return true
      if (now - listedAt < believedMs) return false
      listing ??= list(now).finally(() => {
        listing = undefined
      })
      await listing
      return known.has(shard)
    },
  }
}
