// Types of a content path and of the entity at its end.
import type { CID } from 'multiformats/cid'
import type { Node } from '../ipld/unixfs.ts'
import type { Way } from './way.ts'

/** `/ipfs/<cid>[/<segment>…]`, decoded and validated. */
export type ContentPath = {
  readonly cid: CID
  readonly segments: readonly string[]
  /**
   * The segments still encoded: old content has names with a literal `%20`, so both readings are
   * tried.
   */
  readonly encoded: readonly string[]
}

export type EntityKind =
  | 'file' // UnixFS file, or a raw block
  | 'directory' // UnixFS directory, flat or HAMT
  | 'symlink'
  | 'data' // dag-cbor, dag-json, json, cbor: a document, or dag-pb that is not UnixFS

/**
 * The end of a path. Its root block is verified and in memory; the rest is read through the session
 * on demand.
 */
export type Entity = {
  readonly cid: CID
  readonly kind: EntityKind
  /** The bytes of the root block (for an identity CID: of its digest). */
  readonly block: Uint8Array
  /** The decoded block of a file, if it was decoded. */
  readonly node?: Node
  /**
   * Set if `block` is in a reusable buffer: to be called when the reader, and everything it passed
   * the block to, are done with it.
   */
  readonly release?: (() => void) | undefined
  /**
   * The size of the file, of the symlink's target or of the document; undefined for a directory.
   */
  readonly size: number | undefined
  /** UnixFS 1.5 modification time in seconds; undefined if the content has none. */
  readonly mtime?: number | undefined
  /** UnixFS mode, or the default of its kind. */
  readonly mode?: number | undefined
  /** The target of a symlink, as stored. */
  readonly target?: Uint8Array | undefined
}

export type Resolution = {
  readonly path: ContentPath
  readonly entity: Entity
  /** The CID of each path component from the root to the entity (X-Ipfs-Roots). */
  readonly roots: readonly CID[]
  /**
   * The rest of a path that ends at a value inside a dag-cbor or dag-json document; otherwise
   * empty.
   */
  readonly remainder: readonly string[]
  /** The path of the entity by the names that matched, decoded or as sent. */
  readonly way: Way
}

export type DirectoryEntry = {
  readonly name: string
  readonly cid: CID
  /** Cumulative DAG size as the link declares it (Tsize); a hint, never verified. */
  readonly size: number | undefined
  /**
   * The type as far as the CID or inlined data shows it: a raw link is a file; a dag-pb link is
   * unknown.
   */
  readonly type: 'file' | 'directory' | 'symlink' | 'unknown'
}
