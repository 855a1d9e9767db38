// Deletes from every tier what lies below a CID, as far as the tiers themselves know what that is. Pins are their provider's.
import type { CID } from 'multiformats/cid'
import { blockKey, isIdentity } from '../../core/block.ts'
import { codec } from '../../core/cid.ts'
import { wordsOf } from '../../core/failure.ts'
import { linksInTurns } from '../../ipld/block-links.ts'
import type { TierStack } from './stack.ts'

type Stack = Pick<TierStack, 'findFast' | 'findPatiently' | 'delete'>

/** What is larger is deleted to here; its caches forget the rest in their own time. */
const usualMost = 500_000
const atOnce = 16

/** `failures`: what was not read to its end, and why. Blocks below that are not among `cids`. */
export type Below = { readonly cids: readonly CID[]; readonly failures: readonly string[] }

/**
 * The CIDs of what the tiers have. Call it before the pins go, which are tiers, too. Does not reject: where `signal` ends it, what
 * was found until then counts.
 */
export async function belowIn(stack: Stack, root: CID, signal: AbortSignal, most = usualMost): Promise<Below> {
  const seen = new Set<string>()
  const cids: CID[] = []
  const failures = new Set<string>()
  const ahead = [root]
  const isNew = (cid: CID): boolean => {
    const key = `${cid.code}:${blockKey(cid)}`
    if (isIdentity(cid) || seen.has(key)) return false
    seen.add(key)
    return true
  }
  while (ahead.length > 0 && cids.length < most && !signal.aborted) {
    const some = ahead.splice(-Math.min(atOnce, most - cids.length)).filter(isNew)
    cids.push(...some)
    const links = await Promise.all(some.map((cid) => linksIn(stack, cid, { signal, failures })))
    for (const of of links) for (const link of of) ahead.push(link)
  }
  if (signal.aborted) failures.add(`what lies below was not read to its end: ${wordsOf(signal.reason)}`)
  else if (ahead.some(isNew)) failures.add(`it has more than ${most} blocks; the rest goes when the caches make room`)
  return { cids, failures: [...failures] }
}

type Reading = { readonly signal: AbortSignal; readonly failures: Set<string> }

/** A block that one tier gave is whole, whatever became of the others. */
async function linksIn(stack: Stack, cid: CID, { signal, failures }: Reading): Promise<readonly CID[]> {
  // What is a leaf by its codec is not read.
  if (cid.code === codec.raw) return []
  const silent: string[] = []
  const failed = (_tier: string, error: unknown) => void silent.push(wordsOf(error))
  try {
    const hit = (await stack.findFast(cid, signal)) ?? (await stack.findPatiently(cid, signal, failed))
    if (hit) return await linksInTurns({ cid, bytes: hit.bytes })
  } catch (error) {
    if (!signal.aborted) silent.push(wordsOf(error))
  }
  for (const why of silent) failures.add(`what lies below some blocks is not known: ${why}`)
  return []
}

/** Resolves with what could not be deleted in some tier, and why; also where `signal` ended it. Does not reject. */
export async function purge(stack: Stack, cids: readonly CID[], signal: AbortSignal): Promise<readonly string[]> {
  const failures = new Set<string>()
  const rest = [...cids]
  const work = async (): Promise<void> => {
    for (let cid = rest.pop(); cid && !signal.aborted; cid = rest.pop())
      await stack.delete(cid, signal).catch((error: unknown) => failures.add(wordsOf(error)))
  }
  await Promise.all(Array.from({ length: atOnce }, work))
  if (signal.aborted) failures.add(`not all of it was deleted: ${wordsOf(signal.reason)}`)
  return [...failures]
}
