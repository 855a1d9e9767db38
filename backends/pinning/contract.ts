// A provider stores uploads permanently. It stores one upload and reports the CID that it holds;
// upload/confirm.ts decides about the order of providers and the consequences of failures. Every
// provider passes src/testing/provider.ts.
import type { CID } from 'multiformats/cid'
import type { z } from 'zod'
import type { Block } from '../../src/core/cid.ts'
import type { Clock } from '../../src/core/clock.ts'
import type { FolderRole, SharedFolders } from '../../src/core/disk/files.ts'
import type { Log } from '../../src/core/log.ts'
import type { Trace } from '../../src/core/wire/trace.ts'

/** Names from IPIP-499. */
export const profiles = ['unixfs-v1-2025', 'unixfs-v0-2015'] as const
/** A profile determines the CID of a file. */
export type Profile = (typeof profiles)[number]

/**
 * Parameters of an importer, which determine the CID: a balanced layout with leaves of one size.
 */
export type Shape = {
  readonly cidVersion: 0 | 1
  /** Leaves are raw blocks instead of UnixFS nodes. */
  readonly isRaw: boolean
  readonly chunkBytes: number
  /** The maximum number of links of a node above the leaves. */
  readonly width: number
  /**
   * The size compared with 256 KiB to decide if a directory is sharded: of its names and CIDs, or
   * of its complete block.
   */
  readonly directorySize: 'links' | 'block'
}

export const shapes: Readonly<Record<Profile, Shape>> = {
  'unixfs-v1-2025': { cidVersion: 1, isRaw: true, chunkBytes: 1024 * 1024, width: 1024, directorySize: 'block' },
  'unixfs-v0-2015': { cidVersion: 0, isRaw: false, chunkBytes: 256 * 1024, width: 174, directorySize: 'links' },
}

/**
 * Options for Kubo's `add` that produce the same CID, whatever the node's configuration, and pin
 * it.
 */
export const addOptionsOfKubo = ({ cidVersion, isRaw, chunkBytes, width }: Shape): Record<string, string> => ({
  'cid-version': String(cidVersion),
  'raw-leaves': String(isRaw),
  chunker: `size-${chunkBytes}`,
  'max-file-links': String(width),
  hash: 'sha2-256',
  trickle: 'false',
  inline: 'false',
  pin: 'true',
  'wrap-with-directory': 'false',
  progress: 'false',
})

/**
 * An upload. It can be read repeatedly with the same bytes, so that every provider receives them.
 */
export interface Upload {
  readonly cid: CID
  readonly profile: Profile
  /** The name that its client gave the pin, at most 255 bytes of UTF-8. */
  readonly name?: string
  /**
   * The gateways that it passed through, including this one (CDN-Loop, RFC 8586), for a provider
   * that is such a gateway.
   */
  readonly via?: string
  /** The size of the file, or of all blocks if the root is not a file. */
  readonly bytes: number
  /** The size of the CAR from `car`, including its header. */
  readonly carBytes: number
  /**
   * Rejects (class `content`) if the root is not a file, since Kubo's `pin/add` accepts any root.
   */
  file(signal: AbortSignal): AsyncIterable<Uint8Array>
  /** CARv1 with one root, depth first, each block once. */
  car(signal: AbortSignal): AsyncIterable<Uint8Array>
  blocks(signal: AbortSignal): AsyncIterable<Block>
  /** The CIDs of its blocks, each once, if they are known without reading it. */
  readonly cids?: readonly CID[] | undefined
}

/** The abilities of a provider. */
export type ProviderTraits = {
  /**
   * Receives bytes. False for a Pinning Service API, which fetches by CID and so can never be the
   * only provider.
   */
  readonly takesBytes: boolean
  /** Stores the bytes on this machine, where this instance can read them. */
  readonly local: boolean
}

/** The state of an upload at a provider. */
export type PinState = 'pinned' | 'queued' | 'failed' | 'missing'

/**
 * Promises to callers: `pin` resolves with the CID that the provider reports, once it *holds* it,
 * and rejects with a Failure (source `provider`) of one of four classes in `facts.class`: `auth`,
 * `quota`, `transient` (the only one worth a retry; `retryAfterMs` as sent) or `content`. It never
 * throws or logs a secret. `unpin` of an absent CID succeeds. A call stops at once when its signal
 * aborts.
 */
export interface Provider {
  readonly name: string
  readonly traits: ProviderTraits
  pin(upload: Upload, signal: AbortSignal): Promise<CID>
  unpin(cid: CID, signal: AbortSignal): Promise<void>
  status(cid: CID, signal: AbortSignal): Promise<PinState>
  /** Checks reachability and permissions. Rejects with a Failure that tells what to fix. */
  probe(signal: AbortSignal): Promise<void>
  /** The blocks of a local provider; unverified, since a disk may corrupt them. */
  readonly store?: LocalStore
  /** The gateway's own store in which it keeps uploads, if it does: a commit there also pins. */
  readonly ownStore?: object
  close(): Promise<void>
}

/**
 * Keyed like every tier, so that v0 and v1 CIDs of the same bytes share an entry. A miss is
 * `undefined`; an outage rejects.
 */
export interface LocalStore {
  get(cid: CID): Promise<Uint8Array | undefined>
  has(cid: CID): Promise<boolean>
  /** True if it certainly lacks the block, known without a disk read. Optional. */
  lacks?(cid: CID): boolean
}

export type ProviderContext = {
  readonly name: string
  readonly userAgent: string
  /** The trace of the client's request, whose `traceparent` is forwarded. */
  readonly trace?: Trace | undefined
  /** The absolute path of the gateway's data folder. */
  readonly data: string
  /** Shared state of folders, for a provider that stores bytes on this machine. */
  readonly folders: SharedFolders
  /** The role of this process in folders that others read; undefined if it is alone. */
  readonly role?: FolderRole | undefined
  readonly log: Log
  readonly clock: Clock
}

/**
 * Defines how to read from a provider: an upstream as in `retrieval.upstreams`. Its bytes are
 * verified like all others.
 */
export type ReadBack = {
  readonly use: string
  readonly options: { readonly url: string } & Readonly<Record<string, unknown>>
  readonly perMinute?: number
  readonly perCidPerMinute?: number
  /** Content that cannot be read this way, in words for operators. */
  readonly lacks?: string
}

export type OrphanedStore<Options = unknown> = {
  readonly options: Options
  /** In words for operators. */
  readonly place: string
}

export type ProviderKind<Options extends z.ZodType = z.ZodType> = {
  readonly use: string
  readonly options: Options
  /** The provider fetches bytes by CID, so another provider has to receive them. */
  readonly fetchesByCid?: boolean
  /**
   * The upstream for reading back. `undefined`: the options name none, which is reported to the
   * operator; `false`: the operator wants none. A kind without this method is read by its `store`.
   */
  readBack?(options: z.output<Options>): ReadBack | false | undefined
  /**
   * For a kind that stores bytes on this machine: lists non-empty stores that are no longer
   * configured.
   */
  orphanedStores?(
    data: string,
    configured: readonly z.output<Options>[],
  ): Promise<readonly OrphanedStore<z.output<Options>>[]>
  create(options: z.output<Options>, context: ProviderContext): Provider
}
