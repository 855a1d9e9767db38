// DAGs as the tiers have them, without an upstream: which tier has which block, which blocks lie
// below a CID, and their removal. Pins are their provider's.
import type { CID } from 'multiformats/cid'
import type { Tier } from '../../../backends/tiers/contract.ts'
import { type Block, blockName, codec, isIdentity } from '../../core/cid.ts'
import { wordsOf } from '../../core/failure.ts'
import { blocksBelow } from '../../ipld/block-links.ts'
import type { Place, Placed } from '../../observe/block-locations.ts'
import type { TierStack } from './tier-stack.ts'

const concurrency = 16
/** A larger DAG is purged by several requests. */
const defaultMaxBlocks = 500_000

type Step = { readonly cid: CID; readonly from: Step | undefined }

type WalkOptions = {
  readonly signal: AbortSignal
  readonly maxBlocks: number
  readonly isDepthFirst: boolean
  /** Undefined: nothing below it is visited. Does not reject. */
  readonly visit: (step: Step) => Promise<Block | undefined>
}

/**
 * Visits each block once, after one that links to it. `cut`: the steps whose links were not all
 * followed. Beyond the maximum, the links that would be visited last are dropped, and may be found
 * again elsewhere. Does not reject: `signal` ends it early.
 */
async function walk(heads: readonly Step[], { signal, maxBlocks, isDepthFirst, visit }: WalkOptions) {
  const steps: Step[] = []
  const cut = new Set<Step | undefined>()
  const seen = new Set(heads.map(({ cid }) => blockName(cid)))
  const isNew = (cid: CID): boolean => !seen.has(blockName(cid)) && seen.add(blockName(cid)) !== undefined
  const ahead = [...heads]
  while (ahead.length > 0 && steps.length < maxBlocks && !signal.aborted) {
    const some = ahead.splice(isDepthFirst ? -concurrency : 0, Math.min(concurrency, maxBlocks - steps.length))
    steps.push(...some)
    for (const [index, block] of (await Promise.all(some.map(visit))).entries()) {
      if (!block) continue
      for (const cid of await blocksBelow(block, isNew)) ahead.push({ cid, from: some[index] })
      const kept = Math.min(ahead.length, maxBlocks - steps.length)
      for (const { cid, from } of isDepthFirst ? ahead.splice(0, ahead.length - kept) : ahead.splice(kept)) {
        seen.delete(blockName(cid))
        cut.add(from)
      }
    }
  }
  for (const { from } of ahead) cut.add(from)
  return { steps, cut }
}

/**
 * Finds the tiers that have the blocks of a DAG. `path`: the blocks that a path was resolved by,
 * the root's first; then comes what lies below the last of them. Nothing is copied from one tier to
 * another, so that the lookup does not change its own result. Does not reject.
 */
export async function findPlaces(
  tiers: readonly Pick<Tier, 'name' | 'get' | 'has'>[],
  path: readonly CID[],
  options: { readonly signal: AbortSignal; readonly maxBlocks: number },
): Promise<Placed> {
  const { signal } = options
  const heads: Step[] = []
  for (const cid of path) heads.push({ cid, from: heads.at(-1) })
  const found = new Map<Step, { readonly places: readonly Place[]; readonly bytes: Uint8Array | undefined }>()

  async function visit(step: Step): Promise<Block | undefined> {
    const { cid } = step
    const isInline = isIdentity(cid)
    const ask = (tier: Pick<Tier, 'has'>): Promise<Place> =>
      tier.has(cid, signal).then(
        (has) => (has ? 'has' : 'lacks'),
        () => 'unknown',
      )
    const places = isInline ? tiers.map(() => 'lacks' as const) : await Promise.all(tiers.map(ask))
    let bytes: Uint8Array | undefined = isInline ? cid.multihash.digest : undefined
    for (const [index, tier] of tiers.entries())
      if (places[index] === 'has' && cid.code !== codec.raw)
        bytes ??= await tier.get(cid, signal).catch(() => undefined)
    found.set(step, { places, bytes })
    // Siblings of the path are not what was asked for.
    return bytes && (step === heads.at(-1) || !heads.includes(step)) ? { cid, bytes } : undefined
  }

  const { steps, cut } = await walk(heads, { ...options, isDepthFirst: false, visit })
  const indexes = new Map(steps.map((step, index) => [step, index]))
  const blocks = steps.map((step) => {
    const { cid, from } = step
    const { places = [], bytes } = found.get(step) ?? {}
    return {
      cid: cid.toString(),
      ...(from && { parent: indexes.get(from) as number }),
      ...(bytes && { bytes: bytes.byteLength }),
      places,
      isAway: bytes === undefined && !(cid.code === codec.raw && places.includes('has')),
    }
  })
  return { tiers: tiers.map(({ name }) => name), blocks, isCut: signal.aborted || cut.size > 0 }
}

