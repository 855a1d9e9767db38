// Turns the bytes of a request into staged uploads: files, the files of one directory, CARs, or blocks with all below them. They
// are checked as they arrive, and stay in the intake of the request until that is dropped, also where it fails.

import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import { type Profile, type Shape, shapes, type Upload } from '../../backends/pinning/contract.ts'
import { type Block, codec, isIdentity, isProvable, maxBlockBytes, proves } from '../core/cid.ts'
import { type Clock, withDeadline } from '../core/clock.ts'
import { Failure, isFailure, malformed } from '../core/failure.ts'
import { createSemaphore } from '../core/semaphore.ts'
import { readCar } from '../core/wire/car-stream.ts'
import { dagBlocks, type LazyLinks, lazyLinksInOrder } from '../ipld/block-links.ts'
import { inOwnIterations } from '../ipld/documents.ts'
import type { Filling, Intake, StagedDag, Store } from '../store/store.ts'
import { busy, type UploadSlot } from './admission.ts'
import {
  createTree,
  type FreeBuffers,
  type ImportedFile,
  importFile,
  maxEntries,
  onlyEntry,
  type Put,
  putTree,
} from './import.ts'
import { type KeptParts, type PartName, type ReceiveOptions, receive, type TakePart, tooLarge } from './receive.ts'
import { declaresMore, fileBytesOf, storedUpload } from './stored-upload.ts'

/** The answer to a client about one file, directory or root. */
export type Added = {
  readonly cid: CID
  /** Bytes of all its blocks; a block that occurs twice counts twice. */
  readonly dagBytes: number
  /** As the client sent it: untrusted, never used as a path. */
  readonly fileName: string | undefined
}

/** An upload that is complete here, and that no provider has been asked to hold yet. */
export type Received = { readonly upload: Upload; readonly staged: StagedDag; readonly added: Added }

/** The meaning of the parts of a request: a file each, the files of one directory, or a CAR each. */
export type UploadKind = 'files' | 'directory' | 'cars'

export type IncomingOptions = {
  readonly kind?: UploadKind
  readonly parts?: KeptParts
  /** Replaces the shape of the profile. */
  readonly shape?: Shape
  /** The check of each file. */
  readonly check?: TextCheck | undefined
  /** The slot that `enter` gave it. */
  readonly slot?: UploadSlot
  /** The gateways that it came through (CDN-Loop), for a provider that is a gateway, and for thin mode. */
  readonly via?: string
  /** The name of each upload, for lists of pins. */
  readonly name?: string | undefined
  /** Sees each block of a CAR. */
  readonly onCarBlock?: (block: Block) => void
  /** Rules by which a directory is made; by default as `POST /add?wrap=true` has it. */
  readonly directory?: DirectoryRules
  /** Sees the name of a part before its first byte is read; throws a Failure to refuse it. */
  readonly checkPart?: (part: PartName) => void
  /** Each part is a block instead. */
  readonly blocks?: BlockRules
}

export type TextCheck = {
  readonly maxBytes: number
  /** Throws a Failure that names what is wrong. */
  readonly check: (text: string) => void
}

type DirectoryRules = {
  /** The path of a part, which may have any name. */
  readonly pathOf: (part: PartName) => string
  /** The upload is the one directory or file that was sent, and not a directory around that. */
  readonly isBare: boolean
}

/** Names a block, and lists all that is below it, with itself. Throws a Failure for bytes that are no such block. */
type BlockRules = {
  readonly cidOf: (bytes: Uint8Array) => Promise<CID>
  readonly dagOf: (root: Block) => AsyncIterable<Block>
}

type IngestOptions = {
  readonly store: Pick<Store, 'blocks'>
  /** Throws a Failure for a CID that must not be kept, also as a part of another file. */
  readonly admit: (cid: CID) => void
  readonly limits: { readonly maxBytes: number }
  readonly profile: Profile
  readonly closing: AbortSignal
}

/** The uploads of one request. */
export interface Ingest {
  file(source: AsyncIterable<Uint8Array>, fileName?: string): Promise<Received>
  /** Every proved block of the DAG, in any order. `counted`: this one was counted when it arrived. */
  dag(root: CID, blocks: AsyncIterable<Block>, counted?: CID): Promise<Received>
  /** Answers to the client, in order, and uploads for the providers. */
  request(
    request: IncomingMessage,
    receiving: ReceiveOptions,
  ): Promise<{ readonly added: readonly Added[]; readonly received: readonly Received[] }>
}

/** Parts that one request of this kind may have. */
export const maxPartsOf = (kind: UploadKind | undefined): number | undefined =>
  kind === 'directory' ? maxEntries : undefined

