// A tier is a place that keeps proved blocks: memory, disk, Redis, S3. Bytes in, bytes out.
// Every tier passes src/testing/tier.ts, and so does a stack of tiers.
import type { CID } from 'multiformats/cid'
import type { z } from 'zod'
import type { Clock } from '../../src/core/clock.ts'
import type { FolderRole } from '../../src/core/disk/files.ts'
import type { Peeked, PeekOptions } from '../../src/core/disk/peeked.ts'
import type { Log } from '../../src/core/log.ts'

/** Properties of the place that a tier is. */
export type TierTraits = {
  /** Survives this process. */
  readonly persistent: boolean
  /**
   * Other instances see it too: an upload is written to it before its 200, or recorded as pending there.
   */
  readonly shared: boolean
  /** No other process writes into it: blocks from it need not be hashed again. */
  readonly trusted: boolean
  /** Never evicts: later tiers of this machine need not have its blocks too. */
  readonly keeps?: boolean
  /** Its owner alone writes to it: `put` does nothing. */
  readonly readOnly?: boolean
}

/** `bytes` and `blocks` are undefined where they are not known. */
export type TierUsage = {
  readonly bytes?: number | undefined
  readonly blocks?: number | undefined
  readonly limitBytes: number
}

/** A record as it was read. `tag`: how the store itself tells it from any other, where it does. */
export type StoredRecord = { readonly bytes: Uint8Array; readonly tag?: string | undefined }

/**
 * Records of names, beside the blocks: mutable bytes under a key. Readers verify them. Misses,
 * outages and signals are as with blocks.
 */
export interface Records {
  read(key: string, signal?: AbortSignal): Promise<StoredRecord | undefined>
  /**
   * Replaces `expected`, the record that was read, by `bytes`; undefined: there was none. False: the
   * store has another record by now, which stays. A store without compare-and-set may miss a
   * concurrent write. After `keepMs` the record is no longer read.
   */
  replace(
    key: string,
    bytes: Uint8Array,
    how: { readonly expected: StoredRecord | undefined; readonly keepMs: number },
    signal?: AbortSignal,
  ): Promise<boolean>
}

/**
 * Promises callers rely on: a miss is `undefined`, an outage *rejects* with a Failure (source
 * `tier`), never the one for the other. `put` is idempotent; blocks never change, so a tier in
 * memory may keep the very buffer it was given. Bytes are opaque: empty and 2 MiB included. A call
 * stops soon after its signal aborts and rejects with the signal's reason. A tier may lose blocks
 * at any time. `close` is idempotent.
 */
export interface Tier {
  readonly name: string
  readonly traits: TierTraits
  /**
   * The timeout of a read, from when the tier works on it. Default: one second.
   */
  readonly timeoutMs?: number
  /** Calls that it takes at once. Absent: any number. */
  readonly concurrency?: { readonly reads: number; readonly writes: number }
  /** Undefined once it is open. Otherwise opens it; the timeout of a call does not include that. */
  open?(): Promise<void> | undefined
  get(cid: CID, signal?: AbortSignal): Promise<Uint8Array | undefined>
  /**
   * The block, or a part of it, where no wait is needed: from memory, or from a file in the page
   * cache. Undefined says nothing about other tiers than memory: `get` knows. Never throws.
   */
  peek?(cid: CID, options?: PeekOptions): Peeked | undefined
  put(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<void>
  /** Puts many blocks by one call: for a tier of this machine. Absent: each is put by itself. */
  putAll?(blocks: readonly { readonly cid: CID; readonly bytes: Uint8Array }[], signal?: AbortSignal): Promise<void>
  /** `put` at once: for a tier in the memory of this process, whose `peek` knows all it has. */
  putNow?(cid: CID, bytes: Uint8Array): void
  has(cid: CID, signal?: AbortSignal): Promise<boolean>
  /** `has`, where it is known without asking. Undefined, or absent: only `has` and `get` know. */
  hasNow?(cid: CID): boolean | undefined
  /** A reader got the block from a faster tier, which counts for the eviction here. */
  noteRead?(cid: CID): void
  delete(cid: CID, signal?: AbortSignal): Promise<void>
  /** Forgets all of it at once: for a tier in memory. */
  clear?(): void
  /** Its usage, if it has a limit of its own and knows. */
  usage?(): TierUsage
  /** Records of names, in a store that instances share. Absent: it keeps blocks only. */
  readonly records?: Records
  /**
   * Checks credentials, reachability and free space once. Rejects with a Failure that says what to fix.
   */
  probe?(signal?: AbortSignal): Promise<void>
  close(): Promise<void>
}

export type TierContext = {
  /** The name it has in logs, metrics and Cache-Status: its `name` or its `use`. */
  readonly name: string
  /** Our name, for protocols with a place for it. */
  readonly userAgent: string
  /** The gateway's data folder (absolute); an embedded store lives below it. */
  readonly data: string
  /** The role of this process in folders that others use; undefined if it is alone. */
  readonly role?: FolderRole | undefined
  readonly log: Log
  readonly clock: Clock
}

/**
 * One line of the registry: `use` in the configuration, its options, and how to make one (no I/O
 * yet).
 */
export type TierKind<Options extends z.ZodType = z.ZodType> = {
  readonly use: string
  readonly options: Options
  create(options: z.output<Options>, context: TierContext): Tier
}
