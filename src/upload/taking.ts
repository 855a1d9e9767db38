// Takes a file, a directory or a DAG of a request, counted and checked as it arrives, into the one intake of that request.

import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import { type Profile, type Shape, shapes, type Upload } from '../../backends/pinning/contract.ts'
import { type Block, isIdentity, maxBlockBytes, proves } from '../core/cid.ts'
import { type Clock, withDeadline } from '../core/clock.ts'
import { Failure, isFailure, malformed } from '../core/failure.ts'
import { createSemaphore } from '../core/semaphore.ts'
import type { Intake, StagedDag, Store } from '../store/store.ts'
import { busy, type Counter, type UploadAdmission, type UploadSlot } from './admission.ts'
import { type CarBudget, carBudget, spelledBy, takeCar } from './car.ts'
import { createTree, type FreeBuffers, importFile, maxEntries, onlyEntry, putTree } from './import.ts'
import { type KeptParts, type PartName, type ReceiveOptions, receive, tooLarge } from './receive.ts'
import { declaresMore, fileBytesOf, storedUpload } from './stored-upload.ts'

/** The answer to a client about one file, directory or root. */
export type Added = {
  readonly cid: CID
  /** Bytes of all its blocks; a block that occurs twice counts twice. */
  readonly dagBytes: number
  /** As the client sent it: untrusted, never used as a path. */
  readonly fileName: string | undefined
}

/** An upload that is whole here, and that no provider has been asked to hold yet. */
export type Received = {
  readonly upload: Upload
  readonly staged: StagedDag
  readonly counter: Counter
  readonly added: Added
}

/** `bytes` may be reused once it returns or resolves. */
export type Put = (cid: CID, bytes: Uint8Array) => void | Promise<void>

export type TakingOptions = {
  readonly store: Pick<Store, 'blocks'>
  readonly admission: Pick<UploadAdmission, 'count'>
  readonly admit: (cid: CID) => void
  readonly limits: { readonly maxBytes: number }
  readonly profile: Profile
  readonly closing: AbortSignal
}

export type FileOptions = {
  /** Replaces the shape of the profile. */
  readonly shape?: Shape
  readonly check?: TextCheck | undefined
  /** The slot that `enter` gave it. */
  readonly slot?: UploadSlot
  /** The gateways that it came through (CDN-Loop), for a provider that is a gateway, and for thin mode. */
  readonly via?: string
  /** Sees each block of a CAR. */
  readonly onCarBlock?: (block: Block) => void
}

/** A directory of files, which is one upload. */
type ReceivedDirectory = Received & {
  /** In the order in which they came. */
  readonly files: readonly Added[]
  /** Those below first; the last is the whole. */
  readonly folders: readonly Added[]
}

/** Takes the entries of a directory. Throws a Failure for a path that cannot be in it. */
type DirectoryIntake = {
  file(path: string, source: AsyncIterable<Uint8Array>): Promise<Added>
  /** A directory below, which may stay empty. */
  folder(path: string): void
}

type DirectoryOptions = Pick<FileOptions, 'shape' | 'slot'> & {
  /** The upload is the one directory or file that was sent, and not a directory around that. */
  readonly isBare?: boolean
}

/** Everything that it takes is in `intake` until that is dropped, also where it fails. */
interface Taking {
  file(intake: Intake, source: AsyncIterable<Uint8Array>, own: FileOptions, fileName?: string): Promise<Received>
  /** `bring` adds the files of the directory. */
  directory(
    intake: Intake,
    own: DirectoryOptions,
    bring: (directory: DirectoryIntake) => Promise<Added[]>,
  ): Promise<ReceivedDirectory>
  /** Takes every proved block of the DAG, in any order. */
  dag(intake: Intake, root: CID, blocks: AsyncIterable<Block>, slot: UploadSlot | undefined): Promise<Received>
  /** An upload for each root of a CAR, each of them whole. */
  car(intake: Intake, source: AsyncIterable<Uint8Array>, own: FileOptions, budget: CarBudget): Promise<Received[]>
  /** For one request. */
  carBudget(): CarBudget
}

const importsAtOnce = 8

