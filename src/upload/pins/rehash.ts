// Reads every block of a pin from one store of this machine and hashes it: disks rot, and say nothing.
import type { CID } from 'multiformats/cid'
import type { LocalStore } from '../../../backends/pinning/contract.ts'
import { blockKey, isIdentity, proves } from '../../core/cid.ts'
import { blocksBelow } from '../../ipld/block-links.ts'

export type Rehashed = {
  readonly blocks: number
  readonly bytes: number
  /** Blocks that are missing or not what they should be, the first of them. What lies below such a block is not known. */
  readonly damaged: readonly string[]
}

const mostTold = 20

export async function rehash(root: CID, store: LocalStore, signal: AbortSignal): Promise<Rehashed> {
  const seen = new Set<string>()
  // Asked before a link waits: a few blocks may link to the same ones millions of times.
  const isNew = (cid: CID): boolean => {
    const key = `${cid.code}:${blockKey(cid)}`
    if (seen.has(key)) return false
    seen.add(key)
    return true
  }
  const ahead: CID[] = [root].filter((cid) => !isIdentity(cid) && isNew(cid))
  const damaged: string[] = []
  let blocks = 0
  let bytes = 0
  for (let cid = ahead.pop(); cid; cid = ahead.pop()) {
    signal.throwIfAborted()
    const found = await store.get(cid)
    if (!found || !proves(cid, found)) {
      if (damaged.length < mostTold) damaged.push(cid.toString())
      continue
    }
    blocks++
    bytes += found.byteLength
    for (const link of await blocksBelow({ cid, bytes: found }, isNew)) ahead.push(link)
  }
  return { blocks, bytes, damaged }
}