/**
 * `failures`: blocks that could not be read, and why. What lies below them is not among `cids`, nor
 * is what leads to them: a repeated request goes on there.
 */
export type Below = { readonly cids: readonly CID[]; readonly failures: readonly string[] }

/**
 * Finds the CIDs of blocks that the tiers have, each before those that it alone leads to. Call it
 * before the pins go, which are tiers, too. Does not reject: where `signal` ends it, what was found
 * until then counts.
 */
export async function belowIn(
  stack: Pick<TierStack, 'lookAgain'>,
  root: CID,
  signal: AbortSignal,
  maxBlocks = defaultMaxBlocks,
): Promise<Below> {
  const failures = new Set<string>()
  const incomplete: Step[] = []

  /** Undefined: no tier has it, or it is a leaf. */
  async function visit(step: Step): Promise<Block | undefined> {
    const { cid } = step
    if (isIdentity(cid)) return { cid, bytes: cid.multihash.digest }
    if (cid.code === codec.raw) return undefined
    const failed = (error: unknown) => ({ hit: undefined, failures: [error] })
    const { hit, failures: errors } = await stack.lookAgain(cid, signal).catch(failed)
    // A block from one tier is complete, whatever became of the others.
    if (hit) return { cid, bytes: hit.bytes }
    if (errors.length > 0) incomplete.push(step)
    if (!signal.aborted)
      for (const error of errors) failures.add(`what lies below some blocks is not known: ${wordsOf(error)}`)
    return undefined
  }

  const { steps, cut } = await walk([{ cid: root, from: undefined }], { signal, maxBlocks, isDepthFirst: true, visit })
  if (signal.aborted) failures.add(`what lies below was not read to its end: ${wordsOf(signal.reason)}`)
  else if (cut.size > 0) failures.add(`it has more than ${maxBlocks} blocks: repeat the request for the rest`)
  const kept = new Set<Step>()
  for (const step of [...incomplete, ...cut]) for (let at = step; at && !kept.has(at); at = at.from) kept.add(at)
  const cids = steps.flatMap((step) => (kept.has(step) || isIdentity(step.cid) ? [] : [step.cid]))
  return { cids, failures: [...failures] }
}

/** `kept`: blocks that a pin on this machine needs. `failures`: deletes that failed, and why. */
export type Purged = { readonly purged: number; readonly kept: number; readonly failures: readonly string[] }

/**
 * Deletes from the last to the first, so that the rest has a way to it. `isAll`: also pinned
 * blocks. Does not reject.
 */
export async function purge(
  stack: Pick<TierStack, 'isPinned' | 'delete'>,
  cids: readonly CID[],
  { signal, isAll = false }: { readonly signal: AbortSignal; readonly isAll?: boolean },
): Promise<Purged> {
  const failures = new Set<string>()
  const rest = [...cids]
  let [purged, kept] = [0, 0]
  const work = async (): Promise<void> => {
    for (let cid = rest.pop(); cid && !signal.aborted; cid = rest.pop())
      try {
        // A shared tier may have the only copy of it that other instances can read.
        if (!isAll && (await stack.isPinned(cid, signal))) kept++
        else {
          await stack.delete(cid, signal)
          purged++
        }
      } catch (error) {
        failures.add(wordsOf(error))
      }
  }
  await Promise.all(Array.from({ length: concurrency }, work))
  if (signal.aborted) failures.add(`not all of it was deleted: ${wordsOf(signal.reason)}`)
  return { purged, kept, failures: [...failures] }
}
