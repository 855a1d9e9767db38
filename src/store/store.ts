// The store: what must not be forgotten, in one transactional database (SQLite), and one CAR file
// for each large request. Before the answer to a client these are on the disk:
//
// - an upload (200): its CAR file and the entry of its folder; then one transaction: blocks, upload,
//   holders, quota (of more than 0.9 `blocksAtOnce` blocks the rows come in transactions before it)
// - a deletion, a change of holders, or of records of names: one transaction; very many blocks that
//   it releases go in more of them
// - a `trim`: as many transactions as it needs
//
// A refused upload's file and rows are deleted, by the next start at the latest; `accept` names what
// may count all the same. The file of a deleted upload is removed unless another upload names it or
// over half of it is used; its `car` row goes after the file.
//
// Operations that came meanwhile share a transaction (writer-thread.ts). Other connections read: in
// a small database at once, in a larger one in a thread (reading.ts).
import type { CID } from 'multiformats/cid'
import type { LocalStore, Profile } from '../../backends/pinning/contract.ts'
import type { Facts } from '../core/failure.ts'

export interface Store extends StoreReader {
  /**
   * For one request: in memory up to 64 KiB, in one CAR file beyond that. Its DAGs share the
   * blocks.
   */
  begin(): Intake
  /**
   * Uploads of one intake, in one transaction: durable when it resolves. Very many blocks come in
   * transactions of their own before it, so that no other upload waits for them. Rejects with a
   * Failure: none of them counts, except that a commit that failed on the disk may count after a
   * restart, and that very many blocks of a replaced upload, which go after the commit, may have
   * failed to go. An upload that is there already keeps its holders but for those named here; its
   * blocks are replaced by the new ones. A holder of kind `here` takes the place of every other of
   * that kind.
   */
  accept(uploads: readonly Accepted[], quota?: readonly QuotaUse[]): Promise<void>
  /**
   * Sets these holders (undefined: forgets one), in one commit. Blocks that no holder needs any
   * more go, very many of them in later commits. False: no such upload.
   */
  update(cid: CID, holders: Readonly<Record<string, Standing | undefined>>): Promise<boolean>
  /** Rows first, then files; very many blocks in several transactions. False: no such upload. */
  remove(cid: CID): Promise<boolean>
  /**
   * Deletes the oldest pending rows of this holder, releasing blocks as `update` does: beyond
   * `limit` of them, or beyond `bytes` of uploads whose blocks lie here for it alone. Returns how
   * many.
   */
  trim(holder: string, limit: number, bytes: number): Promise<number>
  /**
   * Statements of one transaction, in order; for the owner of a table in database.ts. Durable when it
   * resolves.
   */
  write(statements: readonly Statement[]): Promise<void>
  /**
   * Rejects with a Failure where nothing can be accepted now: the disk is full, read-only or
   * failing.
   */
  probe(): Promise<void>
}

/** The part of a store that each process of a gateway has. */
export interface StoreReader {
  /** Resolves when the database is open. Every call waits for it by itself. */
  readonly ready: Promise<void>
  readonly blocks: Blocks
  readonly ledger: Ledger
  read(sql: string, args?: readonly Value[]): Promise<readonly Row[]>
  /** Reads the whole database, and returns what is damaged. */
  check(): Promise<readonly string[]>
  /** Damage that was found, in words for the operator; undefined: none. */
  damage(): string | undefined
  close(): Promise<void>
}

/**
 * Bytes to be verified: a disk may have changed them. A key covers all codecs and CID versions of
 * the same bytes.
 */
export type Blocks = LocalStore & Required<Pick<LocalStore, 'lacks'>>

export interface Intake {
  /** Begins a DAG. */
  dag(): Filling
  /**
   * Forgets what was not accepted, in memory and on the disk. Does not reject. Call it once, after
   * `accept` too.
   */
  drop(): Promise<void>
}

export interface Filling {
  /**
   * Taken over when it returns or resolves: the caller may change the bytes. Waits where the disk
   * is late.
   */
  put(cid: CID, bytes: Uint8Array): void | Promise<void>
  has(cid: CID): boolean
  /** The bytes of a block that any DAG of the intake has. */
  read(cid: CID): Uint8Array | Promise<Uint8Array>
  /** Takes a block that another DAG of the intake has; returns its size. */
  adopt(cid: CID): number
  /** Every block is here. `bytes`: the size of the file, or the sum of the blocks. */
  finish(root: CID, profile: Profile, bytes: number): StagedDag
}

