// What content asks of retrieval: one session per request (or per background search), through which it gets proved
// blocks. A block comes from the tiers, or from a shared flight that races upstreams.
import type { CID } from 'multiformats/cid'
import type { DagWant } from '../../backends/upstreams/contract.ts'
import type { Account } from '../observe/account.ts'
import type { Guard, Policy } from './policy.ts'

export type { DagWant } from '../../backends/upstreams/contract.ts'

export type SessionOptions = Policy & {
  /** Aborts when the client leaves. Never aborts shared work by itself. */
  readonly signal: AbortSignal
  readonly account: Account
  /** The address of the client: at a busy upstream clients take turns. */
  readonly client?: string
  /** Ask no upstream: what no tier has rejects with `not-found` (facts: { onlyIfCached: true }). */
  readonly onlyIfCached?: boolean
  /** Forget what was remembered as not found, for each thing this session asks for, before asking. */
  readonly noCache?: boolean
}

/** A block that is known to be asked for. `bytes`: about how large it is. */
export type Expected = {
  readonly cid: CID
  readonly around: DagWant
  readonly bytes: number
  /** Throws for what its path says is not to be asked for. What the session knows of its CID it looks at itself. */
  readonly visit?: (() => void) | undefined
}

export interface Session extends Omit<Guard, 'check'> {
  /**
   * The proved bytes of one block (identity CIDs included). `around` says what it is a part of and where the reader
   * stands in it: when the block is in no tier, that is what is fetched, in one answer, and following blocks come from
   * there. Rejects with a Failure: denied, not-found, timeout, unavailable, malformed (unprovable), cancelled.
   */
  get(cid: CID, around?: DagWant): Promise<Uint8Array>
  /** What will be asked for next, in order: some of it is fetched ahead. What was said before and is not in it is dropped. */
  expect(next: Iterable<Expected>): void
  /** Whether a tier has it, without fetching. */
  has(cid: CID): Promise<boolean>
  /** The first byte went out: from here each block has its own deadline, and nothing is remembered as not found. */
  begun(): void
  /** Leaves every flight joined. Idempotent; must be called in a `finally`. */
  end(): void
}

export interface Retrieval {
  session(options: SessionOptions): Session
  /**
   * Puts a proved block of our own (an upload) into every tier. Resolves when the shared ones have it too, with those that
   * failed, or take longer than is worth waiting for.
   */
  store(cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<readonly string[]>
  /** Tiers that other instances see too. */
  readonly sharedTiers: readonly string[]
  /** Brings one of them what it lacks; rejects as the tier does. */
  bring(tier: string, cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<void>
  /** Forgets that this was not found: an upload, a find, or an operator's word. */
  forget(cid: CID): void
  /** What is under way and remembered just now. */
  stats(): Readonly<Record<'notFoundRoots' | 'searches' | 'blockFlights' | 'dagFlights', number>>
  close(): Promise<void>
}
