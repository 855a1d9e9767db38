// What a request brings: files one by one, all of them as one directory, CARs, or blocks with all below them.
import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import { type Block, maxBlockBytes } from '../../core/cid.ts'
import { createGate } from '../../core/gate.ts'
import type { Intake } from '../../store/store.ts'
import { mostEntries } from '../directory/paths.ts'
import { malformed } from '../failures.ts'
import type { KeptParts } from './part-watch.ts'
import { type PartName, type ReceiveOptions, receive } from './receive.ts'
import type { Added, FileOptions, Received, Taking } from './taking.ts'

/** What the parts of a request are: a file each, the files of one directory, or a CAR each. */
export type UploadKind = 'files' | 'directory' | 'cars'

export type IncomingOptions = FileOptions & {
  readonly kind?: UploadKind
  readonly parts?: KeptParts
  /** How a directory is made; by default as `POST /add?wrap=true` has it. */
  readonly directory?: DirectoryRules
  /** Sees the name of a part before its first byte is read; throws a Failure to refuse it. */
  readonly look?: (part: PartName) => void
  /** Each part is a block instead. */
  readonly blocks?: BlockRules
}

export type DirectoryRules = {
  /** The path of a part, which may have any name. */
  readonly pathOf: (part: PartName) => string
  /** The upload is the one directory or file that was sent, and not a directory around that. */
  readonly isBare: boolean
}

export type Incoming = {
  /** What the client is told, in order. */
  readonly added: readonly Added[]
  /** What providers are given. */
  readonly received: readonly Received[]
}

/** Parts that one request of this kind may have. */
export const mostPartsOf = (kind: UploadKind | undefined): number | undefined =>
  kind === 'directory' ? mostEntries : undefined

type Into = { readonly intake: Intake; readonly taking: Taking }

/** Everything is in `intake`, also what came before a failure. */
export function receiveIncoming(
  request: IncomingMessage,
  receiving: ReceiveOptions,
  own: IncomingOptions,
  { intake, taking }: Into,
): Promise<Incoming> {
  if (own.kind === 'directory') return receiveDirectory(request, receiving, own, { intake, taking })
  const { parts, look, blocks } = own
  const options = { ...receiving, ...(parts && { parts }), ...(look && { look }) }
  if (own.kind === 'cars') {
    const budget = taking.carBudget()
    return receiveParts(request, options, (bytes) => taking.car(intake, bytes, own, budget))
  }
  if (blocks) {
    // A block is in memory until all below it is found: one at a time.
    const gate = createGate({ most: 1, inLine: mostEntries, full: () => malformed('too many blocks at once') })
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
  { look, ...receiving }: ReceiveOptions & Pick<IncomingOptions, 'look'>,
  take: TakePart,
): Promise<Incoming> {
  const begun: Received[] = []
  try {
    const taken = await receive(request, receiving, async (bytes, signal, part) => {
      look?.(part)
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
  const options: ReceiveOptions = { ...receiving, parts, mostParts: mostEntries }
  const taken = await taking.directory(intake, { ...file, isBare: directory?.isBare ?? false }, async (into) => {
    const files = await receive(request, options, async (bytes, _signal, part) => {
      own.look?.(part)
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

/** What the block is called, and all that is below it, with itself. Throws a Failure for bytes that are no such block. */
export type BlockRules = {
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
  return take(cid, withinQuota(cid, dagOf({ cid, bytes }), slot))
}

/** The root counted as it came; what is found below it is kept for the same client. */
async function* withinQuota(root: CID, blocks: AsyncIterable<Block>, slot: FileOptions['slot']): AsyncGenerator<Block> {
  for await (const block of blocks) {
    if (!block.cid.equals(root)) slot?.quota?.add(block.bytes.byteLength)
    yield block
  }
}
