// The tiers as one, fastest first. A block found in a slow tier is copied to those before it; a new
// block is in memory at once and in the slow tiers soon, behind the request.
// A tier that fails is skipped: for a reader of the stack there are hits and misses only. What comes
// from a tier that other programs may write to is hashed: corrupt bytes are a miss, and are deleted.
import type { CID } from 'multiformats/cid'
import type { LocalStore } from '../../../backends/pinning/contract.ts'
import type { Tier } from '../../../backends/tiers/contract.ts'
import { blockKey, codec, isIdentity } from '../../core/cid.ts'
import { orAborted } from '../../core/clock.ts'
import { type Peeked, type PeekOptions, partOf } from '../../core/disk/peeked.ts'
import { Failure } from '../../core/failure.ts'
import { createFlights } from '../../core/flights.ts'
import type { GuardedTier, SlowTier, TierHit, TierStats } from './guarded-tier.ts'

export type { TierHit, TierStats } from './guarded-tier.ts'

type TierFailure = { readonly tier: string; readonly failure: Failure }

type Lookup = {
  /** Undefined: no slow tier has it, or none could be asked. Rejects only when all callers left. */
  readonly found: Promise<TierHit | undefined>
  /** Resolves when all were asked and each is late or has answered. The lookup goes on. */
  readonly overdue: Promise<void>
  /** Resolves when each tier of this machine has nothing, or could not answer. */
  readonly here: Promise<void>
  /** Of tiers that could not answer. */
  readonly failures: readonly unknown[]
  /** True if each tier has answered. */
  haveAnswered(): boolean
}
export type TierLookup = Omit<Lookup, 'failures'> & { leave(): void }

/**
 * Leaves of this size are pieces of streamed files: in memory they would evict everything else, and
 * a disk of this machine returns them for little more than their hash.
 */
export const largeLeafBytes = 256 * 1024

/** The tiers outlive it. */
export class TierStack {
  /** Names of the tiers that other instances see too. */
  readonly shared: readonly string[]
  readonly #all: readonly GuardedTier[]
  readonly #fast: readonly GuardedTier[]
  readonly #slow: readonly SlowTier[]
  /** Those that new blocks are written to. */
  readonly #filled: readonly SlowTier[]
  /** Those that an upload is written to. */
  readonly #takeUploads: readonly SlowTier[]
  readonly #hasDisk: boolean
  readonly #lookups = createFlights<Lookup>()
  #deletes = 0

  constructor(all: readonly GuardedTier[]) {
    const slow = all.filter((tier): tier is SlowTier => tier.writeBehind !== undefined)
    const filled = slow.filter(({ traits }) => !traits.readOnly)
    const firstKept = slow.findIndex(({ traits }) => traits.keeps)
    this.shared = slow.flatMap(({ traits, name }) => (traits.shared ? [name] : []))
    this.#all = all
    this.#fast = all.filter(({ writeBehind }) => !writeBehind)
    this.#slow = slow
    this.#filled = filled
    this.#takeUploads = filled.filter((one) => one.traits.shared || firstKept < 0 || slow.indexOf(one) < firstKept)
    this.#hasDisk = filled.some(({ traits }) => !traits.shared)
  }

  // Without waiting.