export function createTaking(options: TakingOptions): Taking {
  const { store, admission, admit, limits, profile: ownProfile, closing } = options
  const free: FreeBuffers = []

  const received = (staged: StagedDag, via?: string): Pick<Received, 'upload' | 'staged'> => {
    const upload = storedUpload(staged, [staged, store.blocks])
    return { staged, upload: via === undefined ? upload : { ...upload, via } }
  }

  type Filled = Added & { readonly fileBytes?: number | undefined }

  /** Without a profile, the version of the root decides it. */
  async function take(
    intake: Intake,
    { profile, slot, via }: { profile: Profile | undefined; slot: UploadSlot | undefined; via?: string | undefined },
    fill: (put: Put, counter: Counter) => Promise<Filled>,
  ): Promise<Received> {
    const filling = intake.dag()
    const counter = admission.count(slot)
    // A denied block is not kept as part of another file either.
    const put: Put = (cid, bytes) => {
      admit(cid)
      return filling.put(cid, bytes)
    }
    try {
      const { fileBytes = counter.bytes, ...added } = await fill(put, counter)
      admit(added.cid)
      const staged = filling.finish(added.cid, profile ?? spelledBy(added.cid), fileBytes)
      return { ...received(staged, via), counter, added }
    } catch (error) {
      counter.release()
      throw error
    }
  }

  const file: Taking['file'] = (intake, source, own, fileName) => {
    const profile = own.shape === undefined ? ownProfile : undefined
    const shape = own.shape ?? shapes[ownProfile]
    return take(intake, { profile, slot: own.slot, via: own.via }, async (put, counter) => {
      const text = own.check && keepText(own.check)
      const imported = await importFile(counter.over(text ? text.over(source) : source), shape, put, free)
      text?.check()
      return { ...imported, fileName }
    })
  }

  const directory: Taking['directory'] = async (intake, own, bring) => {
    const profile = own.shape === undefined ? ownProfile : undefined
    const shape = own.shape ?? shapes[ownProfile]
    const tree = createTree()
    // Each import holds a chunk in memory, and many small files arrive at once.
    const gate = createSemaphore({
      most: importsAtOnce,
      inLine: maxEntries,
      full: () => busy('too many files at once'),
    })
    let files: Added[] = []
    let folders: Added[] = []
    const taken = await take(intake, { profile, slot: own.slot }, async (put, counter) => {
      files = await bring({
        folder: tree.folder,
        async file(path, source) {
          const file = tree.file(path)
          const imported = await gate.run(() => importFile(counter.over(source), shape, put, free), closing)
          file.entry = imported
          return { ...imported, fileName: path }
        },
      })
      const root = own.isBare ? onlyEntry(tree.root) : tree.root
      if (!root) throw malformed('an upload of several files and directories needs a directory around them')
      if (!('entries' in root)) return files[0] as Added
      const written = await putTree(root, {
        ...shape,
        async put(cid, bytes) {
          counter.add(bytes.byteLength)
          await put(cid, bytes)
        },
      })
      folders = written.map(({ path, ...node }) => ({ ...node, fileName: path }))
      return folders.at(-1) as Added
    })
    return { ...taken, files, folders }
  }

  const dag: Taking['dag'] = async (intake, root, blocks, slot) => {
    const taken = await take(intake, { profile: undefined, slot }, async (put, counter) => {
      let fileBytes: number | undefined
      for await (const { cid, bytes } of blocks) {
        if (cid.equals(root)) fileBytes = fileBytesOf({ cid, bytes })
        if (counter.bytes + bytes.byteLength > limits.maxBytes || declaresMore({ cid, bytes }, limits.maxBytes))
          throw tooLarge(limits.maxBytes)
        if (isIdentity(cid)) continue
        if (!proves(cid, bytes)) throw malformed(`the bytes of block ${cid} do not hash to its CID`)
        counter.add(bytes.byteLength)
        await put(cid, bytes)
      }
      return { cid: root, dagBytes: counter.bytes, fileName: undefined, fileBytes }
    })
    try {
      // Every linked block must be here: a provider would search for the missing ones, or hold half of the DAG.
      for await (const _ of storedUpload(taken.staged, [taken.staged]).blocks(closing));
    } catch (error) {
      taken.counter.release()
      throw isFailure(error, 'upstream-error') ? malformed(`blocks below ${root} are missing`, error) : error
    }
    return taken
  }

  const car: Taking['car'] = async (intake, source, own, budget) => {
    const counters: Counter[] = []
    const count = () => {
      const counter = admission.count(own.slot)
      counters.push(counter)
      return counter
    }
    try {
      const taken = await takeCar(source, own, budget, { intake, count, admit, limits, closing })
      return taken.map(({ staged, ...rest }) => ({ ...rest, ...received(staged, own.via) }))
    } catch (error) {
      for (const counter of counters) counter.release()
      throw error
    }
  }

  return { file, directory, dag, car, carBudget: () => carBudget(limits.maxBytes) }
}

