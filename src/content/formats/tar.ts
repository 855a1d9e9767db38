// application/x-tar: an entity and everything below it, named by its CID and packed while it is
// read.

import { posix } from 'node:path'
import type { Block } from '../../core/cid.ts'
import { Failure } from '../../core/failure.ts'
import { wrongContent } from '../../ipld/unixfs.ts'
import { type DagWant, type Session, withGet } from '../../retrieval/session.ts'
import type { ShardLink } from '../dag/hamt.ts'
import { createMemoryBound } from '../dag/pending.ts'
import { linksOfDirectory } from '../directory.ts'
import { maxFileBytes, readFile } from '../file.ts'
import { type Entity, entityOf, type PathChain, refuseRemainder, symlinkTarget, visitBelow } from '../resolve.ts'
import { type Format, notAcceptable, weakTag } from './format.ts'

const mediaType = 'application/x-tar'
// Entries that are read before the first byte, to know the length of the archive and to refuse
// early.
const maxPlanned = 64

export const tar: Format = {
  name: 'tar',
  mediaType,
  wants: () => ({ scope: 'all' }),
  async render(session, resolution, request) {
    refuseRemainder(resolution)
    const { entity, chain } = resolution
    if (entity.kind === 'data') throw notAcceptable(entity.cid, 'tar', 'it is neither a file nor a directory')
    return {
      type: mediaType,
      etag: weakTag(entity.cid, '.x-tar', request),
      save: { kind: 'attachment', filename: `${entity.cid}.tar` },
      size: await plannedSize(session, entity, chain),
      ranges: false,
      read: () => archiveOf(session, entity, { top: entity.cid.toString(), chain }),
    }
  },
}

