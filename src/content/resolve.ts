// From a path to the thing it leads to, block by block: an upstream is never trusted to resolve one. The first block that
// is missing is asked for together with everything the path needs, so that a cold path costs one answer.
import * as dagCbor from '@ipld/dag-cbor'
import * as dagJson from '@ipld/dag-json'
import { CID } from 'multiformats/cid'
import { isProvable } from '../block.ts'
import { Failure } from '../failure.ts'
import type { DagWant, Session } from '../retrieval/session.ts'
import type { ContentPath, Entity, Resolution } from './entity.ts'
import { findInShards } from './hamt.ts'
import { dagPbCode, declaredSize, rawCode, readNode, wrongContent } from './unixfs.ts'

export type ResolveOptions = {
  /** Bytes of the file that will be read, when that is known already: no more than these are asked for. */
  readonly range?: DagWant['range']
  readonly scope?: DagWant['scope']
  /** Called with each CID on the way, the root first, before its block is asked for; may throw (a denylist). */
  readonly visit?: (cid: CID, rest: readonly string[]) => void
}

export async function resolve(session: Session, path: ContentPath, options: ResolveOptions = {}): Promise<Resolution> {
  const scope = options.scope ?? 'entity'
  const roots: CID[] = []
  let cid = path.cid
  let at = 0
  for (;;) {
    if (!isProvable(cid)) throw wrongContent(cid, 'its hash cannot be proved')
    const rest = path.segments.slice(at)
    options.visit?.(cid, rest)
    roots.push(cid)
    const around: DagWant = { cid, segments: rest, scope, range: options.range }
    const block = await session.get(cid, around)
    if (at === path.segments.length) return { path, entity: entityOf(cid, block), roots, remainder: [] }
    const step = await next(session, cid, block, { path, at, around })
    if (step === undefined) throw noLink(path, at)
    if (step.cid === undefined)
      return { path, entity: entityOf(cid, block), roots, remainder: path.segments.slice(step.at) }
    cid = step.cid
    at = step.at
  }
}

type Step = { readonly cid: CID | undefined; readonly at: number }
type Place = { readonly path: ContentPath; readonly at: number; readonly around: DagWant }

async function next(
  session: Session,
  cid: CID,
  block: Uint8Array,
  { path, at, around }: Place,
): Promise<Step | undefined> {
  const names = [path.segments[at] as string, path.encoded[at] as string]
  switch (cid.code) {
    case rawCode:
      return undefined
    case dagPbCode: {
      const node = readNode(cid, block)
      for (const name of new Set(names)) {
        const found =
          node.unixfs?.type === 'hamt-sharded-directory'
            ? await findInShards(session, { cid, block }, name, around)
            : node.unixfs === undefined || node.unixfs.type === 'directory'
              ? node.links.find((link) => (link.Name ?? '') === name)?.Hash
              : undefined
        if (found) return { cid: found, at: at + 1 }
      }
      return undefined
    }
    default:
      return intoDocument(cid, block, path.segments, at)
  }
}

/** Through a document up to the first link, or to the value that the rest of the path means. */
function intoDocument(cid: CID, block: Uint8Array, segments: readonly string[], from: number): Step | undefined {
  let value = decodeDocument(cid, block)
  for (let at = from; at < segments.length; at++) {
    if (value === null || typeof value !== 'object' || ArrayBuffer.isView(value)) return undefined
    const name = segments[at] as string
    if (!Object.hasOwn(value, name)) return undefined
    value = (value as Record<string, unknown>)[name]
    const link = CID.asCID(value)
    if (link) return { cid: link, at: at + 1 }
  }
  return { cid: undefined, at: from }
}

function decodeDocument(cid: CID, block: Uint8Array): unknown {
  try {
    if (cid.code === dagCbor.code) return dagCbor.decode(block)
    if (cid.code === dagJson.code) return dagJson.decode(block)
  } catch (cause) {
    throw wrongContent(cid, 'it does not decode', cause)
  }
  return undefined // plain json and cbor have no links: nothing leads further
}

export function entityOf(cid: CID, block: Uint8Array): Entity {
  if (cid.code === rawCode) return { cid, kind: 'file', block, size: block.byteLength }
  if (cid.code !== dagPbCode) return { cid, kind: 'data', block, size: block.byteLength }
  const node = readNode(cid, block)
  const mtime = node.unixfs?.mtime && Number(node.unixfs.mtime.secs)
  switch (node.unixfs?.type) {
    case 'file':
    case 'raw':
      return { cid, kind: 'file', block, size: declaredSize(cid, node), mtime }
    case 'directory':
    case 'hamt-sharded-directory':
      return { cid, kind: 'directory', block, size: undefined, mtime }
    case 'symlink':
      return { cid, kind: 'symlink', block, size: node.unixfs.data?.byteLength ?? 0, mtime }
    default:
      return { cid, kind: 'data', block, size: block.byteLength }
  }
}

/** Where a symlink points, as it is stored. */
export function symlinkTarget({ cid, block }: Entity): Uint8Array {
  return readNode(cid, block).unixfs?.data ?? new Uint8Array()
}

function noLink({ cid, segments }: ContentPath, at: number): Failure {
  const parent = ['', 'ipfs', cid.toString(), ...segments.slice(0, at)].join('/')
  return new Failure('no-link', `there is no ${JSON.stringify(segments[at])} in ${parent}`, {
    source: 'content',
    facts: { missing: segments[at], in: parent },
  })
}
