// What a request brings, spooled: files one by one, or all of them as one directory. Nothing of a body that fails is left.
import type { IncomingMessage } from 'node:http'
import { mostEntries } from '../directory/paths.ts'
import { malformed } from '../failures.ts'
import type { KeptParts } from './part-watch.ts'
import { type PartName, type ReceiveOptions, receive } from './receive.ts'
import type { Added, FileOptions, SpooledFile, Spooling } from './spooling.ts'

/** What the parts of a request are: a file each, or the files of one directory. */
export type UploadKind = 'files' | 'directory'

export type IncomingOptions = FileOptions & {
  readonly kind?: UploadKind
  readonly parts?: KeptParts
  /** Sees the name of a part before its first byte is read; throws a Failure to refuse it. */
  readonly look?: (part: PartName) => void
}

export type Incoming = {
  /** What the client is told, in order. */
  readonly added: readonly Added[]
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
  return own.kind === 'directory'
    ? receiveDirectory(request, receiving, own, spooling)
    : receiveFiles(request, receiving, own, spooling)
}

async function receiveFiles(
  request: IncomingMessage,
  receiving: ReceiveOptions,
  own: IncomingOptions,
  { spoolFile, drop }: Spooling,
): Promise<Incoming> {
  const { parts } = own
  const begun: SpooledFile[] = []
  try {
    const spooled = await receive(request, { ...receiving, ...(parts && { parts }) }, async (bytes, _signal, part) => {
      own.look?.(part)
      const one = await spoolFile(bytes, own, part.fileName)
      begun.push(one)
      return one
    })
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
  const options: ReceiveOptions = { ...receiving, parts: 'paths', mostParts: mostEntries }
  const spooled = await spoolDirectory(own, async (intake) => {
    const files = await receive(request, options, async (bytes, _signal, part) => {
      const path = part.path as string
      if (!isFolder(part)) return intake.file(path, bytes)
      for await (const _ of bytes) throw malformed(`the directory ${JSON.stringify(path)} has content`)
      return void intake.folder(path)
    })
    return files.filter((file) => file !== undefined)
  })
  return { added: [...spooled.files, spooled.added], spooled: [spooled] }
}

/** As clients of Kubo say it. */
const isFolder = ({ type }: PartName): boolean => /^application\/x-directory\b/i.test(type)
