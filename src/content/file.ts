// Reads a file from its blocks, depth first, fetching only those that the range needs. Every
// declared size is checked: a file with a wrong size ends in a failure, never in a short response.
import type { CID } from 'multiformats/cid'
import { codec, isIdentity } from '../core/cid.ts'
import type { Peeked } from '../core/disk/peeked.ts'
import { Failure } from '../core/failure.ts'
import type { LazyLink } from '../ipld/block-links.ts'
import type { ReadNode } from '../ipld/node-memory.ts'
import { declaredSize, type Node, startsOf, wrongContent } from '../ipld/unixfs.ts'
import type { Expected, Place, Session } from '../retrieval/session.ts'
import { between, type Children, createPending, madeOf } from './dag/pending.ts'
import { type Entity, symlinkTarget } from './resolve.ts'

const maxDepth = 256
// Nodes without bytes cost as much to fetch as leaves, so a file may have only this many more nodes
// than one for every `minBytesPerBlock` bytes.
const freeBlocks = 1024
const minBytesPerBlock = 64

// A part larger than a block must be a node with parts of its own.
const maxNodeBytes = 2 * 1024 * 1024

/** The maximum declared size: a few blocks can claim any size. */
export const maxFileBytes = 1024 ** 4

type FilePart = {
  readonly link: LazyLink
  readonly block?: Uint8Array | undefined
  readonly node?: Node | undefined
  readonly size: number
  readonly start: number
  readonly depth: number
}

/**
 * Reads the bytes `from` up to, not including, `to`, of a file, a document or a symlink's target.
 * Pieces are views of blocks in a tier: callers must not change them. `lends`: a piece is valid
 * until the next one is requested. Throws as early as possible, so that a failure can still be a
 * status.
 */
export function readFile(
  session: Session,
  entity: Entity,
  from = 0,
  to = entity.size ?? 0,
  { maxBytes = maxFileBytes, lends = false }: { readonly maxBytes?: number; readonly lends?: boolean } = {},
): AsyncGenerator<Uint8Array> {
  const { cid, kind, block, size = 0 } = entity
  if (size > maxBytes) {
    throw new Failure('too-large', `${cid} declares ${size} bytes, more than the ${maxBytes} that are read here`, {
      source: 'content',
    })
  }
  const end = Math.min(to, size)
  switch (kind) {
    case 'file':
      // A single raw block: nothing to prefetch.
      if (cid.code === codec.raw && block.byteLength === size)
        return onePiece(block.subarray(from, Math.max(from, end)))
      return readParts(session, entity, from, end, lends)
    case 'data':
      return onePiece(block.subarray(from, Math.max(from, end)))
    case 'symlink':
      return onePiece(symlinkTarget(entity).subarray(from, Math.max(from, end)))
    case 'directory':
      throw wrongContent(cid, 'a directory has no bytes')
  }
}

async function* onePiece(piece: Uint8Array): AsyncGenerator<Uint8Array> {
  if (piece.byteLength > 0) yield piece
}

