// The interface between content and retrieval: one session per request (or background search),
// which gives proved blocks. A block comes from the tiers, or from a shared flight that races the
// upstreams.

import type { CID } from 'multiformats/cid'
import type { DagWant } from '../../backends/upstreams/contract.ts'
import type { Peeked, PeekOptions } from '../core/disk/peeked.ts'
import type { ReadNode } from '../ipld/node-memory.ts'
import type { RequestRecord } from '../observe/requests.ts'

export type { DagWant } from '../../backends/upstreams/contract.ts'

/** Throws for a CID, with the path below it, that may not be read. */
export type Visit = (cid: CID, rest: readonly string[]) => void

/** Throws for a path below /ipns names that may not be read. */
export type VisitNames = (segments: readonly string[]) => void

export type Policy = { readonly visit?: Visit | undefined; readonly visitNames?: VisitNames | undefined }

const allowed = (): void => {}

/** The policy of one session, which remembers the CIDs that its paths led through. */
export class Guard {
  readonly visit: Visit
  readonly visitNames: VisitNames
  readonly #passed: CID[] = []
  /** The end of a path is read next, and was checked with the path. */
  #cleared: CID | undefined

  constructor({ visit = allowed, visitNames = allowed }: Policy) {
    this.visit = visit
    this.visitNames = visitNames
  }

  /**
   * A path leads through this CID to `rest`. Throws if that may not be read. From here on its block
   * may be read even if the CID alone is denied: a path below it may be allowed.
   */
  pass(cid: CID, rest: readonly string[]): void {
    this.visit(cid, rest)
    if (rest.length > 0) this.#passed.push(cid)
    else this.#cleared = cid
  }

  /** Throws for a block that may not be read. */
  check(cid: CID): void {
    if (cid === this.#cleared) return
    try {
      this.visit(cid, [])
    } catch (error) {
      if (!this.#passed.some((one) => one.equals(cid))) throw error
    }
  }
}

export type SessionOptions = Policy & {
  /** Aborts when the client leaves. Never aborts shared work by itself. */
  readonly signal: AbortSignal
  readonly requestRecord: RequestRecord
  /** The address of the client, for round-robin between clients at a busy upstream. */
  readonly client?: string
  /** Milliseconds that the request has waited for admission. Default: none. */
  readonly waitedMs?: number
  /**
   * Called once, before the session first asks upstreams: the tiers lack the block or are late, and
   * no absence is remembered. Throws a Failure if the client may not ask for more.
   */
  readonly beforeMiss?: (() => void) | undefined
  /**
   * Ask no upstream: a block that no tier has rejects with `not-found` (facts: { onlyIfCached: true
   * }).
   */
  readonly onlyIfCached?: boolean
  /** Before asking, forget a remembered absence of each CID that this session asks for. */
  readonly noCache?: boolean
}

/**
 * The entity that a block is part of, and where the reader stands in it. `bytes`: of the entity,
 * from there on, below the block.
 */
export type Place = DagWant & { readonly bytes?: number }

/** A block that the reader will ask for. `bytes`: its approximate size. */
export type Expected = {
  readonly cid: CID
  readonly around: Place
  readonly bytes: number
  /** Throws if its path is denied. The session itself checks whether its CID is. */
  readonly visit?: (() => void) | undefined
}

export interface Session extends Pick<Guard, 'visit' | 'visitNames' | 'pass'> {
  /**
   * The proved bytes of one block (identity CIDs included). `around` names the entity it is part of
   * and the reader's position: if no tier has the block, the gateway fetches the entity from there
   * in one answer, which brings the following blocks. At once where it can be had without a wait.
   * Throws, or rejects with, a Failure: denied, not-found, timeout, unavailable, overloaded,
   * malformed (unprovable), cancelled, internal.
   */
  get(cid: CID, around?: Place): Uint8Array | Promise<Uint8Array>
  /**
   * The same, or a part of a block, proved, where no wait is needed for it. Undefined: `get` brings
   * it. Throws what may not be read.
   */
  peek(cid: CID, options?: PeekOptions): Peeked | undefined
  /**
   * Decodes a dag-pb block that this session gave, or finds what it was decoded to. Throws for what
   * is none.
   */
  readonly readNode: ReadNode
  /** The same without remembering the node, for a traversal that passes it once. */
  readonly readOnce: ReadNode
  /**
   * The next blocks, in order: some are fetched ahead. Blocks of an earlier call that are not in it
   * are dropped.
   */
  expect(next: Iterable<Expected>): void
  /**
   * For a traversal with work between its blocks: undefined while the event loop has time for it,
   * otherwise resolves when other requests have run. `get` yields by itself.
   */
  yieldIfDue(): Promise<void> | undefined
  /** True if a tier has it; fetches nothing. */
  has(cid: CID): Promise<boolean>
  /**
   * The first byte went out: from here each block has its own deadline, and nothing is remembered
   * as not found.
   */
  begun(): void
  /** Leaves every flight joined. Idempotent; must be called in a `finally`. */
  end(): void
}

/** The session, with another way to get a block. */
export const withGet = (session: Session, get: Session['get']): Session => ({
  get,
  peek: (cid, options) => session.peek(cid, options),
  readNode: session.readNode,
  readOnce: session.readOnce,
  expect: (next) => session.expect(next),
  yieldIfDue: () => session.yieldIfDue(),
  has: (cid) => session.has(cid),
  begun: () => session.begun(),
  end: () => session.end(),
  visit: session.visit,
  visitNames: session.visitNames,
  pass: (cid, rest) => session.pass(cid, rest),
})
