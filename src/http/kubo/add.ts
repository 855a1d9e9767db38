// Kubo's `add`: every part is a file, or all of them are one directory. A part that Kubo would treat otherwise (a symlink, a
// directory among files) is refused, not added as a file.
import { posix } from 'node:path'
import { tooLarge } from '../../upload/failures.ts'
import { mostPartsOf } from '../../upload/intake/incoming.ts'
import { boundaryOf } from '../../upload/intake/part-watch.ts'
import { aroundBytes, type PartName } from '../../upload/intake/receive.ts'
import { badCall, type KuboCall, sendJson } from './call.ts'
import { readAddQuery } from './options.ts'

export async function addFiles({ request, response, query, signal, deps }: KuboCall): Promise<void> {
  const { uploads } = deps
  boundaryOf(request.headers['content-type'])
  const { shape, isOnlyHashed, isUpgraded, isSilent, directory } = readAddQuery(query)
  const kind = directory === undefined ? 'files' : 'directory'
  if (Number(request.headers['content-length'] ?? 0) > uploads.maxBytes + aroundBytes(mostPartsOf(kind)))
    throw tooLarge(uploads.maxBytes)
  const slot = await uploads.enter(deps.clientOf(request), signal)
  try {
    // A client of HTTP/1.0 cannot read it (RFC 9110 §10.1.1).
    if (request.headers.expect !== undefined && request.httpVersion !== '1.0') response.writeContinue()
    const added = await uploads.receive(request, {
      kind,
      parts: 'every',
      look: directory === undefined ? checkPart : checkType,
      ...(directory && { directory: { pathOf, isBare: directory === 'only' } }),
      isOnlyHashed,
      slot,
      ...(shape && { shape }),
    })
    const lines = added.map(({ cid, dagBytes, fileName }) => {
      const Hash = (isUpgraded ? cid.toV1() : cid).toString()
      const Name = directory === undefined ? nameOf(fileName) || Hash : fileName
      return { Name, Hash, Size: String(dagBytes) }
    })
    response.setHeader('X-Chunked-Output', '1')
    sendJson({ response, deps }, ...(isSilent ? [] : lines))
  } finally {
    slot.leave()
  }
}

/** A mode or time in a part's name counts only with `preserve-*`, which is refused. */
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

/** As Kubo tidies it; one that leads upwards is left as it is, and refused. */
function pathOf({ fileName = '' }: PartName): string {
  const path = unescaped(fileName)
  return path.split('/').includes('..') ? path : nameOf(fileName)
}

/** Only repeated to the client. */
function nameOf(fileName: string | undefined): string {
  if (fileName === undefined) return ''
  return posix.normalize(`/${unescaped(fileName)}`).replace(/^\/|\/$/g, '')
}

function unescaped(fileName: string): string {
  try {
    return decodeURIComponent(fileName.replaceAll('+', ' '))
  } catch {
    // As Kubo does: a name that cannot be decoded stays as it is.
    return fileName
  }
}