async function* readParts(
  session: Session,
  entity: Entity,
  from: number,
  end: number,
  lends: boolean,
): AsyncGenerator<Uint8Array> {
  const { cid: root, block, node, size = 0 } = entity
  if (from >= end) return
  const pending = createPending<FilePart>()
  pending.push([{ link: { Hash: root }, block, node, size, start: 0, depth: 0 }], 0)
  let blocks = 0
  let sent = 0
  // Blocks in memory or in the page cache need no prefetching; it begins at the first that is
  // neither.
  let isExpected = false

  const wantOf = (part: FilePart): Place => {
    const start = Math.max(from, part.start)
    const bytes = Math.min(end, part.start + part.size) - start
    return { cid: root, segments: [], scope: 'entity', range: { from: start, to: end - 1 }, bytes }
  }
  /** The wanted bytes of a leaf, if they are readable without waiting. */
  const leafInMemory = ({ link, size: bytes, start, block: here }: FilePart): Peeked | undefined => {
    const { Hash: cid } = link
    if (here || cid.code !== codec.raw) return undefined
    const wanted = { from: Math.max(0, from - start), to: Math.min(bytes, end - start) }
    const held = session.peek(cid, { lends, ...(wanted.to - wanted.from < bytes && { part: wanted }) })
    if (held && held.size !== bytes) throw unlikeDeclared(cid, held.size, bytes)
    return held
  }
  const fetch = async (part: FilePart): Promise<Uint8Array> => part.block ?? session.get(part.link.Hash, wantOf(part))
  /** The next blocks to prefetch, up to the first node: its parts come before its siblings. */
  function* upcoming(first: readonly FilePart[] = []): Generator<Expected> {
    for (const part of both(first, pending.upcoming())) {
      if (part.block || part.size === 0) continue
      const { Hash: cid } = part.link
      const isLeaf = cid.code === codec.raw
      yield { cid, around: wantOf(part), bytes: isLeaf ? part.size : Math.min(part.size, maxNodeBytes) }
      if (!isLeaf && part.size > maxNodeBytes) return
    }
  }

  for (let part = pending.pop(); part; part = pending.pop()) {
    // Many readers may come due in one iteration of the event loop, each with a leaf to read and
    // hash, or with thousands of empty parts to skip: they share its slice.
    const due = session.yieldIfDue()
    if (due !== undefined) await due
    if (part.size === 0) continue
    if (++blocks > freeBlocks + (end - from) / minBytesPerBlock)
      throw wrongContent(root, 'it is made of too many empty blocks')
    const held = leafInMemory(part)
    if (held) {
      sent += held.bytes.byteLength
      yield held.bytes
      // Not in `finally`: if the reader left, its last write may still use the buffer.
      held.release?.()
      isExpected = false
      continue
    }
    // An identity CID needs no block, so prefetching stays as it was.
    const isHere = isIdentity(part.link.Hash)
    if (!isExpected && !isHere) session.expect(upcoming([part]))
    const bytes = await fetch(part)
    const { own, children } = split(part, bytes, session.readNode)
    pending.push(wantedOf(children, from, end), bytes.byteLength)
    isExpected = children.of.length === 0
    if (isExpected && !isHere) session.expect(upcoming())
    const piece = own.subarray(Math.max(0, from - part.start), Math.max(0, end - part.start))
    if (piece.byteLength > 0) {
      sent += piece.byteLength
      yield piece
    }
  }
  if (sent !== end - from) throw wrongContent(root, `it holds ${sent} bytes where it declares ${end - from}`)
}

/** Parts in order. `starts` has the offset of each and, last, the end. */
type Parts = { readonly of: Children<FilePart>; readonly starts: Float64Array }

const noParts: Parts = { of: [], starts: new Float64Array(1) }

/** The parts with bytes between `from` and `end`. */
function wantedOf({ of, starts }: Parts, from: number, end: number): Children<FilePart> {
  return madeOf(of, (part) => part, ...between(starts, from, end))
}

/**
 * Splits a node into its own bytes and its children with their offsets; throws if the sizes differ
 * from those its parent declared.
 */
function split(part: FilePart, bytes: Uint8Array, read: ReadNode): { own: Uint8Array; children: Parts } {
  const { size, start, depth } = part
  const { Hash: cid } = part.link
  const own = (content: Uint8Array): { own: Uint8Array; children: Parts } => {
    if (content.byteLength !== size) throw unlikeDeclared(cid, content.byteLength, size)
    return { own: content, children: noParts }
  }
  if (cid.code === codec.raw) return own(bytes)
  if (cid.code !== codec.dagPb) throw wrongContent(cid, 'a part of a file cannot have its codec')
  const node = part.node ?? read(cid, bytes)
  const type = node.unixfs?.type
  if (type !== 'file' && type !== 'raw') throw wrongContent(cid, 'it is no part of a file')
  const data = node.unixfs?.data ?? new Uint8Array()
  if (node.links.length === 0) return own(data)
  if (depth >= maxDepth) throw wrongContent(cid, `the file is nested more than ${maxDepth} levels deep`)
  if (declaredSize(cid, node) !== size) throw wrongContent(cid, 'its size is not the one declared above it')
  const starts = startsOf(node, start)
  const of = madeOf(node.links, (link, index): FilePart => {
    const from = starts[index] as number
    return { link, size: (starts[index + 1] as number) - from, start: from, depth: depth + 1 }
  })
  return { own: data, children: { of, starts } }
}

function* both<T>(first: Iterable<T>, then: Iterable<T>): Generator<T> {
  yield* first
  yield* then
}

const unlikeDeclared = (cid: CID, bytes: number, declared: number): Failure =>
  wrongContent(cid, `it holds ${bytes} bytes where ${declared} are declared`)

/** Reads a small file in one piece; undefined if it is larger than `most`. */
export async function readSmall(session: Session, entity: Entity, maxBytes: number): Promise<Uint8Array | undefined> {
  if (entity.size === undefined || entity.size > maxBytes) return undefined
  const pieces: Uint8Array[] = []
  for await (const piece of readFile(session, entity)) pieces.push(piece)
  const [only] = pieces
  return pieces.length === 1 && only ? only : Buffer.concat(pieces)
}
