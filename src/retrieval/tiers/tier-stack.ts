// The tiers as one, fastest first, and itself a tier. A block found in a slow tier is copied to
// those before it; a new block is in memory at once and in the slow tiers soon, behind the request.
// A tier that fails is skipped: for a reader of the stack there are hits and misses only. What comes
// from a tier that other programs may write to is hashed: corrupt bytes are a miss, and are deleted.
import type { CID } from 'multiformats/cid'
import type { LocalStore } from '../../../backends/pinning/contract.ts'
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import { blockKey, codec, isIdentity, proves } from '../../core/cid.ts'
import { type Clock, orAborted, systemClock } from '../../core/clock.ts'
import { type Peeked, type PeekOptions, partOf } from '../../core/disk/peeked.ts'
import { cancelled, Failure, isFailure } from '../../core/failure.ts'
import { type Log, silentLog } from '../../core/log.ts'
import { verifiedPeek } from './verified-peek.ts'
import { type FillStats, WriteBehind } from './write-behind.ts'

export type TierHit = { readonly bytes: Uint8Array; readonly tier: string }
export type TierFailure = { readonly tier: string; readonly failure: Failure }
/** Each caller leaves it, once. */
export type TierLookup = Pick<Lookup, 'found' | 'overdue' | 'here' | 'haveAnswered' | 'leave'>
type OnFailed = (tier: string, error: unknown) => void

export type TierStats = FillStats & {
  readonly tier: string
  readonly hits: number
  readonly misses: number
  /** Calls that failed or were not answered in time. */
  readonly outages: number
  /** Blocks that did not match their CID. */
  readonly corrupt: number
}

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
   * `onFailed` is called for each that could not answer. Rejects only with the reason of `signal`.
   */
  lookAgain(cid: CID, signal: AbortSignal, onFailed?: OnFailed): Promise<TierHit | undefined>
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
   * it for good. Rejects only with the reason of `signal`.
   */
  store(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<{ readonly failed: readonly TierFailure[] }>
  /** Names of the tiers that other instances see too. */
  readonly shared: readonly string[]
  /** Writes a block to a shared tier that lacks it; rejects as the tier does. */
  bring(tier: string, cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<void>
  /** Probes every tier once; those that fail are skipped from then on. */
  probeAll(signal?: AbortSignal): Promise<readonly TierFailure[]>
  stats(): readonly TierStats[]
}

type TierStackOptions = {
  readonly clock?: Clock
  readonly log?: Log
  /** The maximum that waits to be written, for each slow tier. */
  readonly fillBytes?: number
}

/**
 * Leaves of this size are pieces of streamed files: in memory they would evict everything else, and
 * a disk of this machine returns them for little more than their hash.
 */
export const largeLeafBytes = 256 * 1024
const defaultFillBytes = 16 * 1024 * 1024
/** The time that `close` waits for the write-behind queues. */
const drainMs = 5000

/** A slow tier, with its write-behind queue. */
export type SlowLayer = Layer & { readonly writeBehind: WriteBehind }

type LayerOptions = {
  readonly tier: Tier
  readonly clock: Clock
  readonly log: Log
  /** The maximum of its write-behind queue. */
  readonly maxBytes: number
}

/**
 * One tier of a stack, with the proof of what it returns, its write-behind queue and its counts.
 * Outlives the stack in a reload.
 */
export class Layer {
  readonly tier: Tier
  /** Undefined for memory, which is written to directly. */
  readonly writeBehind: WriteBehind | undefined
  readonly peek: Tier['peek']
  readonly #log: Log
  hits = 0
  misses = 0
  outages = 0
  corrupt = 0

  constructor({ tier, clock, log, maxBytes }: LayerOptions) {
    this.tier = tier
    this.#log = log
    this.peek = tier.traits.trusted ? (cid, options) => tier.peek?.(cid, options) : verifiedPeek(tier)
    this.writeBehind = tier.putNow ? undefined : new WriteBehind({ tier, clock, maxBytes })
  }

  get name(): string {
    return this.tier.name
  }

  has(cid: CID, signal?: AbortSignal): Promise<boolean> {
    return this.tier.has(cid, signal)
  }

  async get(cid: CID, signal?: AbortSignal, call?: Call): Promise<Uint8Array | undefined> {
    const bytes = await this.tier.get(cid, signal, call)
    if (bytes === undefined || this.tier.traits.trusted || proves(cid, bytes)) return bytes
    this.corrupt++
    this.#log('warn', 'tier.corrupt', { tier: this.name, cid: cid.toString(), bytes: bytes.byteLength })
    await this.#removeCorrupt(cid)
    return undefined
  }

  /**
   * Deletes the block if it is still corrupt. Resolves when that is done, or no longer worth waiting
   * for. Not on the reader's signal: an impatient client leaves no corrupt block behind.
   */
  async #removeCorrupt(cid: CID): Promise<void> {
    const late = Promise.withResolvers<void>()
    const work = async (signal: AbortSignal, onLate: () => void) => {
      const onSoftTimeout = () => {
        onLate()
        late.resolve()
      }
      const bytes = await this.tier.get(cid, signal, { onSoftTimeout })
      signal.throwIfAborted()
      if (bytes && !proves(cid, bytes)) await this.tier.delete(cid, signal, { onSoftTimeout })
    }
    const done = this.writeBehind?.mend(cid, work).catch((error: unknown) => {
      if (isFailure(error, 'cancelled')) return
      this.#log('warn', 'tier.corrupt-kept', { tier: this.name, cid: cid.toString(), error: String(error) })
    })
    await Promise.race([done, late.promise])
  }

  hit(bytes: Uint8Array): TierHit {
    this.hits++
    return { bytes, tier: this.name }
  }

  outage(error: unknown): Failure {
    this.outages++
    if (isFailure(error)) return error
    this.#log('error', 'tier.error', { tier: this.name, error: String(error) })
    const said = `tier ${this.name}: internal error; the log has it as tier.error`
    return new Failure('internal', said, { source: 'ours', cause: error })
  }

  /** Writes what waits for the tier, within the time. The tier stays open. */
  async close(): Promise<void> {
    await this.writeBehind?.close(drainMs)
  }
}

