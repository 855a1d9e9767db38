// Deletes from every tier what lies below a CID, as far as the tiers themselves know what that is. Pins are their provider's.
import type { CID } from 'multiformats/cid'
import { type Block, blockKey, isIdentity } from '../../core/block.ts'
import { codec } from '../../core/cid.ts'
import { wordsOf } from '../../core/failure.ts'
import { blocksBelow } from '../../ipld/block-links.ts'
import type { TierStack } from './stack.ts'

type Stack = Pick<TierStack, 'near' | 'lookAgain' | 'isPinned' | 'delete'>

/** What is larger is found by several walks. */
const usualMost = 500_000
const atOnce = 16

/**
 * `failures`: what was not read to its end, and why. Blocks below that are not among `cids`, and neither is what leads to them: a
 * repeated walk goes on there.
 */
export type Below = { readonly cids: readonly CID[]; readonly failures: readonly string[] }

type Step = { readonly cid: CID; readonly from: Step | undefined }

/**
 * The CIDs of what the tiers have, each before those that it alone leads to. Call it before the pins go, which are tiers, too. Does
 * not reject: where `signal` ends it, what was found until then counts.
 */
export async function belowIn(stack: Stack, root: CID, signal: AbortSignal, most = usualMost): Promise<Below> {
  const seen = new Set<string>()
  const cids: CID[] = []
  const failures = new Set<string>()
  const unread: Step[] = []
  const isNew = (cid: CID): boolean => {
    const key = keyOf(cid)
    if (isIdentity(cid) || seen.has(key)) return false
    seen.add(key)
    return true
  }
  let ahead: Step[] = isNew(root) ? [{ cid: root, from: undefined }] : []
  /** What leads to links that did not wait. */
  const cut = new Set<Step>()
  while (ahead.length > 0 && cids.length < most && !signal.aborted) {
    const some = ahead.splice(-Math.min(atOnce, most - cids.length))
    for (const { cid } of some) cids.push(cid)
    const read = await Promise.all(some.map(({ cid }) => readFrom(stack, cid, { signal, failures })))
    for (const [index, block] of read.entries()) {
      const from = some[index] as Step
      if (block === 'unread') unread.push(from)
      else if (block) for (const cid of await blocksBelow(block, isNew)) ahead.push({ cid, from })
      // This walk does not come to the first of them any more, and they may be found elsewhere.
      const over = ahead.length - (most - cids.length)
      if (over <= 0) continue
      for (const { cid, from } of ahead.slice(0, over)) {
        seen.delete(keyOf(cid))
        if (from) cut.add(from)
      }
      ahead = ahead.slice(over)
    }
  }
  const rest = [...cut, ...ahead.flatMap(({ from }) => from ?? [])]
  if (signal.aborted) failures.add(`what lies below was not read to its end: ${wordsOf(signal.reason)}`)
  else if (rest.length > 0) failures.add(`it has more than ${most} blocks: repeat the request for the rest`)
  const ways = waysTo([...unread, ...rest])
  return { cids: ways.size === 0 ? cids : cids.filter((cid) => !ways.has(cid)), failures: [...failures] }
}

const keyOf = (cid: CID): string => `${cid.code}:${blockKey(cid)}`

function waysTo(steps: readonly Step[]): ReadonlySet<CID> {
  const ways = new Set<CID>()
  for (const step of steps)
    for (let at: Step | undefined = step; at && !ways.has(at.cid); at = at.from) ways.add(at.cid)
  return ways
}

type Reading = { readonly signal: AbortSignal; readonly failures: Set<string> }

/** A block that one tier gave is whole, whatever became of the others. Unread: there may be one. Undefined: there is none, or a leaf. */
async function readFrom(stack: Stack, cid: CID, { signal, failures }: Reading): Promise<Block | 'unread' | undefined> {
  // What is a leaf by its codec is not read.
  if (cid.code === codec.raw) return undefined
  const silent: string[] = []
  const failed = (_tier: string, error: unknown) => void silent.push(wordsOf(error))
  try {
    const hit = stack.near(cid) ?? (await stack.lookAgain(cid, signal, failed))
    if (hit) return { cid, bytes: hit.bytes }
  } catch (error) {
    if (signal.aborted) return 'unread'
    silent.push(wordsOf(error))
  }
  for (const why of silent) failures.add(`what lies below some blocks is not known: ${why}`)
  return silent.length > 0 ? 'unread' : undefined
}

/** `kept`: blocks that a pin on this machine needs. `failures`: what could not be deleted in some tier, and why. */
export type Purged = { readonly purged: number; readonly kept: number; readonly failures: readonly string[] }

/** From the last to the first, so that what is left has a way to it. `isAll`: also what is pinned. Does not reject. */
export async function purge(
  stack: Stack,
  cids: readonly CID[],
  { signal, isAll = false }: { readonly signal: AbortSignal; readonly isAll?: boolean },
): Promise<Purged> {
  const failures = new Set<string>()
  const rest = [...cids]
  let [purged, kept] = [0, 0]
  const one = async (cid: CID): Promise<void> => {
    // A shared tier may have the only copy of it that other instances can read.
    if (!isAll && (await stack.isPinned(cid, signal))) return void kept++
    await stack.delete(cid, signal)
    purged++
  }
  const work = async (): Promise<void> => {
    for (let cid = rest.pop(); cid && !signal.aborted; cid = rest.pop())
      await one(cid).catch((error: unknown) => failures.add(wordsOf(error)))
  }
  await Promise.all(Array.from({ length: atOnce }, work))
  if (signal.aborted) failures.add(`not all of it was deleted: ${wordsOf(signal.reason)}`)
  return { purged, kept, failures: [...failures] }
}
