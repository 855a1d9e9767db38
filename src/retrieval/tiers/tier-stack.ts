// The tiers as one, fastest first, and itself a tier. A block found in a slow tier is copied to
// those before it; a new block is in memory at once and in the slow tiers soon, behind the request.
// A tier that fails is skipped: for a reader of the stack there are hits and misses only. What comes
// from a tier that other programs may write to is hashed: corrupt bytes are a miss, and are deleted.
import type { CID } from 'multiformats/cid'
import type { LocalStore } from '../../../backends/pinning/contract.ts'
import type { Tier } from '../../../backends/tiers/contract.ts'
import { blockKey, codec, isIdentity, proves } from '../../core/cid.ts'
import { orAborted } from '../../core/clock.ts'
import { type Peeked, type PeekOptions, partOf } from '../../core/disk/peeked.ts'
import { cancelled, Failure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { GuardedTier, SlowTier, TierHit, TierStats } from './guarded-tier.ts'

export type { TierHit, TierStats } from './guarded-tier.ts'
export type TierFailure = { readonly tier: string; readonly failure: Failure }
/** Each caller leaves it, once. */
export type TierLookup = Pick<Lookup, 'found' | 'overdue' | 'here' | 'haveAnswered' | 'leave'>

export type TierStack = Pick<Tier, 'name' | 'traits' | 'get' | 'put' | 'has' | 'delete' | 'close'> & {
  /** Reads from memory and write-behind queues only. Counts a hit, and no miss. */
  near(cid: CID): TierHit | undefined
  /** Reads from files in the page cache too. Undefined: it may be in a tier all the same. */
  peek(cid: CID, options?: PeekOptions): (Peeked & TierHit) | undefined
  /** True if a tier of this machine surely has it, false if surely no tier has it. */
  hasNow(cid: CID): boolean | undefined
  /** Asks the slow tiers, once for all who want the block. Undefined: surely no tier has it. */
  look(cid: CID): TierLookup | undefined
  /**
   * Asks the slow tiers once more, also those that failed lately, and waits for all of them.
   * `failures`: of those that could not answer. Rejects only with the reason of `signal`.
   */
  lookAgain(cid: CID, signal: AbortSignal): Promise<{ readonly hit: TierHit | undefined; readonly failures: unknown[] }>
  /** `get`, with the tier it came from. Waits as long as that is worth it. */
  find(cid: CID, signal?: AbortSignal): Promise<TierHit | undefined>
  /** True if a pin or upload on this machine has it. Rejects if one cannot be asked. */
  isPinned(cid: CID, signal: AbortSignal): Promise<boolean>
  /**
   * Puts a block that came for a reader. A promise: a write-behind queue is full; wait a little.
   */
  keep(cid: CID, bytes: Uint8Array): void | Promise<void>
  /**
   * For an upload: resolves when memory and every shared tier has it, and names the shared tiers
   * that failed or are late. Caches of this machine get it behind, unless a tier before them keeps
   * uploads for good. Rejects only with the reason of `signal`.
   */
  store(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<{ readonly failed: readonly TierFailure[] }>
  /** Names of the tiers that other instances see too. */
  readonly shared: readonly string[]
  /** Writes a block to a shared tier that lacks it; rejects as the tier does. */
  bring(tier: string, cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<void>
  stats(): readonly TierStats[]
}

/**
 * Leaves of this size are pieces of streamed files: in memory they would evict everything else, and
 * a disk of this machine returns them for little more than their hash.
 */
export const largeLeafBytes = 256 * 1024

/** The tiers outlive it. */
export function createTierStack(all: readonly GuardedTier[]): TierStack {
  const fast = all.filter(({ writeBehind }) => !writeBehind)
  const slow = all.filter((tier): tier is SlowTier => tier.writeBehind !== undefined)
  /** Those that new blocks are written to. */
  const filled = slow.filter(({ traits }) => !traits.readOnly)
  const firstKept = slow.findIndex(({ traits }) => traits.keeps)
  /** Those that an upload is written to. */
  const takeUploads = filled.filter((one) => one.traits.shared || firstKept < 0 || slow.indexOf(one) < firstKept)
  const hasDisk = filled.some(({ traits }) => !traits.shared)
  const lookups = new Map<string, Lookup>()
  let deletes = 0

  // Without waiting.

  function inProcess(cid: CID): TierHit | undefined {
    for (const layer of fast) {
      const bytes = layer.tier.peek?.(cid)?.bytes
      if (!bytes) continue
      for (const { tier } of filled) tier.noteRead?.(cid)
      return layer.hit(bytes)
    }
    const key = filled.length > 0 ? blockKey(cid) : ''
    for (const layer of filled) {
      const bytes = layer.writeBehind.waiting(key)
      if (bytes) return layer.hit(bytes)
    }
    return undefined
  }

  function peek(cid: CID, options?: PeekOptions): (Peeked & TierHit) | undefined {
    const held = inProcess(cid)
    if (held) return { tier: held.tier, ...partOf(held.bytes, options?.part) }
    for (const layer of slow) {
      const one = layer.peek?.(cid, options)
      if (!one) continue
      missed(fast)
      // Each reader needs a block with links. A leaf on this disk costs a hash, and no memory.
      if (cid.code !== codec.raw && !options?.part) putInMemory(fast, cid, one.bytes)
      return { ...one, ...layer.hit(one.bytes) }
    }
    return undefined
  }

  /** True if a slow tier has it; undefined if that is not known without asking. */
  function slowHaveNow(cid: CID): boolean | undefined {
    let isSure = true
    for (const { tier } of slow) {
      const has = tier.hasNow?.(cid)
      if (has) return true
      isSure &&= has === false
    }
    return isSure ? false : undefined
  }

  function hasNow(cid: CID): boolean | undefined {
    const key = blockKey(cid)
    const isNear = fast.some(({ tier }) => tier.peek?.(cid)) || filled.some((one) => one.writeBehind.waiting(key))
    return isIdentity(cid) || isNear || slowHaveNow(cid)
  }

  // By asking slow tiers.

  function lookUp(cid: CID, ignoresBreaker: boolean): Lookup {
    const before = deletes
    // A tier that lacks it, as far as it knows, is asked last.
    const lacking = slow.filter(({ tier }) => tier.hasNow?.(cid) === false)
    const others = slow.filter((one) => !lacking.includes(one))
    return new Lookup([...others, ...lacking], async (tier, signal, onSoftTimeout) => {
      const bytes = await tier.get(cid, signal, { onSoftTimeout, ignoresBreaker })
      if (!bytes) return undefined
      if (deletes === before) fillBefore(tier, cid, bytes)
      return tier.hit(bytes)
    })
  }

  /** Copies a block to the tiers that are asked before the one that has it. */
  function fillBefore(found: SlowTier, cid: CID, bytes: Uint8Array): void {
    putInMemory(fast, cid, bytes)
    for (const one of filled) {
      if (slow.indexOf(one) >= slow.indexOf(found)) return
      void one.writeBehind.put(cid, bytes)
    }
  }

  function look(cid: CID): TierLookup | undefined {
    const key = blockKey(cid)
    missed(fast)
    if (slowHaveNow(cid) === false) return void missed(slow)
    const running = lookups.get(key)
    if (running) return running.join()
    const begun = lookUp(cid, false)
    const over = () => {
      if (lookups.get(key) === begun) lookups.delete(key)
    }
    lookups.set(key, begun)
    begun.found.then(over, over)
    return begun.join()
  }

  async function lookAgain(cid: CID, signal: AbortSignal) {
    signal.throwIfAborted()
    const { found, failures, leave } = lookUp(cid, true).join()
    return { hit: await orAborted(signal, found).finally(leave), failures }
  }

  async function find(cid: CID, signal?: AbortSignal): Promise<TierHit | undefined> {
    signal?.throwIfAborted()
    const held = inProcess(cid)
    const lookup = held ? undefined : look(cid)
    if (!lookup) return held
    const { found, overdue, leave } = lookup
    return orAborted(signal, Promise.race([found, overdue.then(() => undefined)])).finally(leave)
  }

  // Writing.

  function keep(cid: CID, bytes: Uint8Array): void | Promise<void> {
    const own = owned(bytes)
    // A large leaf is read from the queue of the disk while it waits, and is in memory where no
    // disk takes it.
    const isOnDisk = hasDisk && cid.code === codec.raw && bytes.byteLength >= largeLeafBytes
    if (!isOnDisk) putInMemory(fast, cid, own)
    const before = deletes
    const onLost = () => {
      if (isOnDisk && deletes === before) putInMemory(fast, cid, own)
    }
    const waits: Promise<void>[] = []
    for (const { tier, writeBehind } of filled) {
      const wait = writeBehind.put(cid, own, tier.traits.shared ? undefined : onLost)
      if (wait) waits.push(wait)
    }
    if (waits.length > 0) return Promise.all(waits).then(() => {})
  }

  async function store(cid: CID, bytes: Uint8Array, signal?: AbortSignal) {
    signal?.throwIfAborted()
    const own = owned(bytes)
    putInMemory(fast, cid, own)
    const failed: TierFailure[] = []
    const writes = takeUploads.map(async (one) => {
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

  async function bring(name: string, cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    const tier = slow.find((one) => one.traits.shared && one.name === name)
    if (!tier) throw new Failure('unavailable', `there is no shared tier ${name}`, { source: 'tier' })
    try {
      await orAborted(signal, tier.writeBehind.write(cid, new Uint8Array(bytes)).done)
    } catch (error) {
      signal.throwIfAborted()
      throw tier.outage(error)
    }
  }

  async function remove(cid: CID, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted()
    deletes++
    // A lookup under way may have read it: later readers begin another one.
    lookups.delete(blockKey(cid))
    const work = all.map(({ writeBehind, tier }) => writeBehind?.delete(cid, signal) ?? tier.delete(cid, signal))
    const failures = (await Promise.allSettled(work)).filter((result) => result.status === 'rejected')
    signal?.throwIfAborted()
    if (failures[0]) throw failures[0].reason
  }

  return {
    name: 'tiers',
    traits: {
      persistent: all.some(({ tier }) => tier.traits.persistent),
      shared: all.some(({ tier }) => tier.traits.shared),
      trusted: true,
    },
    ...{ near: inProcess, peek, hasNow, look, lookAgain, find, keep, store, bring },
    async isPinned(cid, signal) {
      for (const { tier } of slow)
        if (tier.traits.readOnly && tier.hasNow?.(cid) !== false && (await tier.has(cid, signal))) return true
      return false
    },
    get: async (cid, signal) => (await find(cid, signal))?.bytes,
    has: async (cid, signal) => (await find(cid, signal)) !== undefined,
    async put(cid, bytes, signal) {
      signal?.throwIfAborted()
      await orAborted(signal, Promise.resolve(keep(cid, bytes)))
    },
    shared: slow.flatMap(({ tier }) => (tier.traits.shared ? [tier.name] : [])),
    delete: remove,
    stats: () => all.map(({ stats }) => stats),
    async close() {
      for (const one of lookups.values()) one.abort(cancelled('the gateway is closing'))
      lookups.clear()
    },
  }
}

const missed = (tiers: readonly GuardedTier[]): void => {
  for (const one of tiers) one.misses++
}

function putInMemory(tiers: readonly GuardedTier[], cid: CID, bytes: Uint8Array): void {
  for (const { tier } of tiers) tier.putNow?.(cid, bytes)
}

const tooLate = ({ name }: GuardedTier): Failure =>
  new Failure('timeout', `tier ${name} timed out: it takes longer than it is waited for`, { source: 'tier' })

/**
 * A block that is all of its buffer never changes (`Tier`); a caller may write over a part of one.
 */
const owned = (bytes: Uint8Array): Uint8Array =>
  bytes.byteLength === bytes.buffer.byteLength ? bytes : new Uint8Array(bytes)

/** Undefined: the tier has nothing. */
type TierCall = (tier: SlowTier, signal: AbortSignal, onSoftTimeout: () => void) => Promise<TierHit | undefined>

// Made once: its stack trace tells nothing, and is expensive.
const elsewhere = Object.freeze(new DOMException('another tier has it', 'AbortError'))

/**
 * A question to the slow tiers, nearest first. The next tier is asked when one has nothing or is
 * late; late tiers go on, and the first hit of any counts. Many callers share it; the last one that
 * leaves ends it.
 */
class Lookup {
  /** Undefined: no slow tier has it, or none could be asked. Rejects only when it was ended. */
  readonly found: Promise<TierHit | undefined>
  /** Resolves when all were asked and each is late or has answered. The lookup goes on. */
  readonly overdue: Promise<void>
  /** Resolves when each tier of this machine has nothing, or could not answer. */
  readonly here: Promise<void>
  /** Of tiers that could not answer. */
  readonly failures: unknown[] = []
  readonly #call: TierCall
  readonly #own = new AbortController()
  readonly #found = Promise.withResolvers<TierHit | undefined>()
  readonly #overdue = Promise.withResolvers<void>()
  readonly #here = Promise.withResolvers<void>()
  /** Those that have not answered yet. */
  readonly #open: Set<SlowTier>
  #readers = 0
  #isOver = false

  constructor(tiers: readonly SlowTier[], call: TierCall) {
    this.#call = call
    this.#open = new Set(tiers)
    this.found = this.#found.promise
    this.overdue = this.#overdue.promise
    this.here = this.#here.promise
    this.found.catch(() => {})
    void this.#askAll(tiers)
    this.#noteHere()
  }

  get haveAnswered(): boolean {
    return this.failures.length === 0 && this.#open.size === 0
  }

  join(): this {
    this.#readers++
    return this
  }

  readonly leave = (): void => {
    if (--this.#readers === 0) this.abort(unwanted)
  }

  abort(reason: unknown): void {
    this.#end(() => this.#found.reject(reason), reason)
  }

  #end(settle: () => void, reason: unknown): void {
    if (this.#isOver) return
    this.#isOver = true
    settle()
    if (this.#open.size > 0) this.#own.abort(reason)
  }

  async #askAll(tiers: readonly SlowTier[]): Promise<void> {
    const answers: Promise<void>[] = []
    for (const tier of tiers) {
      const late = Promise.withResolvers<void>()
      answers.push(this.#ask(tier, late.resolve))
      await Promise.race([answers.at(-1), late.promise])
      if (this.#isOver) return
    }
    if (this.#open.size > 0) this.#overdue.resolve()
    await Promise.all(answers)
    this.#end(() => this.#found.resolve(undefined), elsewhere)
  }

  async #ask(tier: SlowTier, onSoftTimeout: () => void): Promise<void> {
    const { signal } = this.#own
    let hit: TierHit | undefined
    try {
      hit = await this.#call(tier, signal, onSoftTimeout)
      if (!hit) tier.misses++
    } catch (error) {
      this.failures.push(error)
      if (!signal.aborted) tier.outage(error)
    }
    this.#open.delete(tier)
    if (hit) this.#end(() => this.#found.resolve(hit), elsewhere)
    else this.#noteHere()
  }

  #noteHere(): void {
    if ([...this.#open].every(({ traits }) => traits.shared)) this.#here.resolve()
  }
}

const unwanted = cancelled('no caller waits for it any more')

/**
 * The blocks of a local provider as a read-only tier: a pinned block is served from this machine
 * even if the caches have evicted it. `keeps`: no cache of this machine needs its blocks too.
 */
export function createPinsTier(
  name: string,
  store: LocalStore,
  { keeps, log }: { readonly keeps: boolean; readonly log: Log },
): Tier {
  return {
    name,
    traits: { persistent: true, shared: false, trusted: true, keeps, readOnly: true },
    // A pinned block may be nowhere else, and a disk that is busy with uploads can be slow.
    timeoutMs: 10_000,
    async get(cid) {
      const bytes = await store.get(cid)
      if (bytes === undefined || proves(cid, bytes)) return bytes
      // A disk rots. The file stays: it is replaced when the same upload comes again.
      log('error', 'pins.corrupt', { provider: name, cid: cid.toString() })
      return undefined
    },
    has: (cid) => store.has(cid),
    hasNow: (cid) => (store.lacks?.(cid) ? false : undefined),
    put: async () => {},
    delete: async () => {},
    close: async () => {},
  }
}
