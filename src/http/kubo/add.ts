// Kubo's `add`: every part is a file. A part that Kubo would treat otherwise (directory, symlink) is refused, not added
// as a file.
import { posix } from 'node:path'
import { tooLarge } from '../../upload/failures.ts'
import { boundaryOf } from '../../upload/intake/part-watch.ts'
import { aroundBytes, type PartName } from '../../upload/intake/receive.ts'
import { badCall, type Call, sendJson } from './call.ts'
import { readAddQuery } from './options.ts'

export async function addFiles({ request, response, query, signal, deps }: Call): Promise<void> {
  const { uploads } = deps
  boundaryOf(request.headers['content-type'])
  if (Number(request.headers['content-length'] ?? 0) > uploads.maxBytes + aroundBytes())
    throw tooLarge(uploads.maxBytes)
  const { shape, isOnlyHashed, isUpgraded, isSilent } = readAddQuery(query)
  const slot = await uploads.enter(deps.clientOf(request), signal)
  try {
    // A client of HTTP/1.0 cannot read it (RFC 9110 §10.1.1).
    if (request.headers.expect !== undefined && request.httpVersion !== '1.0') response.writeContinue()
    const added = await uploads.receive(request, {
      parts: 'every',
      look: checkPart,
      isOnlyHashed,
      slot,
      ...(shape && { shape }),
    })
    const lines = added.map(({ cid, dagBytes, fileName }) => {
      const Hash = (isUpgraded ? cid.toV1() : cid).toString()
      return { Name: nameOf(fileName) || Hash, Hash, Size: String(dagBytes) }
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
    throw badCall('directories are not supported: add the files in them, one by one')
  if (/^application\/symlink\b/i.test(type))
    throw badCall('symbolic links are not supported: add the file that it points to')
  if (nameOf(fileName).includes('/'))
    throw badCall('directories are not supported: send a file under its name alone, without folders')
}

/** Only repeated to the client. */
function nameOf(fileName: string | undefined): string {
  if (fileName === undefined) return ''
  let name = fileName
  try {
    name = decodeURIComponent(fileName.replaceAll('+', ' '))
  } catch {
    // As Kubo does: a name that cannot be decoded stays as it is.
  }
  return posix.normalize(`/${name}`).replace(/^\/|\/$/g, '')
}