/** Closes tiers that were passed in, but no layers, which may be part of another stack. */
export function createTierStack(parts: readonly (Tier | Layer)[], options: TierStackOptions = {}): TierStack {
  const { clock = systemClock, log = silentLog, fillBytes = defaultFillBytes } = options
  const all = parts.map((part) =>
    part instanceof Layer ? part : new Layer({ tier: part, clock, log, maxBytes: fillBytes }),
  )
  const own = all.filter((layer) => !parts.includes(layer))
  const fast = all.filter(({ writeBehind }) => !writeBehind)
  const slow = all.filter((layer): layer is SlowLayer => layer.writeBehind !== undefined)
  /** Those that new blocks are written to. */
  const filled = slow.filter(({ tier }) => !tier.traits.readOnly)
  const hasDisk = filled.some(({ tier }) => !tier.traits.shared)
  const lookups = new Map<string, Lookup>()
  let deletes = 0
  let closing: Promise<void> | undefined

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

  function lookUp(cid: CID, ignoresBreaker: boolean, onFailed?: OnFailed): Lookup {
    const before = deletes
    // A tier that lacks it, as far as it knows, is asked last.
    const lacking = slow.filter(({ tier }) => tier.hasNow?.(cid) === false)
    const others = slow.filter((layer) => !lacking.includes(layer))
    return new Lookup([...others, ...lacking], async (layer, signal, call) => {
      const bytes = await layer.get(cid, signal, { ...call, ignoresBreaker }).catch((error: unknown) => {
        onFailed?.(layer.tier.name, error)
        throw error
      })
      if (!bytes) return undefined
      if (deletes === before) fillBefore(layer, cid, bytes)
      return layer.hit(bytes)
    })
  }

  /** Copies a block to the tiers that are asked before the one that has it. */
  function fillBefore(found: Layer, cid: CID, bytes: Uint8Array): void {
    putInMemory(fast, cid, bytes)
    for (const layer of filled) {
      if (all.indexOf(layer) >= all.indexOf(found)) return
      void layer.writeBehind.put(cid, bytes)
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

  async function lookAgain(cid: CID, signal: AbortSignal, onFailed?: OnFailed): Promise<TierHit | undefined> {
    signal.throwIfAborted()
    const begun = lookUp(cid, true, onFailed).join()
    return orAborted(signal, begun.found).finally(() => begun.leave())
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
    /** True if an earlier tier never evicts the block. */
    let isKept = false
    const writes: Promise<readonly TierFailure[]>[] = []
    for (const layer of slow) {
      const { tier, writeBehind } = layer
      const { keeps, readOnly, shared } = tier.traits
      if (keeps && !isKept)
        isKept = await tier.has(cid, signal).catch((error: unknown) => {
          signal?.throwIfAborted()
          layer.outage(error)
          return false
        })
      if (readOnly) continue
      if (shared) writes.push(acknowledged(layer, cid, own))
      else if (!isKept) void writeBehind.put(cid, own)
    }
    const failed = await orAborted(signal, Promise.all(writes))
    return { failed: failed.flat() }
  }

  /** Resolves when the shared tier has it, failed, or is no longer worth waiting for. */
  async function acknowledged(layer: SlowLayer, cid: CID, bytes: Uint8Array): Promise<readonly TierFailure[]> {
    const { name: tier } = layer.tier
    const late = Promise.withResolvers<never>()
    const said = `tier ${tier} timed out: it takes longer than it is waited for`
    const onSoftTimeout = () => late.reject(new Failure('timeout', said, { source: 'tier' }))
    try {
      await Promise.race([layer.writeBehind.write(cid, bytes, { onSoftTimeout }), late.promise])
      return []
    } catch (error) {
      return [{ tier, failure: layer.outage(error) }]
    }
  }

  async function bring(name: string, cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    const layer = slow.find(({ tier }) => tier.traits.shared && tier.name === name)
    if (!layer) throw new Failure('unavailable', `there is no shared tier ${name}`, { source: 'tier' })
    try {
      await orAborted(signal, layer.writeBehind.write(cid, new Uint8Array(bytes)))
    } catch (error) {
      signal.throwIfAborted()
      throw layer.outage(error)
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

  async function probeAll(signal?: AbortSignal): Promise<readonly TierFailure[]> {
    const probes = all.map(async (layer) => {
      try {
        await layer.tier.probe?.(signal)
        return []
      } catch (error) {
        signal?.throwIfAborted()
        return [{ tier: layer.tier.name, failure: layer.outage(error) }]
      }
    })
    return (await Promise.all(probes)).flat()
  }

  async function shut(): Promise<void> {
    await Promise.all(own.map((layer) => layer.close()))
    for (const one of lookups.values()) one.abort(cancelled('the gateway is closing'))
    lookups.clear()
    await Promise.all(own.map(({ tier }) => tier.close()))
  }

  return {
    name: 'tiers',
    traits: {
      persistent: all.some(({ tier }) => tier.traits.persistent),
      shared: all.some(({ tier }) => tier.traits.shared),
      trusted: true,
    },
    ...{ near: inProcess, peek, hasNow, look, lookAgain, find, keep, store, bring, probeAll },
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
    stats() {
      return all.map(({ name, writeBehind, hits, misses, outages, corrupt }) => ({
        ...{ tier: name, hits, misses, outages, corrupt },
        ...(writeBehind?.stats ?? { written: 0, dropped: 0, failed: 0, queued: 0, queuedBytes: 0 }),
      }))
    },
    close() {
      closing ??= shut()
      return closing
    },
  }
}

const missed = (layers: readonly Layer[]): void => {
  for (const layer of layers) layer.misses++
}

function putInMemory(layers: Iterable<Layer>, cid: CID, bytes: Uint8Array): void {
  for (const { tier } of layers) tier.putNow?.(cid, bytes)
}

/**
 * A block that is all of its buffer never changes (`Tier`); a caller may write over a part of one.
 */
const owned = (bytes: Uint8Array): Uint8Array =>
  bytes.byteLength === bytes.buffer.byteLength ? bytes : new Uint8Array(bytes)

/** Undefined: the tier has nothing. */
type TierCall = (layer: SlowLayer, signal: AbortSignal, call: Call) => Promise<TierHit | undefined>

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
  readonly #layers: readonly SlowLayer[]
  readonly #call: TierCall
  readonly #own = new AbortController()
  readonly #found = Promise.withResolvers<TierHit | undefined>()
  readonly #overdue = Promise.withResolvers<void>()
  readonly #here = Promise.withResolvers<void>()
  /** Those without an answer, and whether each is late. */
  readonly #open = new Map<SlowLayer, boolean>()
  #hasFailed = false
  #readers = 0
  #next = 0
  #isOver = false

  constructor(layers: readonly SlowLayer[], call: TierCall) {
    this.#layers = layers
    this.#call = call
    this.found = this.#found.promise
    this.overdue = this.#overdue.promise
    this.here = this.#here.promise
    this.found.catch(() => {})
    this.#askNext()
    this.#noteHere()
  }

  /** True if each tier that was asked so far has answered. */
  get haveAnswered(): boolean {
    return !this.#hasFailed && this.#open.size === 0
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

  #askNext(): void {
    if (this.#isOver) return
    const layer = this.#layers[this.#next++]
    if (layer) void this.#ask(layer)
    else if (this.#open.size === 0) this.#end(() => this.#found.resolve(undefined), elsewhere)
    else if ([...this.#open.values()].every((isLate) => isLate)) this.#overdue.resolve()
  }

  #noteHere(): void {
    const rest = [...this.#open.keys(), ...this.#layers.slice(this.#next)]
    if (rest.every(({ tier }) => tier.traits.shared)) this.#here.resolve()
  }

  async #ask(layer: SlowLayer): Promise<void> {
    const { signal } = this.#own
    const onSoftTimeout = () => {
      if (this.#open.get(layer) !== false) return
      this.#open.set(layer, true)
      this.#askNext()
    }
    this.#open.set(layer, false)
    let answer: TierHit | undefined
    try {
      answer = await this.#call(layer, signal, { onSoftTimeout })
      if (answer === undefined) layer.misses++
    } catch (error) {
      this.#hasFailed = true
      if (!signal.aborted) layer.outage(error)
    }
    const wasLate = this.#open.get(layer)
    this.#open.delete(layer)
    if (answer !== undefined) return this.#end(() => this.#found.resolve(answer), elsewhere)
    this.#noteHere()
    // After a late tier the next one was asked already; only the last answer of all ends it.
    if (!wasLate || this.#next >= this.#layers.length) this.#askNext()
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