/** `top` is the name of the entity in the archive. */
export async function* archiveOf(
  session: Session,
  root: Entity,
  { top, chain, isBare = false }: { readonly top: string; readonly chain: PathChain; readonly isBare?: boolean },
): AsyncGenerator<Uint8Array> {
  let isBetween = false
  try {
    for await (const member of membersOf(session, root, top, chain)) {
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
      if (size > maxFileBytes) throw wrongContent(cid, 'it declares more bytes than are read here')
      return { path, type: 'file', size, mode, mtime }
  }
}

/**
 * The length of a small archive if all of it is in the tiers, otherwise undefined: nothing is
 * fetched, so the response is not delayed. A refused path is found here, while it can still be a
 * status.
 */
async function plannedSize(session: Session, root: Entity, chain: PathChain): Promise<number | undefined> {
  const notHere = new Failure('not-found', 'a block is in no tier', { source: 'tier' })
  const inTiers = withGet(session, async (cid, around) => {
    if (!(await session.has(cid))) throw notHere
    return session.get(cid, around)
  })
  let size = tarEnd.byteLength
  let count = 0
  try {
    for await (const member of membersOf(inTiers, root, root.cid.toString(), chain)) {
      if (++count > maxPlanned) return undefined
      const described = describe(member)
      size += tarHeader(described).byteLength + described.size + paddingAfter(described.size)
    }
    return size
  } catch (error) {
    if (error === notHere) return undefined
    throw error
  }
}

export type TarMember = {
  readonly path: string
  readonly type: 'file' | 'directory' | 'symlink'
  readonly size: number
  readonly mode: number
  /** Seconds since the epoch. */
  readonly mtime: number
  /** The target of a symlink. */
  readonly target?: string
  /** Omits the slash after the path of a directory: Kubo's clients refuse it, others expect it. */
  readonly isBare?: boolean
}

const tarBlock = 512
const tarEnd = new Uint8Array(2 * tarBlock)
const paddingAfter = (size: number): number => (tarBlock - (size % tarBlock)) % tarBlock

const largestOctal = 8 ** 11 - 1
const flags = { file: '0', symlink: '2', directory: '5' } as const

export function tarHeader(member: TarMember): Uint8Array {
  const path = member.type === 'directory' && !member.isBare ? `${member.path}/` : member.path
  const target = member.target ?? ''
  const { size, mtime, mode } = member
  const records = [
    isShort(path) || record('path', path),
    isShort(target) || record('linkpath', target),
    size > largestOctal && record('size', String(size)),
    isOctal(mtime) || record('mtime', String(mtime)),
  ].filter((text) => text !== false && text !== true)
  const main = ustar({
    name: fallback(path),
    flag: flags[member.type],
    target: fallback(target),
    size: size > largestOctal ? 0 : size,
    mtime: isOctal(mtime) ? mtime : 0,
    mode,
  })
  if (records.length === 0) return main
  const pax = Buffer.from(records.join(''))
  return Buffer.concat([paxHeader(pax.length), pax, Buffer.alloc(paddingAfter(pax.length)), main])
}

const paxHeader = (size: number): Buffer =>
  ustar({ name: 'PaxHeaders/member', flag: 'x', target: '', size, mtime: 0, mode: 0o644 })

/**
 * The end of a failed archive: an extended header without its records, so that every reader reports
 * truncation and extracts nothing from it.
 */
const tarCut = (): Uint8Array => paxHeader(tarBlock)

const isOctal = (value: number): boolean => value >= 0 && value <= largestOctal
const isShort = (text: string): boolean => /^[\x20-\x7e]{0,100}$/.test(text)
const fallback = (text: string): string => text.replace(/[^\x20-\x7e]/g, '_').slice(0, 100)

/** A pax record `<length> <key>=<value>\n`, where the length includes its own digits. */
function record(key: string, value: string): string {
  const rest = Buffer.byteLength(` ${key}=${value}\n`)
  let length = rest
  while (length !== rest + String(length).length) length = rest + String(length).length
  return `${length} ${key}=${value}\n`
}

type Ustar = {
  readonly name: string
  readonly flag: string
  readonly target: string
  readonly size: number
  readonly mtime: number
  readonly mode: number
}

function ustar({ name, flag, target, size, mtime, mode }: Ustar): Buffer {
  const bytes = Buffer.alloc(tarBlock)
  const octal = (value: number, at: number, digits: number) =>
    bytes.write(value.toString(8).padStart(digits, '0'), at, 'latin1')
  bytes.write(name, 0, 'latin1')
  octal(mode, 100, 7)
  octal(0, 108, 7)
  octal(0, 116, 7)
  octal(size, 124, 11)
  octal(mtime, 136, 11)
  bytes.write('        ', 148, 'latin1')
  bytes.write(flag, 156, 'latin1')
  bytes.write(target, 157, 'latin1')
  bytes.write('ustar\x0000', 257, 'latin1')
  octal(
    bytes.reduce((sum, byte) => sum + byte, 0),
    148,
    6,
  )
  bytes[154] = 0
  return bytes
}

type ArchiveMember = { readonly path: string; readonly entity: Entity }

const maxDepth = 128
const maxMembers = 1_000_000
const maxPathBytes = 8 * 1024
// Bounds the memory for the paths of all symlinks.
const maxSymlinkPathBytes = 8 * 1024 * 1024

type Open = { readonly path: string; readonly links: AsyncGenerator<ShardLink>; readonly chain: PathChain }

/** `top` is the name of the entity in the archive; `toRoot` is its path. */
async function* membersOf(
  session: Session,
  root: Entity,
  top: string,
  toRoot: PathChain,
): AsyncGenerator<ArchiveMember> {
  const around: DagWant = { cid: root.cid, segments: [], scope: 'all' }
  const memory = createMemoryBound()
  const symlinks = createSymlinkPaths(root)
  const open: Open[] = []
  const enter = ({ path, entity }: ArchiveMember, chain: PathChain): ArchiveMember => {
    if (entity.kind === 'symlink') symlinks.add(path)
    if (entity.kind !== 'directory') return { path, entity }
    if (open.length >= maxDepth) throw wrongContent(root.cid, `it is nested more than ${maxDepth} levels deep`)
    const block: Block = { cid: entity.cid, bytes: entity.block }
    open.push({ path, links: linksOfDirectory(session, block, around, memory), chain })
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
    const chain = { cid: link.cid, names: [link.name], above: inner.chain }
    visitBelow(session, chain)
    yield enter({ path, entity: entityOf(link.cid, await session.get(link.cid, around), session.readOnce) }, chain)
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
        throw new Failure('too-large', `${cid} has too many symlinks`, { source: 'content' })
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