// Reads a request: files one by one, all of them as one directory, CARs, or blocks with all below them.

/** The meaning of the parts of a request: a file each, the files of one directory, or a CAR each. */
export type UploadKind = 'files' | 'directory' | 'cars'

export type IncomingOptions = FileOptions & {
  readonly kind?: UploadKind
  readonly parts?: KeptParts
  /** Rules by which a directory is made; by default as `POST /add?wrap=true` has it. */
  readonly directory?: DirectoryRules
  /** Sees the name of a part before its first byte is read; throws a Failure to refuse it. */
  readonly checkPart?: (part: PartName) => void
  /** Each part is a block instead. */
  readonly blocks?: BlockRules
}

type DirectoryRules = {
  /** The path of a part, which may have any name. */
  readonly pathOf: (part: PartName) => string
  /** The upload is the one directory or file that was sent, and not a directory around that. */
  readonly isBare: boolean
}

type Incoming = {
  /** Answers to the client, in order. */
  readonly added: readonly Added[]
  /** Uploads for the providers. */
  readonly received: readonly Received[]
}

/** Parts that one request of this kind may have. */
export const maxPartsOf = (kind: UploadKind | undefined): number | undefined =>
  kind === 'directory' ? maxEntries : undefined

type Into = { readonly intake: Intake; readonly taking: Taking }

/** Everything is in `intake`, also what came before a failure. */
export function receiveIncoming(
  request: IncomingMessage,
  receiving: ReceiveOptions,
  own: IncomingOptions,
  { intake, taking }: Into,
): Promise<Incoming> {
  if (own.kind === 'directory') return receiveDirectory(request, receiving, own, { intake, taking })
  const { parts, checkPart, blocks } = own
  const options = { ...receiving, ...(parts && { parts }), ...(checkPart && { checkPart }) }
  if (own.kind === 'cars') {
    const budget = taking.carBudget()
    return receiveParts(request, options, (bytes) => taking.car(intake, bytes, own, budget))
  }
  if (blocks) {
    // A block is in memory until all below it is found: one at a time.
    const gate = createSemaphore({ most: 1, inLine: maxEntries, full: () => malformed('too many blocks at once') })
    return receiveParts(request, options, async (bytes, _part, signal) => [
      await gate.run(
        () => takeBlock(bytes, blocks, own, (root, dag) => taking.dag(intake, root, dag, own.slot)),
        signal,
      ),
    ])
  }
  return receiveParts(request, options, async (bytes, part) => [await taking.file(intake, bytes, own, part.fileName)])
}

/** Makes uploads of one part. */
type TakePart = (bytes: AsyncIterable<Uint8Array>, part: PartName, signal: AbortSignal) => Promise<readonly Received[]>

async function receiveParts(
  request: IncomingMessage,
  { checkPart, ...receiving }: ReceiveOptions & Pick<IncomingOptions, 'checkPart'>,
  take: TakePart,
): Promise<Incoming> {
  const begun: Received[] = []
  try {
    const taken = await receive(request, receiving, async (bytes, signal, part) => {
      checkPart?.(part)
      const uploads = await take(bytes, part, signal)
      begun.push(...uploads)
      return uploads
    })
    const received = taken.flat()
    return { added: received.map(({ added }) => added), received }
  } catch (error) {
    for (const { counter } of begun) counter.release()
    throw error
  }
}

