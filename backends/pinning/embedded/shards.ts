// Which shards of the blocks folder exist. Most blocks that a gateway is asked for are not pinned here, and where their shard
// does not exist that is known without a look at the disk. All stores over one folder share this.
import { readdir } from 'node:fs/promises'
import { basename } from 'node:path'
import { orIfGone } from '../../../src/core/files.ts'
import { blocksIn } from './folders.ts'

export interface Shards {
  /** Before the first file is written into a shard. */
  add(shard: string): void
  /** Exact for what this process wrote; what others put there is seen after a second at most. */
  has(shard: string, now: number): Promise<boolean>
  /** The same at once: false where the disk has to be asked first. */
  lacks(shard: string, now: number): boolean
}

const believedMs = 1000

export function createShards(root: string): Shards {
  const known = new Set<string>()
  let listedAt = Number.NEGATIVE_INFINITY
  let listing: Promise<void> | undefined

  async function list(now: number): Promise<void> {
    for (const name of await orIfGone(readdir(blocksIn(root)), [])) known.add(name)
    listedAt = now
  }

  return {
    lacks: (shard, now) => now - listedAt < believedMs && !known.has(basename(shard)),
    add: (shard) => void known.add(basename(shard)),
    async has(shard, now) {
      const name = basename(shard)
      if (known.has(name)) return true
      if (now - listedAt < believedMs) return false
      listing ??= list(now).finally(() => {
        listing = undefined
      })
      await listing
      return known.has(name)
    },
  }
}
