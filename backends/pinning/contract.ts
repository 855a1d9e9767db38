// A provider is where uploads are kept for good. It stores one upload and says which CID it holds; whether it is the
// first or the third, and what follows from a failure, is upload/confirm.ts's business.
// Every provider passes src/testing/provider.ts.
import type { CID } from 'multiformats/cid'
import type { z } from 'zod'
import type { Block } from '../../src/core/block.ts'
import type { Clock } from '../../src/core/clock.ts'
import type { FolderCompany } from '../../src/core/disk/company.ts'
import type { SharedFolders } from '../../src/core/disk/shared-folders.ts'
import type { Log } from '../../src/core/log.ts'
import type { Trace } from '../../src/core/wire/trace.ts'

/** IPIP-499 names. */
export const profiles = ['unixfs-v1-2025', 'unixfs-v0-2015'] as const
/** The name of one: it decides which CID a file gets. */
export type Profile = (typeof profiles)[number]

/** How files and directories become blocks, and so which CID comes out: balanced, in leaves of one size. */
export type Shape = {
  readonly cidVersion: 0 | 1
  /** Leaves are bare bytes, and no UnixFS nodes. */
  readonly isRaw: boolean
  readonly chunkBytes: number
  /** Links of a node above the leaves. */
  readonly width: number
  /** What is compared with 256 KiB to decide whether a directory is sharded: its names and CIDs, or its whole block. */
  readonly directorySize: 'links' | 'block'
}

export const shapes: Readonly<Record<Profile, Shape>> = {
  'unixfs-v1-2025': { cidVersion: 1, isRaw: true, chunkBytes: 1024 * 1024, width: 1024, directorySize: 'block' },
  'unixfs-v0-2015': { cidVersion: 0, isRaw: false, chunkBytes: 256 * 1024, width: 174, directorySize: 'links' },
}

/** What Kubo's `add` is told to give a file the same CID, whatever is set there, and to pin it. */
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

/** An upload. It can be read again and again with the same bytes, so that every provider gets them. */
export interface Upload {
  readonly cid: CID
  readonly profile: Profile
  /** The gateways it came through, this one included (CDN-Loop, RFC 8586): for a provider that is such a gateway. */
  readonly via?: string
  /** Bytes of the file; of its blocks, where the root is none. */
  readonly bytes: number
  /** Bytes of the CAR that `car` yields (header included). */
  readonly carBytes: number
  /** Rejects (class `content`) where the root is no file: Kubo's `pin/add` brings whatever there is. */
  file(signal: AbortSignal): AsyncIterable<Uint8Array>
  /** CARv1, one root, depth first, each block once. */
  car(signal: AbortSignal): AsyncIterable<Uint8Array>
  blocks(signal: AbortSignal): AsyncIterable<Block>
  /** Its blocks, each once, where that is known without reading it. */
  readonly cids?: readonly CID[] | undefined
}

/** What kind of place a provider is. */
export type ProviderTraits = {
  /** Gets bytes from us. False for a Pinning Service API, which fetches by CID and so can never be the only home. */
  readonly takesBytes: boolean
  /** Keeps the bytes on this machine and can be read back by this instance. */
  readonly local: boolean
}

/** How an upload stands with a provider. */
export type PinState = 'pinned' | 'queued' | 'failed' | 'absent'

/**
 * Promises callers rely on: `pin` resolves with the CID the provider says it holds, once it *holds* it, and rejects
 * with a Failure (source `provider`) of one of four classes, in `facts.class`: `auth`, `quota`, `transient` (the only one
 * worth another try; `retryAfterMs` as sent) or `content`. Nothing it throws or logs holds a secret. `unpin` of what is
 * not there is fine. A call stops at once when its signal aborts.
 */
export interface Provider {
  readonly name: string
  readonly traits: ProviderTraits
  pin(upload: Upload, signal: AbortSignal): Promise<CID>
  unpin(cid: CID, signal: AbortSignal): Promise<void>
  status(cid: CID, signal: AbortSignal): Promise<PinState>
  /** Reachable, and our credentials are good for what we will ask. Rejects with a Failure that says what to mend. */
  probe(signal: AbortSignal): Promise<void>
  /** What this instance reads back from a local provider; unproved bytes, since a disk rots. */
  readonly store?: LocalStore
  /** The store that it keeps uploads in, where it is one of ours: what is accepted in that store is pinned by that commit. */
  readonly home?: object
  close(): Promise<void>
}

/** Keyed like every tier, so that v0 and v1 names of the same bytes are one. A miss is `undefined`, an outage rejects. */
export interface LocalStore {
  get(cid: CID): Promise<Uint8Array | undefined>
  has(cid: CID): Promise<boolean>
  /** Whether it surely lacks the block, known without a look at the disk. Absent: only `get` tells. */
  lacks?(cid: CID): boolean
  /** Whether it surely has the block, known at once. Absent: only `get` tells. */
  holds?(cid: CID): boolean
}

export type ProviderContext = {
  readonly name: string
  readonly userAgent: string
  /** Of the request that is being answered; what is asked for it carries its `traceparent`. */
  readonly trace?: Trace | undefined
  /** The gateway's data folder (absolute). */
  readonly data: string
  /** For a provider that keeps bytes on this machine. */
  readonly folders: SharedFolders
  /** Other processes read the same folders. Absent: there are none. */
  readonly company?: FolderCompany | undefined
  /** What a block links to and `isNew` takes: for a provider that has to find what lies below a root. */
  readonly blocksBelow: (block: Block, isNew: (cid: CID) => boolean) => Promise<readonly CID[]>
  readonly log: Log
  readonly clock: Clock
}

/**
 * How to read from a provider: an upstream, as `retrieval.upstreams` would name it. Its bytes are verified like all
 * others.
 */
export type ReadBack = {
  readonly use: string
  readonly options: { readonly url: string } & Readonly<Record<string, unknown>>
  readonly perMinute?: number
  readonly perCidPerMinute?: number
  /** What cannot be read this way, in words for the operator. */
  readonly lacks?: string
}

export type LeftStore<Options = unknown> = {
  readonly options: Options
  /** In an operator's words. */
  readonly place: string
}

export type ProviderKind<Options extends z.ZodType = z.ZodType> = {
  readonly use: string
  readonly options: Options
  /** The provider fetches bytes by CID: another provider has to be given them. */
  readonly fetches?: boolean
  /**
   * Where what it holds is read back. `undefined`: these options name no place, and the operator is told; `false`: the
   * operator wants none. A kind without it is read by its provider's `store`.
   */
  readBack?(options: z.output<Options>): ReadBack | false | undefined
  /** Of a kind that keeps bytes on this machine: the stores that hold something and are none of the configured. */
  left?(data: string, configured: readonly z.output<Options>[]): Promise<readonly LeftStore<z.output<Options>>[]>
  create(options: z.output<Options>, context: ProviderContext): Provider
}
