// The types of this area: the path that a client asks for, and the entity that it leads to.
import type { CID } from 'multiformats/cid'
import type { Node } from '../ipld/unixfs.ts'
import type { Way } from './way.ts'

/** `/ipfs/<cid>[/<segment>…]`, decoded and checked, in the order asked. */
export type ContentPath = {
  readonly cid: CID
  readonly segments: readonly string[]
  /** The same names still encoded. Old content has names with a literal `%20`: both readings are tried. */
  readonly encoded: readonly string[]
}

export type EntityKind =
  | 'file' // UnixFS file, or a raw block
  | 'directory' // UnixFS directory, flat or HAMT
  | 'symlink'
  | 'data' // dag-cbor, dag-json, json, cbor: a document, or dag-pb that is no UnixFS

/** The end of a path. Its root block is here, verified; the rest is read through the session on demand. */
export type Entity = {
  readonly cid: CID
  readonly kind: EntityKind
  /** Bytes of the root block (identity CIDs: of the CID itself). */
  readonly block: Uint8Array
  /** The block of a file, where it was decoded. */
  readonly node?: Node
  /** The block is lent: once the reader and everything it passed it on to are done with it, its memory may be used again. */
  readonly release?: (() => void) | undefined
  /** Bytes of the file, of the symlink's target or of the document; undefined for a directory. */
  readonly size: number | undefined
  /** UnixFS 1.5 modification time in seconds, where the content carries one. */
  readonly mtime?: number | undefined
  /** Of UnixFS, where the content carries one or its kind has a usual one. */
  readonly mode?: number | undefined
  /** Of a symlink: where it points, as it is stored. */
  readonly target?: Uint8Array | undefined
}

export type Resolution = {
  readonly path: ContentPath
  readonly entity: Entity
  /** The CID of each path component, the root first, the entity last (X-Ipfs-Roots). */
  readonly roots: readonly CID[]
  /** Path left over inside a dag-cbor/dag-json document (it points at a value, not at a link); normally empty. */
  readonly remainder: readonly string[]
  /** How the entity was reached, by the names it really has: decoded, or as they were sent. */
  readonly way: Way
}

export type DirectoryEntry = {
  readonly name: string
  readonly cid: CID
  /** Cumulative DAG size as the link says it (Tsize); a hint, never proved. */
  readonly size: number | undefined
  /** What the CID or the inlined data shows without a fetch: a raw link is a file; a dag-pb link is not known. */
  readonly type: 'file' | 'directory' | 'symlink' | 'unknown'
}
