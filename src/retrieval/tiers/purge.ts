// Deletes from every tier what lies below a CID, as far as the tiers themselves know what that is. Pins are their provider's.
import type { CID } from 'multiformats/cid'
import { blockKey, isIdentity } from '../../core/block.ts'
import { codec } from '../../core/cid.ts'
import { wordsOf } from '../../core/failure.ts'
import { linksOf } from '../../ipld/block-links.ts'
import type { TierStack } from './stack.ts'

type Stack = Pick<TierStack, 'findFast' | 'findPatiently' | 'delete'>

/** What is larger is deleted to here; its caches forget the rest in their own time. */
const mostBlocks = 500_000
const atOnce = 16

/** `failures`: what was not read to its end, and why. Blocks below that are not among `cids`. */
export type Below = { readonly cids: readonly CID[]; readonly failures: readonly string[] }

/** The CIDs of what the tiers have. Call it before the pins go, which are tiers, too. */
export async function belowIn(stack: Stack, root: CID, signal: AbortSignal): Promise<Below> {
  const seen = new Set<string>()
  const cids: CID[] = []
  const failures = new Set<string>()
  const ahead = [root]
  for (let cid = ahead.pop(); cid && cids.length < mostBlocks; cid = ahead.pop()) {
    const key = `${cid.code}:${blockKey(cid)}`
    if (isIdentity(cid) || seen.has(key)) continue
    seen.add(key)
    cids.push(cid)
    ahead.push(...(await linksIn(stack, cid, { signal, failures })))
  }
  return { cids, failures: [...failures] }
}

type Reading = { readonly signal: AbortSignal; readonly failures: Set<string> }

/** A block that one tier gave is whole, whatever became of the others. */
async function linksIn(stack: Stack, cid: CID, { signal, failures }: Reading): Promise<readonly CID[]> {
  // What is a leaf by its codec is not read.
  if (cid.code === codec.raw) return []
  const silent: string[] = []
  const failed = (_tier: string, error: unknown) => void silent.push(wordsOf(error))
  const hit = (await stack.findFast(cid, signal)) ?? (await stack.findPatiently(cid, signal, failed))
  if (hit) return linksOf({ cid, bytes: hit.bytes })
  for (const why of silent) failures.add(`what lies below some blocks is not known: ${why}`)
  return []
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
        failures.add(wordsOf(error))
      })
    }
  }
  await Promise.all(Array.from({ length: atOnce }, work))
  return [...failures]
}
