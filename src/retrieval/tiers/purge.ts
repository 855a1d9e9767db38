// Deletes from every tier what lies below a CID, as far as the tiers themselves know what that is.
// Pins are their provider's.
import type { CID } from 'multiformats/cid'
import { type Block, blockKey, codec, isIdentity } from '../../core/cid.ts'
import { wordsOf } from '../../core/failure.ts'
import { blocksBelow } from '../../ipld/block-links.ts'
import type { TierStack } from './tier-stack.ts'

/** A larger DAG is found by several requests. */
const defaultMaxBlocks = 500_000
const concurrency = 16

/**
 * `failures`: blocks that could not be read, and why. What lies below them is not among `cids`, nor
 * is what leads to them: a repeated request goes on there.
 */
export type Below = { readonly cids: readonly CID[]; readonly failures: readonly string[] }

type Step = { readonly cid: CID; readonly from: Step | undefined }

/**
 * Finds the CIDs of blocks that the tiers have, each before those that it alone leads to. Call it
 * before the pins go, which are tiers, too. Does not reject: where `signal` ends it, what was found
 * until then counts.
 */
export async function belowIn(
  stack: Pick<TierStack, 'near' | 'lookAgain'>,
  root: CID,
  signal: AbortSignal,
  maxBlocks = defaultMaxBlocks,
): Promise<Below> {
  const seen = new Set<string>()
  const cids: CID[] = []
  const failures = new Set<string>()
  const unread: Step[] = []
  /** Steps to blocks whose links were not all followed. */
  const cut = new Set<Step>()
  const isNew = (cid: CID): boolean => {
    const key = keyOf(cid)
    if (isIdentity(cid) || seen.has(key)) return false
    seen.add(key)
    return true
  }
  let ahead: Step[] = isNew(root) ? [{ cid: root, from: undefined }] : []

  /** Undefined: no tier has it, or it is a leaf. */
  async function read(step: Step): Promise<Block | undefined> {
    const { cid } = step
    if (cid.code === codec.raw) return undefined
    const errors: unknown[] = []
    try {
      const hit = stack.near(cid) ?? (await stack.lookAgain(cid, signal, (_tier, error) => errors.push(error)))
      // A block from one tier is complete, whatever became of the others.
      if (hit) return { cid, bytes: hit.bytes }
    } catch (error) {
      errors.push(error)
    }
    if (errors.length > 0) unread.push(step)
    if (!signal.aborted)
      for (const error of errors) failures.add(`what lies below some blocks is not known: ${wordsOf(error)}`)
    return undefined
  }

  while (ahead.length > 0 && cids.length < maxBlocks && !signal.aborted) {
    const some = ahead.splice(-Math.min(concurrency, maxBlocks - cids.length))
    for (const { cid } of some) cids.push(cid)
    const blocks = await Promise.all(some.map(read))
    for (const [index, block] of blocks.entries()) {
      if (!block) continue
      for (const cid of await blocksBelow(block, isNew)) ahead.push({ cid, from: some[index] })
      // Beyond the maximum the first of them go, and may be found again elsewhere.
      const over = Math.max(0, ahead.length - (maxBlocks - cids.length))
      for (const { cid, from } of ahead.slice(0, over)) {
        seen.delete(keyOf(cid))
        if (from) cut.add(from)
      }
      ahead = ahead.slice(over)
    }
  }
  for (const { from } of ahead) if (from) cut.add(from)
  if (signal.aborted) failures.add(`what lies below was not read to its end: ${wordsOf(signal.reason)}`)
  else if (cut.size > 0) failures.add(`it has more than ${maxBlocks} blocks: repeat the request for the rest`)
  const kept = new Set<CID>()
  for (const step of [...unread, ...cut])
    for (let at: Step | undefined = step; at && !kept.has(at.cid); at = at.from) kept.add(at.cid)
  return { cids: cids.filter((cid) => !kept.has(cid)), failures: [...failures] }
}

const keyOf = (cid: CID): string => `${cid.code}:${blockKey(cid)}`

/** `kept`: blocks that a pin on this machine needs. `failures`: deletes that failed, and why. */
export type Purged = { readonly purged: number; readonly kept: number; readonly failures: readonly string[] }

/**
 * Deletes from the last to the first, so that the rest has a way to it. `isAll`: also pinned blocks.
 * Does not reject.
 */
export async function purge(
  stack: Pick<TierStack, 'isPinned' | 'delete'>,
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
  await Promise.all(Array.from({ length: concurrency }, work))
  if (signal.aborted) failures.add(`not all of it was deleted: ${wordsOf(signal.reason)}`)
  return { purged, kept, failures: [...failures] }
}
