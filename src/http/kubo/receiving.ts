// Receives the body of a command that takes files: an upload slot, the limits of an upload, and a
// handler for the parts.
import { tooLarge } from '../../upload/failures.ts'
import { mostPartsOf } from '../../upload/intake/incoming.ts'
import { boundaryOf } from '../../upload/intake/part-watch.ts'
import { aroundBytes, type PartName } from '../../upload/intake/receive.ts'
import { withoutQuota } from '../../upload/quota/door.ts'
import type { Added, AddOptions } from '../../upload/uploads.ts'
import { badCall, type KuboCall } from './call.ts'

/** Refuses parts that are not files. */
export function checkFile({ type }: PartName): void {
  const kind = /^application\/(x-directory|symlink)\b/i.exec(type)?.[1]
  if (kind)
    throw badCall(`only files are taken here: ${kind === 'symlink' ? 'a symbolic link' : 'a directory'} is none`)
}

/** Every part counts, whatever its name: clients of Kubo call them `file`, `data` or `path`. */
export async function receiveFiles(
  { request, response, signal, deps }: KuboCall,
  options: Omit<AddOptions, 'parts' | 'slot'>,
): Promise<Added[]> {
  const { uploads } = deps
  boundaryOf(request.headers['content-type'])
  const least = Number(request.headers['content-length'] ?? 0) - aroundBytes(mostPartsOf(options.kind))
  if (least > uploads.maxBytes) throw tooLarge(uploads.maxBytes)
  const who = deps.clientOf(request)
  const slot = await uploads.enter(options.isOnlyHashed ? withoutQuota(who) : who, signal, least)
  try {
    // An HTTP/1.0 client cannot read it (RFC 9110 §10.1.1).
    if (request.headers.expect !== undefined && request.httpVersion !== '1.0') response.writeContinue()
    return await uploads.receive(request, { ...options, parts: 'every', slot })
  } finally {
    slot.leave()
  }
}
