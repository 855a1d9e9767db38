// Deletes from every tier what lies below a CID, as far as the tiers themselves know what that is. Pins are their provider's.
import type { CID } from 'multiformats/cid'
import { blockKey, isIdentity } from '../../core/block.ts'
import { linksOf } from '../../ipld/block-links.ts'
import type { TierStack } from './stack.ts'

type Stack = Pick<TierStack, 'find' | 'delete'>

/** What is larger is deleted to here; its caches forget the rest in their own time. */
const mostBlocks = 500_000
const atOnce = 16

/** The CIDs of what the tiers have. Call it before the pins go, which are tiers, too. */
export async function belowIn(stack: Stack, root: CID, signal: AbortSignal): Promise<readonly CID[]> {
  const seen = new Set<string>()
  const found: CID[] = []
  const ahead = [root]
  for (let cid = ahead.pop(); cid && found.length < mostBlocks; cid = ahead.pop()) {
    const key = `${cid.code}:${blockKey(cid)}`
    if (isIdentity(cid) || seen.has(key)) continue
    seen.add(key)
    found.push(cid)
    const hit = await stack.find(cid, signal)
    if (hit) ahead.push(...linksOf({ cid, bytes: hit.bytes }))
  }
  return found
}

/** Resolves with what could not be deleted in some tier, and why. */
export async function purge(stack: Stack, cids: readonly CID[], signal: AbortSignal): Promise<readonly string[]> {
  const failures = new Set<string>()
  const rest = [...cids]
  const work = async (): Promise<void> => {
    for (let cid = rest.pop(); cid; cid = rest.pop()) {
      signal.throwIfAborted()
      await stack.delete(cid, signal).catch((error: unknown) => {
        signal.throwIfAborted()
        failures.add(error instanceof Error ? error.message : String(error))
      })
    }
  }
  await Promise.all(Array.from({ length: atOnce }, work))
  return [...failures]
}
