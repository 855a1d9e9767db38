// CARs that clients bring: every block is proved as it arrives, and each root has to be whole. What no root leads to is dropped.
import type { CID } from 'multiformats/cid'
import type { Profile } from '../../backends/pinning/contract.ts'
import { createPending } from '../content/dag/pending.ts'
import { type Block, codec, isIdentity, isProvable, proves } from '../core/cid.ts'
import { type Failure, isFailure } from '../core/failure.ts'
import { readCar } from '../core/wire/car-stream.ts'
import { type LazyLink, type LazyLinks, lazyLinksInOrder } from '../ipld/dag-links.ts'
import { inOwnTurns } from '../ipld/documents/read.ts'
import type { Filling, Intake, Kept } from '../store/store.ts'
import type { Counter } from './admission.ts'
import { malformed, tooLarge } from './failures.ts'
import { blockName, declaresMore, fileBytesOf } from './stored-upload.ts'
import type { Added, FileOptions, TakingOptions } from './taking.ts'

const maxRoots = 128
const maxBlocks = (maxBytes: number): number => 65_536 + Math.floor(maxBytes / 16_384)

/** Missing blocks that a refusal names. */
const maxNamed = 8

/** Blocks of these have no links. */
const leaves: ReadonlySet<number> = new Set([codec.raw, codec.cbor, codec.json])
const codecs: ReadonlySet<number> = new Set([...leaves, codec.dagPb, codec.dagCbor, codec.dagJson])

/** The profile that keeps the CID's version, for a DAG that no profile made. */
export const spelledBy = ({ version }: CID): Profile => (version === 0 ? 'unixfs-v0-2015' : 'unixfs-v1-2025')

/** Blocks that the roots of all CARs of a request may still be made of. One block below many roots counts for each. */
export type CarBudget = { left: number; readonly most: number }

export function carBudget(maxBytes: number): CarBudget {
  const most = maxBlocks(maxBytes)
  return { left: most, most }
}

type CarTaking = Pick<TakingOptions, 'admit' | 'limits' | 'closing'> & {
  readonly intake: Intake
  readonly count: () => Counter
}

type TakenRoot = { readonly kept: Kept; readonly counter: Counter; readonly added: Added }

/** An upload for each root, in the order of the header. */
export async function takeCar(
  source: AsyncIterable<Uint8Array>,
  own: FileOptions,
  budget: CarBudget,
  taking: CarTaking,
): Promise<TakenRoot[]> {
  const counter = taking.count()
  const all = taking.intake.dag()
  let roots: readonly CID[] = []
  const onRoots = (named: readonly CID[]) => {
    roots = rootsOf(named)
  }
  const blocks = provedBlocks(counter.over(source), { onRoots, onBlock: own.onCarBlock }, budget.most)
  for await (const { cid, bytes } of blocks) await all.put(cid, bytes)
  const taken: TakenRoot[] = []
  for (const root of roots) {
    // The blocks of all roots are those of the CAR, which count once.
    const counted = taken.length === 0 ? counter : taking.count()
    taken.push({ ...(await takeRoot(root, all, { own, budget, taking })), counter: counted })
  }
  return taken
}

function rootsOf(named: readonly CID[]): CID[] {
  const roots = [...new Map(named.map((root) => [root.toString(), root])).values()]
  if (roots.length === 0) throw malformed('the CAR names no root in its header: there is nothing to keep')
  if (roots.length > maxRoots) throw malformed(`the CAR has more than ${maxRoots} roots`)
  return roots
}

async function* provedBlocks(
  source: AsyncIterable<Uint8Array>,
  { onRoots, onBlock }: { onRoots: (roots: readonly CID[]) => void; onBlock: ((block: Block) => void) | undefined },
  most: number,
): AsyncGenerator<Block> {
  let count = 0
  for await (const { cid, bytes } of readCar(source, { broken, onRoots })) {
    if (++count > most) throw malformed(`the CAR has more than ${most} blocks`)
    onBlock?.({ cid, bytes })
    if (isIdentity(cid)) continue
    if (!isProvable(cid))
      throw malformed(`block ${cid} in the CAR has a hash function that is not known here, or a digest that was cut`)
    if (!proves(cid, bytes)) throw malformed(`the bytes of block ${cid} in the CAR do not hash to its CID`)
    yield { cid, bytes }
  }
}

