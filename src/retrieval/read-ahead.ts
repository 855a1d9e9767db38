// Read-ahead: asks for blocks before their reader wants them, so that not each costs a round trip.
// The window grows while the reader has to wait, and shrinks when it stops reading. All readers
// share one memory budget: a reader that finds it used up still gets its next block ahead.
import type { CID } from 'multiformats/cid'
import { blockKey, isIdentity } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import type { DagWant, Expected } from './session.ts'

const minWindowBytes = 1024 * 1024
const maxWindowBytes = 16 * 1024 * 1024
const maxBlocks = 64
const idleMs = 2000

/** The memory for read-ahead of all readers together. */
export class ReadAheadBudget {
  readonly #maxBytes: number
  #taken = 0
  readers = 0

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  /** The maximum of one reader, divided among the present readers. */
  get share(): number {
    return this.#maxBytes / Math.max(1, this.readers)
  }

  take(bytes: number, isNext: boolean): boolean {
    if (!isNext && this.#taken + bytes > this.#maxBytes) return false
    this.#taken += bytes
    return true
  }

  give(bytes: number): void {
    this.#taken -= bytes
  }
}

type Ahead = { readonly block: Promise<Uint8Array>; readonly bytes: number; isHere: boolean }

type ReadAheadOptions = {
  readonly fetch: (cid: CID, around: DagWant) => Promise<Uint8Array>
  /** Throws for a block that may not be read. */
  readonly check: (cid: CID) => void
  readonly budget: ReadAheadBudget
  readonly clock: Clock
}

export class ReadAhead {
  readonly #options: ReadAheadOptions
  readonly #ahead = new Map<string, Ahead>()
  #bytes = 0
  #windowBytes = minWindowBytes
  /** More blocks ahead than these need no look at what comes next. */
  #enough = Number.POSITIVE_INFINITY
  #stopTimer: (() => void) | undefined

  constructor(options: ReadAheadOptions) {
    this.#options = options
    options.budget.readers++
  }

  /** The next blocks, in order, as far as known; blocks no longer among them are dropped. */
  expect(next: Iterable<Expected>): void {
    this.#restartTimer()
    // A directory of 100,000 names is 30,000 small blocks: to look at the next 64 behind each would
    // be a quarter of its listing.
    if (this.#ahead.size > this.#enough) return
    const known = new Set<string>()
    // Links that repeat, or hold their content themselves, bring nothing to ask for.
    let skipped = 0
    for (const one of next) {
      const key = isIdentity(one.cid) ? undefined : blockKey(one.cid)
      if (key === undefined || known.has(key)) {
        if (++skipped >= maxBlocks) break
        continue
      }
      if (!this.#ahead.has(key) && !this.#begin(key, one, known.size)) break
      known.add(key)
    }
    for (const [key, entry] of this.#ahead) if (!known.has(key)) this.#drop(key, entry)
    this.#enough = this.#ahead.size * 0.75
  }

  /** True if it is being read ahead. */
  has(cid: CID): boolean {
    return this.#ahead.size > 0 && this.#ahead.has(blockKey(cid))
  }

  /** The block, if it was asked for ahead. */
  take(cid: CID): Promise<Uint8Array> | undefined {
    if (this.#ahead.size === 0) return undefined
    const key = blockKey(cid)
    const entry = this.#ahead.get(key)
    const isWaitedFor = entry?.isHere === false
    if (!entry || (isWaitedFor && this.#windowBytes < maxWindowBytes)) this.#enough = Number.POSITIVE_INFINITY
    if (!entry) return undefined
    if (isWaitedFor) this.#windowBytes = Math.min(maxWindowBytes, this.#windowBytes * 2)
    this.#drop(key, entry)
    return entry.block
  }

  end(): void {
    this.#stopTimer?.()
    for (const [key, entry] of this.#ahead) this.#drop(key, entry)
    this.#options.budget.readers--
  }

  /** False: it is too much, or may not be read. `before`: how many blocks come before it. */
  #begin(key: string, expected: Expected, before: number): boolean {
    const { budget, fetch } = this.#options
    const { cid, around, bytes } = expected
    const isFull = this.#bytes + bytes > Math.min(this.#windowBytes, budget.share) || before >= maxBlocks
    if ((before > 0 && isFull) || !this.#isAllowed(expected) || !budget.take(bytes, before === 0)) return false
    const entry: Ahead = { block: fetch(cid, around), bytes, isHere: false }
    this.#ahead.set(key, entry)
    this.#bytes += bytes
    entry.block.then(
      () => {
        entry.isHere = true
      },
      // No reader waits for it yet: a reader that wants it asks again.
      () => {
        this.#enough = Number.POSITIVE_INFINITY
        if (this.#ahead.get(key) === entry) this.#drop(key, entry)
      },
    )
    return true
  }

  #isAllowed({ cid, visit }: Expected): boolean {
    try {
      this.#options.check(cid)
      visit?.()
      return true
    } catch {
      return false
    }
  }

  #drop(key: string, { bytes }: Ahead): void {
    this.#ahead.delete(key)
    this.#bytes -= bytes
    this.#options.budget.give(bytes)
  }

  /**
   * Drops all but the next block of a reader that stopped reading: the tiers have the others, or
   * they are asked for again.
   */
  #restartTimer(): void {
    this.#stopTimer?.()
    this.#stopTimer = this.#options.clock.after(idleMs, () => {
      this.#windowBytes = minWindowBytes
      this.#enough = Number.POSITIVE_INFINITY
      const [, ...rest] = this.#ahead
      for (const [key, entry] of rest) if (entry.isHere) this.#drop(key, entry)
    })
  }
}
