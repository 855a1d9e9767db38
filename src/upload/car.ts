// CARs that clients bring: every block is proved as it arrives, and each root has to be whole. What no root leads to is dropped.
import type { CID } from 'multiformats/cid'
import type { Profile } from '../../backends/pinning/contract.ts'
import { type Block, codec, isIdentity, isProvable, proves } from '../core/cid.ts'
import { type Failure, isFailure, malformed } from '../core/failure.ts'
import { readCar } from '../core/wire/car-stream.ts'
import { dagBlocks, type LazyLinks, lazyLinksInOrder } from '../ipld/block-links.ts'
import { inOwnIterations } from '../ipld/documents/read.ts'
import type { Filling, Intake, StagedDag } from '../store/store.ts'
import type { Counter } from './admission.ts'
import { tooLarge } from './receive.ts'
import { declaresMore, fileBytesOf } from './stored-upload.ts'
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
export type CarBudget = { left: number; readonly max: number }

export function carBudget(maxBytes: number): CarBudget {
  const max = maxBlocks(maxBytes)
  return { left: max, max }
}

type CarTaking = Pick<TakingOptions, 'admit' | 'limits' | 'closing'> & {
  readonly intake: Intake
  readonly count: () => Counter
}

type TakenRoot = { readonly staged: StagedDag; readonly counter: Counter; readonly added: Added }

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
  const blocks = provedBlocks(counter.over(source), { onRoots, onBlock: own.onCarBlock }, budget.max)
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
  max: number,
): AsyncGenerator<Block> {
  let count = 0
  for await (const { cid, bytes } of readCar(source, { broken, onRoots })) {
    if (++count > max) throw malformed(`the CAR has more than ${max} blocks`)
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
  if (!codecs.has(root.code)) throw otherCodec(root)
  if (!all.has(root)) throw incomplete(root, [root])
  const filling = intake.dag()
  let dagBytes = 0
  // Leaves have no links, so that their bytes need not be read again.
  const read = (cid: CID) => (leaves.has(cid.code) ? noBytes : all.read(cid))
  for await (const { cid } of dagBlocks(root, read, linksWithin(root, all, limits.maxBytes))) {
    closing.throwIfAborted()
    slot?.signal.throwIfAborted()
    if (--budget.left < 0)
      throw malformed(`the roots of the upload are made of more than ${budget.max} blocks together`)
    admit(cid)
    dagBytes += filling.adopt(cid)
  }
  const fileBytes = fileBytesOf({ cid: root, bytes: await all.read(root) })
  const staged = filling.finish(root, spelledBy(root), fileBytes ?? dagBytes)
  return { staged, added: { cid: root, dagBytes, fileName: undefined } }
}

const linksPerSlice = 1000
const noBytes = new Uint8Array()

/**
 * Lists the links of a block that are new, those in identity CIDs included. Throws a Failure that
 * names missing blocks, and for a file of more than `maxBytes` anywhere in the DAG.
 */
function linksWithin(root: CID, { has }: Pick<Filling, 'has'>, maxBytes: number) {
  return async (block: Block, isNew: (cid: CID) => boolean): Promise<CID[]> => {
    const found: CID[] = []
    const missing: CID[] = []
    let count = 0
    async function list(one: Block): Promise<void> {
      if (declaresMore(one, maxBytes)) throw tooLarge(maxBytes)
      for (const { Hash: cid } of await linksIn(one)) {
        if (++count % linksPerSlice === 0) await inOwnIterations()
        if (!codecs.has(cid.code)) throw otherCodec(cid)
        if (isIdentity(cid)) {
          if (!leaves.has(cid.code)) await list({ cid, bytes: cid.multihash.digest })
        } else if (isNew(cid)) (has(cid) ? found : missing).push(cid)
        if (missing.length === maxNamed) break
      }
    }
    await list(block)
    if (missing.length > 0) throw incomplete(root, missing)
    return found
  }
}

const otherCodec = (cid: CID): Failure =>
  malformed(`the CAR has a block of another codec, whose links are unknown: ${cid}`)

const incomplete = (root: CID, missing: readonly CID[]): Failure =>
  malformed(`the CAR is not complete: below its root ${root} it lacks ${missing.join(', ')}`)

async function linksIn(block: Block): Promise<LazyLinks> {
  try {
    return await lazyLinksInOrder(block)
  } catch (error) {
    throw isFailure(error, 'malformed') ? malformed(`the CAR has a malformed block: ${error.message}`, error) : error
  }
}