/** `count` counts bytes that did not come in the body of the request. */
type IngestInto = (intake: Intake, own: IncomingOptions, count: (bytes: number) => void) => Ingest

export function createIngest({ store, admit, limits, profile: ownProfile, closing }: IngestOptions): IngestInto {
  const free: FreeBuffers = []

  return (intake, own, count) => {
    const profile = own.shape === undefined ? ownProfile : undefined
    const importing = { shape: own.shape ?? shapes[ownProfile], check: own.check, free }

    function received(staged: StagedDag, added: Added): Received {
      const { via, name } = own
      const upload = { ...storedUpload(staged, [staged, store.blocks]), ...(via && { via }), ...(name && { name }) }
      return { staged, added, upload }
    }

    async function stage(
      profile: Profile | undefined,
      fill: (put: Put) => Promise<Added & { readonly bytes: number }>,
    ): Promise<Received> {
      const filling = intake.dag()
      const put: Put = (cid, bytes) => {
        admit(cid)
        return filling.put(cid, bytes)
      }
      const { bytes, ...added } = await fill(put)
      admit(added.cid)
      return received(filling.finish(added.cid, profile ?? profileOf(added.cid), bytes), added)
    }

    const file: Ingest['file'] = (source, fileName) =>
      stage(profile, async (put) => {
        const { cid, dagBytes, fileBytes } = await ingestFile(source, { ...importing, put })
        return { cid, dagBytes, fileName, bytes: fileBytes }
      })

    const dag: Ingest['dag'] = async (root, blocks, counted) => {
      const taken = await stage(undefined, async (put) => {
        let fileBytes: number | undefined
        let dagBytes = 0
        for await (const { cid, bytes } of blocks) {
          if (cid.equals(root)) fileBytes = fileBytesOf({ cid, bytes })
          if (dagBytes + bytes.byteLength > limits.maxBytes || declaresMore({ cid, bytes }, limits.maxBytes))
            throw tooLarge(limits.maxBytes)
          if (isIdentity(cid)) continue
          if (!proves(cid, bytes)) throw malformed(`the bytes of block ${cid} do not hash to its CID`)
          if (!counted?.equals(cid)) count(bytes.byteLength)
          dagBytes += bytes.byteLength
          await put(cid, bytes)
        }
        return { cid: root, dagBytes, fileName: undefined, bytes: fileBytes ?? dagBytes }
      })
      try {
        // Every linked block must be here: a provider would search for the missing ones, or hold half of the DAG.
        for await (const _ of storedUpload(taken.staged, [taken.staged]).blocks(closing));
      } catch (error) {
        throw isFailure(error, 'upstream-error') ? malformed(`blocks below ${root} are missing`, error) : error
      }
      return taken
    }

    async function block(source: AsyncIterable<Uint8Array>, { cidOf, dagOf }: BlockRules): Promise<Received> {
      const pieces: Uint8Array[] = []
      let length = 0
      for await (const piece of source) {
        length += piece.byteLength
        if (length > maxBlockBytes)
          throw malformed(`the block is larger than the ${maxBlockBytes} bytes that one may have`)
        // The receiver frees a piece when it is asked for the next one.
        pieces.push(new Uint8Array(piece))
      }
      const bytes = Buffer.concat(pieces)
      const cid = await cidOf(bytes)
      return dag(cid, dagOf({ cid, bytes }), cid)
    }

    /** Each part becomes the uploads that `take` makes of it. */
    async function each(request: IncomingMessage, receiving: ReceiveOptions, take: TakePart<readonly Received[]>) {
      const taken = await receive(request, receiving, async (bytes, signal, part) => {
        own.checkPart?.(part)
        return take(bytes, signal, part)
      })
      const received = taken.flat()
      return { added: received.map(({ added }) => added), received }
    }

    return {
      file,
      dag,
      async request(request, receiving) {
        const options = { ...receiving, ...(own.parts && { parts: own.parts }) }
        if (own.kind === 'directory') {
          const added: Added[] = []
          const root = await stage(profile, async (put) => {
            const made = await ingestDirectory((more, take) => receive(request, { ...receiving, ...more }, take), own, {
              ...importing,
              put,
              pass: (bytes) => bytes,
            })
            // Clients of another protocol than ours want to know each directory.
            added.push(...made.files, ...(own.directory ? made.folders : made.folders.slice(-1)))
            return made.root
          })
          return { added, received: [root] }
        }
        if (own.kind === 'cars') {
          const budget = carBudget(limits.maxBytes)
          return each(request, options, async (bytes) => {
            const taken = await takeCar(bytes, own, budget, { intake, admit, limits, closing })
            return taken.map(({ staged, added }) => received(staged, added))
          })
        }
        const { blocks } = own
        if (!blocks)
          return each(request, options, async (bytes, _signal, { fileName }) => [await file(bytes, fileName)])
        // A block is in memory until all below it is found: one at a time.
        const gate = createSemaphore({
          max: 1,
          maxQueued: maxEntries,
          full: () => malformed('too many blocks at once'),
        })
        return each(request, options, async (bytes, signal) => [await gate.run(() => block(bytes, blocks), signal)])
      },
    }
  }
}