/**
 * A DAG that is whole. Its blocks can be read until its intake is dropped, and from the store once
 * it is accepted.
 */
export interface StagedDag {
  readonly cid: CID
  readonly profile: Profile
  readonly bytes: number
  /** Bytes of a CARv1 of it. */
  readonly carBytes: number
  /** Its blocks, each once. */
  readonly cids: readonly CID[]
  get(cid: CID): Promise<Uint8Array | undefined>
  /**
   * Lets `blocks` serve it before it is accepted, for a provider that fetches by CID; until the
   * intake is dropped.
   */
  offer(): void
}

export type Accepted = {
  readonly staged: StagedDag
  /** Undefined: it keeps the one that it has. */
  readonly name?: string
  /** Milliseconds since the epoch. */
  readonly at: number
  readonly holders: Readonly<Record<string, Standing>>
}

/**
 * `here`: the store itself is the provider. `tier`: a shared tier that lacks it. Blocks stay while
 * their upload is `pending` at any holder, or pinned at one of kind `here`.
 */
type HolderKind = 'here' | 'provider' | 'tier'
/** `abandoned`: an operator decided it. */
type HolderState = 'pending' | 'pinned' | 'abandoned'

export type Standing = {
  readonly kind: HolderKind
  readonly state: HolderState
  readonly tries: number
  /** Milliseconds since the epoch; the holder is not asked before. */
  readonly notBefore?: number
  readonly class?: FailureClass
  readonly why?: string
}

/** An accepted upload. */
export type Entry = {
  /** Rises with each new upload: the place in a page. */
  readonly id: number
  readonly cid: CID
  readonly name?: string
  readonly profile: Profile
  readonly bytes: number
  readonly carBytes: number
  readonly at: number
  /** Its blocks are in this store. */
  readonly isHere: boolean
  readonly holders: Readonly<Record<string, Standing>>
}

export interface Ledger {
  /** v0 and v1 of a CID are one. */
  find(cid: CID): Promise<Entry | undefined>
  page(asked: Asked): Promise<Page>
  /**
   * Uploads that this holder is to get, by the time at which it may be asked, also in the future.
   * By an index.
   */
  due(holder: string, limit: number): Promise<readonly Entry[]>
  /** Uploads that some holder is to get. By an index. */
  waiting(): Promise<Waiting>
  /** The same, the oldest first. */
  waitingPage(limit: number): Promise<readonly Entry[]>
  /** By each holder that is not one of these: what only it holds, and what it is still to get. */
  others(configured: readonly string[]): Promise<readonly OtherHolder[]>
  /** Takes a second or so per million uploads, off the loop. */
  counts(): Promise<Counts>
}

export type Asked = {
  readonly limit: number
  /** `next` of the page before. */
  readonly after?: number | undefined
  /** A part of the name, in letters of any case. */
  readonly name?: string | undefined
  /** With `holder`: at that one. `missing`: no row of that holder. */
  readonly state?: HolderState | 'missing' | undefined
  readonly holder?: string | undefined
  /** With `missing` and without `holder`: at some of these. */
  readonly configured?: readonly string[] | undefined
  readonly since?: number | undefined
  readonly until?: number | undefined
  readonly minBytes?: number | undefined
  readonly maxBytes?: number | undefined
}

/** `next`: undefined on the last page. */
export type Page = { readonly entries: readonly Entry[]; readonly next: number | undefined }

export type Waiting = {
  readonly uploads: number
  readonly bytes: number
  /** When the oldest was accepted. */
  readonly oldestAt: number | undefined
  readonly holders: readonly { readonly holder: string; readonly kind: HolderKind; readonly uploads: number }[]
}

export type OtherHolder = {
  readonly holder: string
  /** It holds them, no configured holder does, and their blocks are not here. */
  readonly alone: number
  readonly waiting: number
}

export type Counts = {
  readonly uploads: number
  readonly bytes: number
  /** By holder and state. */
  readonly holders: readonly {
    readonly holder: string
    readonly kind: HolderKind
    readonly state: HolderState
    readonly uploads: number
  }[]
}

/** Added to what the token used on that day (days since the epoch, UTC). */
export type QuotaUse = {
  readonly token: string
  readonly day: number
  readonly uploads: number
  readonly bytes: number
}

export type Value = null | number | bigint | string | Uint8Array
export type Row = Readonly<Record<string, Value>>
export type Statement = { readonly sql: string; readonly args: readonly Value[] }

/** Decides when the next attempt at a holder follows a failed one. */
export type FailureClass = Facts['class']