async function receiveDirectory(
  request: IncomingMessage,
  receiving: ReceiveOptions,
  own: IncomingOptions,
  { intake, taking }: Into,
): Promise<Incoming> {
  const { directory, ...file } = own
  const pathOf = directory?.pathOf ?? (({ path }: PartName) => path as string)
  const parts = directory ? 'every' : 'paths'
  const options: ReceiveOptions = { ...receiving, parts, maxParts: maxEntries }
  const taken = await taking.directory(intake, { ...file, isBare: directory?.isBare ?? false }, async (into) => {
    const files = await receive(request, options, async (bytes, _signal, part) => {
      own.checkPart?.(part)
      const path = pathOf(part)
      if (!isFolder(part)) return into.file(path, bytes)
      for await (const _ of bytes) throw malformed(`the directory ${JSON.stringify(path)} has content`)
      return void into.folder(path)
    })
    return files.filter((file) => file !== undefined)
  })
  // The rules of another door are those of a client that wants to know each directory.
  const folders = directory ? taken.folders : [taken.added]
  return { added: [...taken.files, ...folders], received: [taken] }
}

/** As clients of Kubo say it. */
export const isFolder = ({ type }: Pick<PartName, 'type'>): boolean => /^application\/x-directory\b/i.test(type)

/** Names a block, and lists all that is below it, with itself. Throws a Failure for bytes that are no such block. */
type BlockRules = {
  readonly cidOf: (bytes: Uint8Array) => Promise<CID>
  readonly dagOf: (root: Block) => AsyncIterable<Block>
}

async function takeBlock(
  source: AsyncIterable<Uint8Array>,
  { cidOf, dagOf }: BlockRules,
  { slot }: FileOptions,
  take: (root: CID, blocks: AsyncIterable<Block>) => Promise<Received>,
): Promise<Received> {
  const pieces: Uint8Array[] = []
  let length = 0
  for await (const piece of source) {
    length += piece.byteLength
    if (length > maxBlockBytes) throw malformed(`the block is larger than the ${maxBlockBytes} bytes that one may have`)
    // The receiver frees a piece when it is asked for the next one.
    pieces.push(new Uint8Array(piece))
  }
  const bytes = Buffer.concat(pieces)
  const cid = await cidOf(bytes)
  return take(cid, withinQuota(dagOf({ cid, bytes }), slot, cid))
}

/** Blocks that did not come in the request of their client. `counted`: this one did. */
export async function* withinQuota(
  blocks: AsyncIterable<Block>,
  slot: FileOptions['slot'],
  counted?: CID,
): AsyncGenerator<Block> {
  for await (const block of blocks) {
    if (!counted || !block.cid.equals(counted)) slot?.quota?.add(block.bytes.byteLength)
    yield block
  }
}

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
}

/** Throws a Failure when the source is too large, empty, stuck or yields no bytes; passes on the source's own errors. */
export async function* bounded(source: AsyncIterable<Uint8Array>, limits: SourceLimits): AsyncGenerator<Uint8Array> {
  const { maxBytes, idleMs, clock, slot } = limits
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
      if (value.byteLength > 0) yield value
    }
    if (bytes === 0) throw malformed('the upload is empty')
  } finally {
    slot?.rate.turn(false)
    // Not awaited: a stuck source would never settle it.
    void pieces.return?.().catch(() => {})
  }
}

// Keeps the text of an upload, up to a limit, while it streams by, so that it can be checked before it is accepted.

export type TextCheck = {
  readonly maxBytes: number
  /** Throws a Failure that names what is wrong. */
  readonly check: (text: string) => void
}

export function keepText({ maxBytes, check }: TextCheck) {
  const pieces: Buffer[] = []
  let bytes = 0
  return {
    async *over(source: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
      for await (const piece of source) {
        bytes += piece.byteLength
        if (bytes > maxBytes) throw tooLong(maxBytes)
        pieces.push(Buffer.from(piece))
        yield piece
      }
    },
    check(): void {
      check(textOf(Buffer.concat(pieces)))
    },
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