type ImportInto = {
  readonly shape: Shape
  readonly check?: TextCheck | undefined
  readonly free?: FreeBuffers
  readonly put: Put
}

export async function ingestFile(
  source: AsyncIterable<Uint8Array>,
  { shape, check, free, put }: ImportInto,
): Promise<ImportedFile> {
  const pieces: Buffer[] = []
  const imported = await importFile(check ? noted(source, check.maxBytes, pieces) : source, shape, put, free)
  check?.check(textOf(Buffer.concat(pieces)))
  return imported
}

async function* noted(source: AsyncIterable<Uint8Array>, maxBytes: number, pieces: Buffer[]) {
  let bytes = 0
  for await (const piece of source) {
    bytes += piece.byteLength
    if (bytes > maxBytes) throw tooLong(maxBytes)
    pieces.push(Buffer.from(piece))
    yield piece
  }
}

const tooLong = (maxBytes: number): Failure =>
  new Failure('too-large', `the document is larger than the ${maxBytes} bytes that can be checked against a schema`, {
    source: 'client',
  })

/** Decodes every byte, a byte order mark too: readers will get exactly the text that was checked. */
function textOf(bytes: Uint8Array): string {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes)
  } catch (error) {
    throw malformed('the document is not UTF-8', error)
  }
}

type ReceiveFor = <T>(options: Pick<ReceiveOptions, 'parts' | 'maxParts'>, take: TakePart<T>) => Promise<T[]>

type DirectoryInto = Omit<ImportInto, 'put'> & {
  /** With the signal of the part that the block is of: a node of a directory is of none. */
  readonly put: (cid: CID, bytes: Uint8Array, signal?: AbortSignal) => ReturnType<Put>
  /** Passes on the bytes of a part as they come. */
  readonly pass: (bytes: AsyncIterable<Uint8Array>, signal: AbortSignal, as: PartInFolder) => AsyncIterable<Uint8Array>
}

/** The path was checked. */
export type PartInFolder = { readonly path: string; readonly isFolder: boolean }

type IngestedDirectory = {
  /** In the order in which they came. */
  readonly files: readonly Added[]
  /** Those below first. */
  readonly folders: readonly Added[]
  readonly root: Added & { readonly bytes: number }
}

/** Each import holds a chunk in memory, and many small files arrive at once. */
const maxImports = 8

/** All parts of a request as the files of one directory. */
export async function ingestDirectory(
  receiveParts: ReceiveFor,
  { directory, checkPart }: Pick<IncomingOptions, 'directory' | 'checkPart'>,
  { pass, put, ...into }: DirectoryInto,
): Promise<IngestedDirectory> {
  const tree = createTree()
  const gate = createSemaphore({ max: maxImports, maxQueued: maxEntries, full: () => busy('too many files at once') })
  const taken = await receiveParts(
    { parts: directory ? 'every' : 'paths', maxParts: maxEntries },
    async (bytes, signal, part) => {
      checkPart?.(part)
      // Without rules of its own the parser refuses a part without a path.
      const path = directory?.pathOf(part) ?? (part.path as string)
      if (isFolder(part)) {
        tree.folder(path)
        for await (const _ of pass(bytes, signal, { path, isFolder: true }))
          throw malformed(`the directory ${JSON.stringify(path)} has content`)
        return undefined
      }
      const file = tree.file(path)
      const source = pass(bytes, signal, { path, isFolder: false })
      const ofPart = { ...into, put: (cid: CID, block: Uint8Array) => put(cid, block, signal) }
      const imported = await gate.run(() => ingestFile(source, ofPart), signal)
      file.entry = imported
      return { ...imported, fileName: path }
    },
  )
  const files = taken.filter((file) => file !== undefined)
  const root = directory?.isBare ? onlyEntry(tree.root) : tree.root
  if (!root) throw malformed('an upload of several files and directories needs a directory around them')
  const [only] = files
  if (!('entries' in root) && only) return { files, folders: [], root: { ...only, bytes: only.fileBytes } }
  const written = await putTree(root as typeof tree.root, { ...into.shape, put: async (cid, bytes) => put(cid, bytes) })
  const folders = written.map(({ path, ...node }) => ({ ...node, fileName: path }))
  const last = folders.at(-1) as Added
  return { files, folders, root: { ...last, bytes: last.dagBytes } }
}

