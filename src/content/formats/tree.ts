// Lists everything below an entity as paths, depth first, for archives. Refuses a path that would
// leave the archive when unpacked, directly or through a symlink of the archive.
import { posix } from 'node:path'
import type { Block } from '../../core/cid.ts'
import { Failure } from '../../core/failure.ts'
import { wrongContent } from '../../ipld/unixfs.ts'
import type { DagWant, Session } from '../../retrieval/session.ts'
import type { ShardLink } from '../dag/hamt.ts'
import { createMemoryBound } from '../dag/pending.ts'
import { linksOfDirectory } from '../directory.ts'
import { type Entity, entityOf, visitBelow, type Way } from '../resolve.ts'

export type ArchiveMember = { readonly path: string; readonly entity: Entity }

const maxDepth = 128
const maxMembers = 1_000_000
const maxPathBytes = 8 * 1024
// Bounds the memory for the paths of all symlinks.
const maxSymlinkPathBytes = 8 * 1024 * 1024

type Open = { readonly path: string; readonly links: AsyncGenerator<ShardLink>; readonly way: Way }

/** `top` is the name of the entity in the archive; `toRoot` is its path. */
export async function* membersOf(
  session: Session,
  root: Entity,
  top: string,
  toRoot: Way,
): AsyncGenerator<ArchiveMember> {
  const around: DagWant = { cid: root.cid, segments: [], scope: 'all' }
  const memory = createMemoryBound()
  const symlinks = createSymlinkPaths(root)
  const open: Open[] = []
  const enter = ({ path, entity }: ArchiveMember, way: Way): ArchiveMember => {
    if (entity.kind === 'symlink') symlinks.add(path)
    if (entity.kind !== 'directory') return { path, entity }
    if (open.length >= maxDepth) throw wrongContent(root.cid, `it is nested more than ${maxDepth} levels deep`)
    const block: Block = { cid: entity.cid, bytes: entity.block }
    open.push({ path, links: linksOfDirectory(session, block, around, memory), way })
    return { path, entity }
  }
  yield enter({ path: top, entity: root }, toRoot)
  let count = 0
  for (let inner = open.at(-1); inner; inner = open.at(-1)) {
    const { value: link, done } = await inner.links.next()
    if (done) {
      open.pop()
      continue
    }
    if (++count > maxMembers) {
      throw new Failure('too-large', `${root.cid} has more than ${maxMembers} members`, { source: 'content' })
    }
    const path = below(root, top, inner.path, link.name)
    if (symlinks.reaches(path)) throw outside(root, path, 'is reached through a symlink of the archive')
    const way = { cid: link.cid, names: [link.name], above: inner.way }
    visitBelow(session, way)
    yield enter({ path, entity: entityOf(link.cid, await session.get(link.cid, around), session.readOnce) }, way)
  }
}

/** Stored names may be anything: `..` is accepted only if the path stays below the top. */
function below(root: Entity, top: string, parent: string, name: string): string {
  const path = posix.normalize(`${parent}/${name}`)
  const isOdd =
    name === '' || name.startsWith('/') || name.includes('\0') || path.endsWith('/') || name.split('\\').includes('..')
  if (isOdd || !path.startsWith(`${top}/`)) throw outside(root, `${parent}/${name}`, 'is no path below the archive')
  if (Buffer.byteLength(path) > maxPathBytes) throw wrongContent(root.cid, 'a path in it is too long')
  return path
}

const outside = ({ cid }: Entity, path: string, why: string): Failure =>
  wrongContent(cid, `${JSON.stringify(path.slice(0, 200))} in it ${why}; ask for a CAR instead`)

function createSymlinkPaths({ cid }: Entity) {
  const paths = new Set<string>()
  let bytes = 0
  return {
    add(path: string): void {
      bytes += path.length
      if (bytes > maxSymlinkPathBytes) {
        throw new Failure('too-large', `${cid} has more symlinks than can be kept apart`, { source: 'content' })
      }
      paths.add(path)
    },
    /** True if the path, or one of its parent directories, is a symlink. */
    reaches(path: string): boolean {
      if (paths.size === 0) return false
      for (let at = path.length; at > 0; at = path.lastIndexOf('/', at - 1)) {
        if (paths.has(path.slice(0, at))) return true
      }
      return false
    },
  }
}