  /** Reads from memory and write-behind queues only. Counts a hit, and no miss. */
  near(cid: CID): TierHit | undefined {
    for (const one of this.#fast) {
      const bytes = one.tier.peek?.(cid)?.bytes
      if (!bytes) continue
      for (const { tier } of this.#filled) tier.noteRead?.(cid)
      return one.hit(bytes)
    }
    const key = this.#filled.length > 0 ? blockKey(cid) : ''
    for (const one of this.#filled) {
      const bytes = one.writeBehind.waiting(key)
      if (bytes) return one.hit(bytes)
    }
    return undefined
  }

  /** Reads from files in the page cache too. Undefined: it may be in a tier all the same. */
  peek(cid: CID, options?: PeekOptions): (Peeked & TierHit) | undefined {
    const held = this.near(cid)
    if (held) return { tier: held.tier, ...partOf(held.bytes, options?.part) }
    for (const tier of this.#slow) {
      const one = tier.peek?.(cid, options)
      if (!one) continue
      missed(this.#fast)
      // Each reader needs a block with links. A leaf on this disk costs a hash, and no memory.
      if (cid.code !== codec.raw && !options?.part) this.#putInMemory(cid, one.bytes)
      return { ...one, ...tier.hit(one.bytes) }
    }
    return undefined
  }

  /** True if a tier of this machine surely has it, false if surely no tier has it. */
  hasNow(cid: CID): boolean | undefined {
    const key = blockKey(cid)
    const isNear =
      this.#fast.some(({ tier }) => tier.peek?.(cid)) || this.#filled.some((one) => one.writeBehind.waiting(key))
    if (isIdentity(cid) || isNear || this.#slow.some(({ tier }) => tier.hasNow?.(cid))) return true
    return this.#lacking(cid).length === this.#slow.length ? false : undefined
  }

  // By asking slow tiers.

  /** Those that lack it, as far as they know. */
  #lacking(cid: CID): readonly SlowTier[] {
    return this.#slow.filter(({ tier }) => tier.hasNow?.(cid) === false)
  }

  /** Tiers that lack it are asked last. */
  #lookUp(cid: CID, lacking: readonly SlowTier[], signal: AbortSignal, ignoresBreaker: boolean): Lookup {
    const before = this.#deletes
    const others = this.#slow.filter((one) => !lacking.includes(one))
    return lookUp([...others, ...lacking], signal, async (tier, onSoftTimeout) => {
      const bytes = await tier.get(cid, signal, { onSoftTimeout, ignoresBreaker })
      if (!bytes) return undefined
      if (this.#deletes === before) this.#fillBefore(tier, cid, bytes)
      return tier.hit(bytes)
    })
  }

  /** Copies a block to the tiers that are asked before the one that has it. */
  #fillBefore(found: SlowTier, cid: CID, bytes: Uint8Array): void {
    this.#putInMemory(cid, bytes)
    for (const one of this.#filled) {
      if (this.#slow.indexOf(one) >= this.#slow.indexOf(found)) return
      void one.writeBehind.put(cid, bytes)
    }
  }

  /** Asks the slow tiers, once for all who want the block. Undefined: surely no tier has it. */
  look(cid: CID): TierLookup | undefined {
    const key = blockKey(cid)
    missed(this.#fast)
    const lacking = this.#lacking(cid)
    if (lacking.length === this.#slow.length) return void missed(this.#slow)
    const { work, leave } = this.#lookups.join(key, (signal) => {
      const begun = this.#lookUp(cid, lacking, signal, false)
      const over = () => this.#lookups.land(key, begun)
      begun.found.then(over, over)
      return begun
    })
    return { ...work, leave }
  }

  /**
   * Asks all tiers once more, also those that failed lately, and waits for them. `failures`: of those
   * that could not answer. Rejects only with the reason of `signal`.
   */
  async lookAgain(cid: CID, signal: AbortSignal): Promise<{ hit: TierHit | undefined; failures: readonly unknown[] }> {
    signal.throwIfAborted()
    const near = this.near(cid)
    if (near) return { hit: near, failures: [] }
    const { found, failures } = this.#lookUp(cid, this.#lacking(cid), signal, true)
    return { hit: await orAborted(signal, found), failures }
  }

  /** Reads it from any tier. Waits as long as that is worth it. */
  async find(cid: CID, signal?: AbortSignal): Promise<TierHit | undefined> {
    signal?.throwIfAborted()
    const held = this.near(cid)
    const lookup = held ? undefined : this.look(cid)
    if (!lookup) return held
    const { found, overdue, leave } = lookup
    return orAborted(signal, Promise.race([found, overdue.then(() => undefined)])).finally(leave)
  }

  /** True if a pin or upload on this machine has it. Rejects if one cannot be asked. */
  async isPinned(cid: CID, signal: AbortSignal): Promise<boolean> {
    for (const one of this.#slow)
      if (one.traits.readOnly && one.tier.hasNow?.(cid) !== false && (await one.has(cid, signal))) return true
    return false
  }

  // Writing.

  /**
   * Puts a block that came for a reader. A promise: a write-behind queue is full; wait a little.
   */
  keep(cid: CID, bytes: Uint8Array): void | Promise<void> {
    const own = owned(bytes)
    // A large leaf is read from the queue of the disk while it waits, and is in memory where no
    // disk takes it.
    const isOnDisk = this.#hasDisk && cid.code === codec.raw && bytes.byteLength >= largeLeafBytes
    if (!isOnDisk) this.#putInMemory(cid, own)
    const before = this.#deletes
    const onLost = () => {
      if (isOnDisk && this.#deletes === before) this.#putInMemory(cid, own)
    }
    const waits: Promise<void>[] = []
    for (const { traits, writeBehind } of this.#filled) {
      const wait = writeBehind.put(cid, own, traits.shared ? undefined : onLost)
      if (wait) waits.push(wait)
    }
    if (waits.length > 0) return Promise.all(waits).then(() => {})
  }

  /**
   * For an upload: resolves when memory and every shared tier has it, and names the shared tiers
   * that failed or are late. Caches of this machine get it behind, unless a tier before them keeps
   * uploads for good. Rejects only with the reason of `signal`.
   */
  async store(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<{ readonly failed: readonly TierFailure[] }> {
    signal?.throwIfAborted()
    const own = owned(bytes)
    this.#putInMemory(cid, own)
    const failed: TierFailure[] = []
    const writes = this.#takeUploads.map(async (one) => {
      if (!one.traits.shared) return void one.writeBehind.put(cid, own)
      try {
        const { done, late } = one.writeBehind.write(cid, own)
        await Promise.race([done, late.promise.then(() => Promise.reject(tooLate(one)))])
      } catch (error) {
        failed.push({ tier: one.name, failure: one.outage(error) })
      }
    })
    await orAborted(signal, Promise.all(writes))
    return { failed }
  }

  /** Writes a block to a shared tier that lacks it; rejects as the tier does. */
  async bring(name: string, cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    const tier = this.#slow.find((one) => one.traits.shared && one.name === name)
    if (!tier) throw new Failure('unavailable', `there is no shared tier ${name}`, { source: 'tier' })
    try {
      await orAborted(signal, tier.writeBehind.write(cid, new Uint8Array(bytes)).done)
    } catch (error) {
      signal.throwIfAborted()
      throw tier.outage(error)
    }
  }

  async delete(cid: CID, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted()
    this.#deletes++
    // A lookup under way may have read it: later readers begin another one.
    const lookup = this.#lookups.peek(blockKey(cid))
    if (lookup) this.#lookups.land(blockKey(cid), lookup)
    const work = this.#all.map(({ writeBehind, tier }) => (writeBehind ?? tier).delete(cid, signal))
    const failures = (await Promise.allSettled(work)).filter((result) => result.status === 'rejected')
    signal?.throwIfAborted()
    if (failures[0]) throw failures[0].reason
  }

  #putInMemory(cid: CID, bytes: Uint8Array): void {
    for (const { tier } of this.#fast) tier.putNow?.(cid, bytes)
  }

  stats(): readonly TierStats[] {
    return this.#all.map(({ stats }) => stats)
  }

  close(): void {
    this.#lookups.close()
  }
}

const missed = (tiers: readonly GuardedTier[]): void => {
  for (const one of tiers) one.misses++
}

const tooLate = ({ name }: GuardedTier): Failure =>
  new Failure('timeout', `tier ${name} timed out: it takes longer than it is waited for`, { source: 'tier' })

/**
 * A block that is all of its buffer never changes (`Tier`); a caller may write over a part of one.
 */
const owned = (bytes: Uint8Array): Uint8Array =>
  bytes.byteLength === bytes.buffer.byteLength ? bytes : new Uint8Array(bytes)

/** Undefined: the tier has nothing. */
type TierCall = (tier: SlowTier, onSoftTimeout: () => void) => Promise<TierHit | undefined>

/**
 * Asks the slow tiers, nearest first. The next tier is asked when one has nothing or is late; late
 * tiers go on, and the first hit of any counts.
 */
function lookUp(tiers: readonly SlowTier[], signal: AbortSignal, call: TierCall): Lookup {
  const [overdue, here] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  const first = Promise.withResolvers<TierHit | undefined>()
  const open = new Set(tiers)
  const failures: unknown[] = []
  let isFound = false
  const noteHere = () => {
    if (!isFound && [...open].every(({ traits }) => traits.shared)) here.resolve()
  }

  async function ask(tier: SlowTier, onSoftTimeout: () => void): Promise<void> {
    try {
      const hit = await call(tier, onSoftTimeout)
      isFound ||= hit !== undefined
      if (hit) first.resolve(hit)
      else tier.misses++
    } catch (error) {
      failures.push(error)
      if (!signal.aborted) tier.outage(error)
    }
    open.delete(tier)
    noteHere()
  }

  async function askAll(): Promise<TierHit | undefined> {
    const answers: Promise<void>[] = []
    for (const tier of tiers) {
      const late = Promise.withResolvers<void>()
      const answer = ask(tier, late.resolve)
      answers.push(answer)
      const hit = await Promise.race([first.promise, answer, late.promise])
      signal.throwIfAborted()
      if (hit) return hit
    }
    if (open.size > 0) overdue.resolve()
    void Promise.all(answers).then(() => first.resolve(undefined))
    const hit = await first.promise
    signal.throwIfAborted()
    return hit
  }

  noteHere()
  const found = askAll()
  found.catch(() => {})
  const haveAnswered = () => failures.length === 0 && open.size === 0
  return { found, overdue: overdue.promise, here: here.promise, failures, haveAnswered }
}

/**
 * The blocks of a local provider as a read-only tier: a pinned block is served from this machine
 * even if the caches have evicted it. A damaged one stays: it is replaced when the same upload comes
 * again. `keeps`: no cache of this machine needs its blocks too.
 */
export const createPinsTier = (name: string, store: LocalStore, keeps: boolean): Tier => ({
  name,
  traits: { persistent: true, shared: false, trusted: false, keeps, readOnly: true },
  // A pinned block may be nowhere else, and a disk that is busy with uploads can be slow.
  timeoutMs: 10_000,
  get: (cid) => store.get(cid),
  has: (cid) => store.has(cid),
  hasNow: (cid) => (store.lacks?.(cid) ? false : undefined),
  put: async () => {},
  delete: async () => {},
  close: async () => {},
})