const broken = (what: string, cause?: unknown): Failure => malformed(`the CAR ${what}`, cause)

async function takeRoot(
  root: CID,
  all: Filling,
  { own: { slot }, budget, taking }: { own: FileOptions; budget: CarBudget; taking: CarTaking },
): Promise<Omit<TakenRoot, 'counter'>> {
  const { intake, admit, limits, closing } = taking
  if (isIdentity(root)) throw malformed(`the root ${root} holds its content in itself: there is nothing to keep`)
  const filling = intake.dag()
  let dagBytes = 0
  for await (const cid of wholeDag(root, all, limits.maxBytes)) {
    closing.throwIfAborted()
    slot?.signal.throwIfAborted()
    if (--budget.left < 0)
      throw malformed(`the roots of the upload are made of more than ${budget.most} blocks together`)
    admit(cid)
    dagBytes += filling.adopt(cid)
  }
  const fileBytes = fileBytesOf({ cid: root, bytes: await all.read(root) })
  const kept = filling.finish(root, spelledBy(root), fileBytes ?? dagBytes)
  return { kept, added: { cid: root, dagBytes, fileName: undefined } }
}

/**
 * Every block below a root, each once, parents first. Throws a Failure that names what is missing, and for a file of more than
 * `maxBytes` anywhere in it.
 */
async function* wholeDag(root: CID, all: Pick<Filling, 'has' | 'read'>, maxBytes: number): AsyncGenerator<CID> {
  const seen = new Set<string>()
  const missing: CID[] = []
  const pending = createPending<LazyLink>()
  pending.push([{ Hash: root }], 0)
  for (let link = pending.pop(); link && missing.length < maxNamed; link = pending.pop()) {
    const { Hash: cid } = link
    const name = blockName(cid)
    if (seen.has(name)) continue
    seen.add(name)
    if (!codecs.has(cid.code)) throw malformed(`the CAR has a block of another codec, whose links are unknown: ${cid}`)
    const isHere = isIdentity(cid) || all.has(cid)
    if (!isHere) missing.push(cid)
    else if (!isIdentity(cid)) yield cid
    if (!isHere || leaves.has(cid.code)) continue
    const bytes = isIdentity(cid) ? cid.multihash.digest : await all.read(cid)
    pending.push(await linksAhead({ cid, bytes }, seen), bytes.byteLength)
    if (declaresMore({ cid, bytes }, maxBytes)) throw tooLarge(maxBytes)
  }
  if (missing.length > 0)
    throw malformed(`the CAR is not complete: below its root ${root} it lacks ${missing.join(', ')}`)
}

const linksATurn = 1000

/** The links that `wholeDag` has to follow: none to a leaf in its own CID, none twice. A block has room for a quarter of a million. */
export async function linksAhead(block: Block, seen: ReadonlySet<string>): Promise<LazyLink[]> {
  const ahead = new Map<string, LazyLink>()
  let count = 0
  for (const { Hash } of await linksIn(block)) {
    if (++count % linksATurn === 0) await inOwnTurns()
    if (isIdentity(Hash) && leaves.has(Hash.code)) continue
    const name = blockName(Hash)
    if (!seen.has(name)) ahead.set(name, ahead.get(name) ?? { Hash })
  }
  return [...ahead.values()]
}

async function linksIn(block: Block): Promise<LazyLinks> {
  try {
    return await lazyLinksInOrder(block)
  } catch (error) {
    throw isFailure(error, 'malformed') ? malformed(`the CAR has a malformed block: ${error.message}`, error) : error
  }
}