/** As clients of Kubo say it. */
const isFolder = ({ type }: Pick<PartName, 'type'>): boolean => /^application\/x-directory\b/i.test(type)

// Reads the bytes of an upload that a program makes, with the limits and time limits that an HTTP body has.

type SourceLimits = {
  readonly maxBytes: number
  /** After this long without a byte the source counts as stuck. */
  readonly idleMs: number
  readonly clock: Clock
  /** Any of them ends the upload. */
  readonly signals: readonly AbortSignal[]
  /** Measures how fast the upload arrives, and may end it. */
  readonly slot?: Pick<UploadSlot, 'rate' | 'signal'> | undefined
  readonly count: (bytes: number) => void
}

/** Throws a Failure when the source is too large, empty, stuck or yields no bytes; passes on the source's own errors. */
export async function* bounded(source: AsyncIterable<Uint8Array>, limits: SourceLimits): AsyncGenerator<Uint8Array> {
  const { maxBytes, idleMs, clock, slot, count } = limits
  const signal = AbortSignal.any([...limits.signals, ...(slot ? [slot.signal] : [])])
  const late = () => new Failure('timeout', `upload timed out: no data for ${idleMs} ms`, { source: 'client' })
  const pieces = source[Symbol.asyncIterator]()
  let bytes = 0
  try {
    for (;;) {
      slot?.rate.turn(true)
      const next = idleMs > 0 ? withDeadline({ ms: idleMs, clock, signal, late }, () => pieces.next()) : pieces.next()
      const { done, value } = await next
      slot?.rate.turn(false)
      signal.throwIfAborted()
      if (done) break
      if (!(value instanceof Uint8Array)) throw malformed('a chunk of the upload is not a Uint8Array')
      bytes += value.byteLength
      slot?.rate.received(value.byteLength)
      if (bytes > maxBytes) throw tooLarge(maxBytes)
      count(value.byteLength)
      if (value.byteLength > 0) yield value
    }
    if (bytes === 0) throw malformed('the upload is empty')
  } finally {
    slot?.rate.turn(false)
    // Not awaited: a stuck source would never settle it.
    void pieces.return?.().catch(() => {})
  }
}

// CARs that clients bring: every block is proved as it arrives, and each root has to be complete. What no root leads to is dropped.

const maxRoots = 128
const maxBlocks = (maxBytes: number): number => 65_536 + Math.floor(maxBytes / 16_384)

/** Missing blocks that a refusal names. */
const maxNamed = 8

/** Blocks of these have no links. */
const leaves: ReadonlySet<number> = new Set([codec.raw, codec.cbor, codec.json])
const codecs: ReadonlySet<number> = new Set([...leaves, codec.dagPb, codec.dagCbor, codec.dagJson])

/** The profile that keeps the CID's version, for a DAG that no profile made. */
const profileOf = ({ version }: CID): Profile => (version === 0 ? 'unixfs-v0-2015' : 'unixfs-v1-2025')

/** Blocks that the roots of all CARs of a request may consist of. One block below many roots counts for each. */
type CarBudget = { remaining: number; readonly max: number }

function carBudget(maxBytes: number): CarBudget {
  const max = maxBlocks(maxBytes)
  return { remaining: max, max }
}

type CarInto = Pick<IngestOptions, 'admit' | 'limits' | 'closing'> & { readonly intake: Intake }
type CarOptions = Pick<IncomingOptions, 'slot' | 'onCarBlock'>
type CarRoot = Pick<Received, 'staged' | 'added'>

/** An upload for each root, in the order of the header. */
export async function takeCar(
  source: AsyncIterable<Uint8Array>,
  own: CarOptions,
  budget: CarBudget,
  into: CarInto,
): Promise<CarRoot[]> {
  const all = into.intake.dag()
  let roots: readonly CID[] = []
  const onRoots = (named: readonly CID[]) => {
    roots = rootsOf(named)
  }
  const blocks = provedBlocks(source, { onRoots, onBlock: own.onCarBlock }, budget.max)
  for await (const { cid, bytes } of blocks) await all.put(cid, bytes)
  const taken: CarRoot[] = []
  for (const root of roots) taken.push(await takeRoot(root, all, { own, budget, into }))
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
  { own: { slot }, budget, into }: { own: CarOptions; budget: CarBudget; into: CarInto },
): Promise<CarRoot> {
  const { intake, admit, limits, closing } = into
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
    if (--budget.remaining < 0)
      throw malformed(`the roots of the upload are made of more than ${budget.max} blocks together`)
    admit(cid)
    dagBytes += filling.adopt(cid)
  }
  const fileBytes = fileBytesOf({ cid: root, bytes: await all.read(root) })
  const staged = filling.finish(root, profileOf(root), fileBytes ?? dagBytes)
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
