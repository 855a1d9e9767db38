// application/x-tar: an entity and everything below it, named by its CID and packed while it is
// read.

import { Failure } from '../../core/failure.ts'
import { wrongContent } from '../../ipld/unixfs.ts'
import { type Session, withGet } from '../../retrieval/session.ts'
import type { Entity } from '../entity.ts'
import { mostFileBytes, readFile } from '../file.ts'
import { symlinkTarget } from '../resolve.ts'
import type { Way } from '../way.ts'
import { type Format, notAcceptable, refuseRemainder, weakTag } from './format.ts'
import { paddingAfter, type TarMember, tarCut, tarEnd, tarHeader } from './tar-header.ts'
import { type ArchiveMember, membersOf } from './tree.ts'

const mediaType = 'application/x-tar'
// Entries that are read before the first byte, to know the length of the archive and to refuse
// early.
const mostPlanned = 64

export const tar: Format = {
  name: 'tar',
  mediaType,
  wants: () => ({ scope: 'all' }),
  async render(session, resolution, request) {
    refuseRemainder(resolution)
    const { entity, way } = resolution
    if (entity.kind === 'data') throw notAcceptable(entity.cid, 'tar', 'it is neither a file nor a directory')
    return {
      type: mediaType,
      etag: weakTag(entity.cid, '.x-tar', request),
      save: { kind: 'attachment', filename: `${entity.cid}.tar` },
      size: await plannedSize(session, entity, way),
      ranges: false,
      read: () => archiveOf(session, entity, { top: entity.cid.toString(), way }),
    }
  },
}

/** `top` is the name of the entity in the archive. */
export async function* archiveOf(
  session: Session,
  root: Entity,
  { top, way, isBare = false }: { readonly top: string; readonly way: Way; readonly isBare?: boolean },
): AsyncGenerator<Uint8Array> {
  let isBetween = false
  try {
    for await (const member of membersOf(session, root, top, way)) {
      const described = describe(member)
      yield tarHeader({ ...described, isBare })
      isBetween = false
      if (described.size > 0) {
        yield* readFile(session, member.entity)
        const padding = paddingAfter(described.size)
        if (padding > 0) yield new Uint8Array(padding)
      }
      isBetween = true
    }
    yield tarEnd
  } catch (error) {
    // To most readers an archive that ends between two members looks whole.
    if (isBetween) yield tarCut()
    throw error
  }
}

function describe({ path, entity }: ArchiveMember): TarMember {
  const { cid, kind, size = 0, mtime = 0, mode: stored } = entity
  // Never setuid, setgid or sticky: unpacking an archive does not mean trusting its author.
  const mode = (stored ?? 0o644) & 0o777
  switch (kind) {
    case 'directory':
      return { path, type: 'directory', size: 0, mode: stored === undefined ? 0o755 : mode, mtime }
    case 'symlink':
      return {
        path,
        type: 'symlink',
        size: 0,
        mode: 0o777,
        mtime,
        target: Buffer.from(symlinkTarget(entity)).toString(),
      }
    case 'file':
    case 'data':
      if (size > mostFileBytes) throw wrongContent(cid, 'it declares more bytes than are read here')
      return { path, type: 'file', size, mode, mtime }
  }
}

/**
 * The length of a small archive if all of it is in the tiers, otherwise undefined: nothing is
 * fetched, so the response is not delayed. A refused path is found here, while it can still be a
 * status.
 */
async function plannedSize(session: Session, root: Entity, way: Way): Promise<number | undefined> {
  const notHere = new Failure('not-found', 'a block is in no tier', { source: 'tier' })
  const here = withGet(session, async (cid, around) => {
    if (!(await session.has(cid))) throw notHere
    return session.get(cid, around)
  })
  let size = tarEnd.byteLength
  let count = 0
  try {
    for await (const member of membersOf(here, root, root.cid.toString(), way)) {
      if (++count > mostPlanned) return undefined
      const described = describe(member)
      size += tarHeader(described).byteLength + described.size + paddingAfter(described.size)
    }
    return size
  } catch (error) {
    if (error === notHere) return undefined
    throw error
  }
}
