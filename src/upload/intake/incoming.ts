// What a request brings, spooled: files one by one, all of them as one directory, or CARs. Nothing of a body that fails is left.
import type { IncomingMessage } from 'node:http'
import { createGate } from '../../core/gate.ts'
import { mostEntries } from '../directory/paths.ts'
import { malformed } from '../failures.ts'
import { type BlockRules, spoolBlock } from './block.ts'
import type { KeptParts } from './part-watch.ts'
import { type PartName, type ReceiveOptions, receive } from './receive.ts'
import type { FileOptions, SpooledFile, SpooledUpload, Spooling } from './spooling.ts'

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
  readonly added: readonly SpooledUpload[]
  /** What providers are given. */
  readonly spooled: readonly SpooledFile[]
}

/** Parts that one request of this kind may have. */
export const mostPartsOf = (kind: UploadKind | undefined): number | undefined =>
  kind === 'directory' ? mostEntries : undefined

export function receiveIncoming(
  request: IncomingMessage,
  receiving: ReceiveOptions,
  own: IncomingOptions,
  spooling: Spooling,
): Promise<Incoming> {
  if (own.kind === 'directory') return receiveDirectory(request, receiving, own, spooling)
  const { parts } = own
  const options = { ...receiving, ...(parts && { parts }), ...(own.look && { look: own.look }) }
  if (own.kind === 'cars') {
    const budget = spooling.carBudget()
    return receiveParts(request, options, (bytes) => spooling.spoolCar(bytes, own, budget), spooling)
  }
  if (own.blocks) {
    const { blocks } = own
    // A block is in memory until all below it is found: one at a time.
    const gate = createGate({ most: 1, inLine: mostEntries, full: () => malformed('too many blocks at once') })
    const take: TakePart = async (bytes, _part, signal) => [
      await gate.run(() => spoolBlock(bytes, blocks, own, spooling), signal),
    ]
    return receiveParts(request, options, take, spooling)
  }
  const take: TakePart = async (bytes, part) => [await spooling.spoolFile(bytes, own, part.fileName)]
  return receiveParts(request, options, take, spooling)
}

/** Makes uploads of one part. */
type TakePart = (
  bytes: AsyncIterable<Uint8Array>,
  part: PartName,
  signal: AbortSignal,
) => Promise<readonly SpooledFile[]>

async function receiveParts(
  request: IncomingMessage,
  { look, ...receiving }: ReceiveOptions & Pick<IncomingOptions, 'look'>,
  take: TakePart,
  { drop }: Pick<Spooling, 'drop'>,
): Promise<Incoming> {
  const begun: SpooledFile[] = []
  try {
    const taken = await receive(request, receiving, async (bytes, signal, part) => {
      look?.(part)
      const uploads = await take(bytes, part, signal)
      begun.push(...uploads)
      return uploads
    })
    const spooled = taken.flat()
    return { added: spooled.map(({ added }) => added), spooled }
  } catch (error) {
    await Promise.all(begun.map(drop))
    throw error
  }
}

async function receiveDirectory(
  request: IncomingMessage,
  receiving: ReceiveOptions,
  own: IncomingOptions,
  { spoolDirectory }: Spooling,
): Promise<Incoming> {
  const { directory, ...file } = own
  const pathOf = directory?.pathOf ?? (({ path }: PartName) => path as string)
  const parts = directory ? 'every' : 'paths'
  const options: ReceiveOptions = { ...receiving, parts, mostParts: mostEntries }
  const spooled = await spoolDirectory({ ...file, isBare: directory?.isBare ?? false }, async (intake) => {
    const files = await receive(request, options, async (bytes, _signal, part) => {
      own.look?.(part)
      const path = pathOf(part)
      if (!isFolder(part)) return intake.file(path, bytes)
      for await (const _ of bytes) throw malformed(`the directory ${JSON.stringify(path)} has content`)
      return void intake.folder(path)
    })
    return files.filter((file) => file !== undefined)
  })
  // The rules of another door are those of a client that wants to know each directory.
  const folders = directory ? spooled.folders : [spooled.added]
  return { added: [...spooled.files, ...folders], spooled: [spooled] }
}

/** As clients of Kubo say it. */
export const isFolder = ({ type }: Pick<PartName, 'type'>): boolean => /^application\/x-directory\b/i.test(type)
