// Kubo's `add`: every part is a file, or all of them are one directory. A part that Kubo would
// treat differently (a symlink, a directory among files) is refused, not added as a file.
import { posix } from 'node:path'
import type { PartName } from '../../upload/intake/receive.ts'
import { badCall, type KuboCall, sendJson } from './call.ts'
import { readAddQuery } from './options.ts'
import { receiveFiles } from './receiving.ts'

export async function addFiles(call: KuboCall): Promise<void> {
  const { query, response } = call
  const { shape, isOnlyHashed, isUpgraded, isSilent, name, directory } = readAddQuery(query)
  const added = await receiveFiles(call, {
    kind: directory === undefined ? 'files' : 'directory',
    look: directory === undefined ? checkPart : checkType,
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
    throw badCall('a directory needs recursive=true or wrap-with-directory=true')
  checkType({ type })
  if (nameOf(fileName).includes('/'))
    throw badCall('a file in a directory needs recursive=true or wrap-with-directory=true')
}

function checkType({ type }: Pick<PartName, 'type'>): void {
  if (/^application\/symlink\b/i.test(type))
    throw badCall('symbolic links are not supported: add the file that it points to')
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
