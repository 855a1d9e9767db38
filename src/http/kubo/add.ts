// Kubo's `add`: every part is a file, or all of them are one directory. A part that Kubo would
// treat differently (a symlink, a directory among files) is refused, not added as a file.

import { posix } from 'node:path'
import { malformed } from '../../core/failure.ts'
import type { PartName } from '../../upload/receive.ts'
import type { Added, AddOptions } from '../../upload/uploads.ts'
import { receiveUpload } from '../add/add.ts'
import { isOn, type KuboCall, optionsIn, readAddQuery, refuseOn, sendJson, spellingIn } from './call.ts'

export async function addFiles(call: KuboCall): Promise<void> {
  const { query, response } = call
  const { shape, isOnlyHashed, isUpgraded, isSilent, name, directory } = readAddQuery(query)
  const added = await receiveFiles(call, {
    kind: directory === undefined ? 'files' : 'directory',
    checkPart: directory === undefined ? checkPart : checkType,
    ...(directory && { directory: { pathOf, isBare: directory === 'only' } }),
    isOnlyHashed,
    name,
    ...(shape && { shape }),
  })
  const lines = added.map(({ cid, dagBytes, fileName }) => {
    const Hash = (isUpgraded ? cid.toV1() : cid).toString()
    const Name = directory === undefined ? nameOf(fileName) || Hash : fileName
    return { Name, Hash, Size: String(dagBytes) }
  })
  response.setHeader('X-Chunked-Output', '1')
  sendJson(call, ...(isSilent ? [] : lines))
}

/** A mode or time in a part's name matters only with `preserve-*`, which is refused. */
function checkPart({ fileName, type }: PartName): void {
  if (/^application\/x-directory\b/i.test(type))
    throw malformed('a directory needs recursive=true or wrap-with-directory=true')
  checkType({ type })
  if (nameOf(fileName).includes('/'))
    throw malformed('a file in a directory needs recursive=true or wrap-with-directory=true')
}

function checkType({ type }: Pick<PartName, 'type'>): void {
  if (/^application\/symlink\b/i.test(type))
    throw malformed('symbolic links are not supported: add the file that it points to')
}

/** Normalizes the path as Kubo does; one that leads upwards is kept, and refused later. */
function pathOf({ fileName = '' }: PartName): string {
  const path = unescaped(fileName)
  return path.split('/').includes('..') ? path : nameOf(fileName)
}

/** Only echoed to the client. */
function nameOf(fileName: string | undefined): string {
  if (fileName === undefined) return ''
  return posix.normalize(`/${unescaped(fileName)}`).replace(/^\/|\/$/g, '')
}

function unescaped(fileName: string): string {
  try {
    return decodeURIComponent(fileName.replaceAll('+', ' '))
  } catch {
    // As in Kubo, a name that cannot be decoded is kept as it is.
    return fileName
  }
}

const off: Readonly<Record<string, string>> = {
  'local-only': 'a root is stored completely or not at all',
  'allow-big-block': 'a block has 2 MiB at most',
}

export async function importCars(call: KuboCall): Promise<void> {
  const { query, response } = call
  const given = optionsIn(query, {})
  refuseOn(given, off)
  const spelled = spellingIn(given)
  // Everything is pinned, as with `add`; the option only controls the response.
  const tellsRoots = isOn(given, 'pin-roots', true)
  const tellsStats = isOn(given, 'stats', false)
  const stats = { BlockCount: 0, BlockBytesCount: 0 }
  const added = await receiveFiles(call, {
    kind: 'cars',
    checkPart: checkFile,
    onCarBlock({ bytes }) {
      stats.BlockCount++
      stats.BlockBytesCount += bytes.byteLength
    },
  })
  const roots = new Set(tellsRoots ? added.map(({ cid }) => spelled(cid)) : [])
  const lines = [...roots].map((root) => ({ Root: { Cid: { '/': root }, PinErrorMsg: '' } }))
  response.setHeader('X-Chunked-Output', '1')
  sendJson(call, ...lines, ...(tellsStats ? [{ Stats: stats }] : []))
}

/** Refuses parts that are not files. */
export function checkFile({ type }: PartName): void {
  const kind = /^application\/(x-directory|symlink)\b/i.exec(type)?.[1]
  if (kind)
    throw malformed(`only files are taken here: ${kind === 'symlink' ? 'a symbolic link' : 'a directory'} is none`)
}

/** Every part counts, whatever its name: clients of Kubo call them `file`, `data` or `path`. */
export const receiveFiles = (call: KuboCall, options: Omit<AddOptions, 'parts' | 'slot'>): Promise<Added[]> =>
  receiveUpload(call, call.deps, { ...options, parts: 'every' })
