// The tiers as one: fastest first, and itself a tier. A block found in a slow one is brought to
// those before it; a new one is in memory at once and in the slow ones soon, behind the request. A
// tier that fails is passed over: for a reader of the stack there are hits and misses only.
import type { CID } from 'multiformats/cid'
import type { Tier } from '../../../backends/tiers/contract.ts'
import { blockKey, isIdentity } from '../../core/block.ts'
import { codec } from '../../core/cid.ts'
import { type Clock, systemClock } from '../../core/clock.ts'
import { orAborted } from '../../core/deadline.ts'
import { type AtHand, type AtHandOptions, partOf } from '../../core/disk/at-hand.ts'
import { cancelled, Failure } from '../../core/failure.ts'
import { type Log, silentLog } from '../../core/log.ts'
import { Layer, late, type SlowLayer } from './layer.ts'
import { Look } from './look.ts'
import type { FillStats } from './write-behind.ts'

export type TierHit = { readonly bytes: Uint8Array; readonly tier: string }
/** A block, or a part of it, that was had at once. */
type HitAtHand = AtHand & { readonly tier: string; readonly isMemory: boolean }
export type TierFailure = { readonly tier: string; readonly failure: Failure }
/** Who takes it leaves it, once. */
export type TierLook = Pick<Look<TierHit>, 'found' | 'overdue' | 'here' | 'haveAnswered' | 'leave'>
type TierFailed = (tier: string, error: unknown) => void

export type TierStats = FillStats & {
  readonly tier: string
  readonly hits: number
  readonly misses: number
  /** How often the tier could not be asked, or not in time. */
  readonly outages: number
}

export type TierStack = Omit<Tier, 'atHand' | 'peek'> & {
  /**
   * Looks into this process only: memory, and what waits to be written. Counts a hit, and no miss.
   */
  near(cid: CID): TierHit | undefined
  /**
   * The same, and in files that are in the page cache. Undefined: it may be in a tier all the same.
   */
  atHand(cid: CID, options?: AtHandOptions): HitAtHand | undefined
  /**
   * Whether no tier has it, as far as is known without asking. Then this counts as a miss of each.
   */
  lacks(cid: CID): boolean
  /** Whether a tier of this machine surely has it, known at once. Counts nothing. */
  holds(cid: CID): boolean
  /** Asks the slow tiers, once for all who want the block. */
  look(cid: CID): TierLook
  /**
   * Asks the slow tiers once more, also those that failed lately, and waits for all of them.
   * `failed`: called for each that could not say whether it has it. Rejects only with the reason of
   * `signal`.
   */
  lookAgain(cid: CID, signal: AbortSignal, failed?: TierFailed): Promise<TierHit | undefined>
  /** `get`, with the tier it came from. Waits for as long as it is worth it. */
  find(cid: CID, signal?: AbortSignal): Promise<TierHit | undefined>
  /**
   * Whether a tier that is only read has it, which are the pins and uploads on this machine.
   * Rejects where one cannot be asked.
   */
  isPinned(cid: CID, signal: AbortSignal): Promise<boolean>
  /**
   * Puts a block that came for a reader. A promise: there is no room for it to wait, and its reader
   * waits a little.
   */
  keep(cid: CID, bytes: Uint8Array): void | Promise<void>
  /**
   * For an upload: resolves when memory and every shared tier has it, naming the shared tiers that
   * failed or take longer than is worth waiting for. The others get it behind, but for those after
   * a tier of this machine that keeps it for good. Rejects only with the reason of `signal`.
   */
  store(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<{ readonly failed: readonly TierFailure[] }>
  /** The tiers that other instances see too. */
  readonly shared: readonly string[]
  /**
   * For a block that a shared tier lacks: resolves when it has the block, and rejects as it does.
   */
  bring(tier: string, cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<void>
  /** Looks at every tier once; those that are of no use are named, and passed over from then on. */
  probeAll(signal?: AbortSignal): Promise<readonly TierFailure[]>
  stats(): readonly TierStats[]
}

type TierStackOptions = {
  readonly clock?: Clock
  readonly log?: Log
  /** For each slow tier: what may wait to be written there. */
  readonly fillBytes?: number
  /** How long closing waits for what is still to be written. */
  readonly drainMs?: number
}

/**
 * Leaves of this size are pieces of files that stream by: in memory they would push everything else
 * out, and from a disk of this machine they are read again for little more than their hash.
 */
export const largeLeafBytes = 256 * 1024

/**
 * A block that is all of its buffer never changes (`Tier`); a part of one is the caller's to write
 * over.
 */
const keepable = (bytes: Uint8Array): Uint8Array =>
  bytes.byteLength === bytes.buffer.byteLength ? bytes : new Uint8Array(bytes)

/**
 * Closes tiers that were passed in. It does not close a layer that was passed in, which may be part
 * of another stack.
 */
export function createTierStack(parts: readonly (Tier | Layer)[], options: TierStackOptions = {}): TierStack {
  const { clock = systemClock, log = silentLog, fillBytes, drainMs } = options
  const all: readonly Layer[] = parts.map((part) =>
    part instanceof Layer ? part : new Layer(part, { clock, fillBytes, here: () => all }),
  )
  const own = all.filter((_layer, index) => !(parts[index] instanceof Layer))
  const fast = all.filter(({ writeBehind }) => !writeBehind)
  const slow = all.filter((layer): layer is SlowLayer => layer.writeBehind !== undefined)
  /** Those that new blocks are brought to. */
  const filled = slow.filter(({ tier }) => !tier.traits.readOnly)
  const looks = new Map<string, Look<TierHit>>()
  let deletes = 0
  let closing: Promise<void> | undefined

  // At once.

  const hit = (layer: Layer, bytes: Uint8Array): TierHit => {
    layer.hits++
    return { bytes, tier: layer.tier.name }
  }

  function inProcess(cid: CID): [Layer, Uint8Array] | undefined {
    for (const layer of fast) {
      const bytes = layer.tier.peek?.(cid)
      if (bytes) return [layer, bytes]
    }
    const key = filled.length > 0 ? blockKey(cid) : ''
    for (const layer of filled) {
      const bytes = layer.writeBehind.waiting(key)
      if (bytes) return [layer, bytes]
    }
    return undefined
  }

  function near(cid: CID): TierHit | undefined {
    const held = inProcess(cid)
    return held && hit(...held)
  }

  function atHand(cid: CID, options?: AtHandOptions): HitAtHand | undefined {
    const held = inProcess(cid)
    if (held) {
      const [layer, bytes] = held
      layer.hits++
      return { ...partOf(bytes, options?.part), tier: layer.tier.name, isMemory: !layer.writeBehind }
    }
    for (const layer of slow) {
      const one = layer.tier.atHand?.(cid, options)
      if (!one) continue
      missed(fast)
      // What links to other blocks is read by each reader of them. A leaf is at hand for a hash of
      // it, and has no need of memory.
      if (cid.code !== codec.raw && !options?.part) remember(cid, one.bytes)
      layer.hits++
      return { ...one, tier: layer.tier.name, isMemory: false }
    }
    return undefined
  }

  const missed = (layers: readonly Layer[]): void => {
    for (const layer of layers) layer.misses++
  }

  function lacks(cid: CID): boolean {
    if (!slow.every(({ tier }) => tier.lacks?.(cid))) return false
    missed(all)
    return true
  }

  const holds = (cid: CID): boolean =>
    isIdentity(cid) || inProcess(cid) !== undefined || slow.some(({ tier }) => tier.holds?.(cid))

  // By asking the slow ones.

  /**
   * A tier that surely lacks it, as far as it knows, is asked last: its look at the disk would be
   * in the way of each block.
   */
  function likelyFirst(cid: CID): readonly SlowLayer[] {
    const lacking = slow.filter(({ tier }) => tier.lacks?.(cid))
    return lacking.length === 0 ? slow : [...slow.filter((layer) => !lacking.includes(layer)), ...lacking]
  }

  /**
   * Fills every tier that is asked before the one that has it. A failed fill is counted there; no
   * reader waits for it.
   */
  function fillBefore(found: Layer, cid: CID, bytes: Uint8Array): void {
    for (const layer of all.slice(0, all.indexOf(found))) {
      if (!layer.writeBehind) putInto(layer, cid, bytes)
      else if (!layer.tier.traits.readOnly) void layer.writeBehind.put(cid, bytes)
    }
  }

  function lookFor(cid: CID, isStale: () => boolean, anyway: boolean, failed?: TierFailed): Look<TierHit> {
    return new Look(likelyFirst(cid), log, async (layer, signal, call) => {
      const get = layer.tier.get(cid, signal, { ...call, anyway })
      const bytes = await (failed ? get.catch((error: unknown) => toldOf(layer, error, failed)) : get)
      if (!bytes) return undefined
      if (!isStale()) fillBefore(layer, cid, bytes)
      return hit(layer, bytes)
    })
  }

  function toldOf({ tier }: Layer, error: unknown, failed: TierFailed): never {
    failed(tier.name, error)
    throw error
  }

  function look(cid: CID): TierLook {
    const key = blockKey(cid)
    missed(fast)
    const running = looks.get(key)
    if (running) return running.join()
    const before = deletes
    const begun = lookFor(cid, () => deletes !== before, false)
    const over = () => {
      if (looks.get(key) === begun) looks.delete(key)
    }
    looks.set(key, begun)
    begun.found.then(over, over)
    return begun.join()
  }

  async function lookAgain(cid: CID, signal: AbortSignal, failed?: TierFailed): Promise<TierHit | undefined> {
    signal.throwIfAborted()
    const before = deletes
    const begun = lookFor(cid, () => deletes !== before, true, failed).join()
    return orAborted(signal, begun.found).finally(() => begun.leave())
  }

  const whileWorthIt = <T>({ found, overdue }: Pick<Look<T>, 'found' | 'overdue'>): Promise<T | undefined> =>
    Promise.race([found, overdue.then(() => undefined)])

  async function find(cid: CID, signal?: AbortSignal): Promise<TierHit | undefined> {
    signal?.throwIfAborted()
    const held = near(cid)
    if (held) return held
    const begun = look(cid)
    return orAborted(signal, whileWorthIt(begun)).finally(() => begun.leave())
  }

  async function has(cid: CID, signal?: AbortSignal): Promise<boolean> {
    signal?.throwIfAborted()
    if (inProcess(cid)) return true
    const asked = new Look<true>(
      slow,
      log,
      async ({ tier }, own, call) => (await tier.has(cid, own, call)) || undefined,
    )
    asked.join()
    return (await orAborted(signal, whileWorthIt(asked)).finally(() => asked.leave())) ?? false
  }

  // What comes in.

  /** Memory takes it in this very turn. */
  function putInto(layer: Layer, cid: CID, bytes: Uint8Array): void {
    layer.tier.put(cid, bytes).catch((error: unknown) => layer.outage(error, log))
  }

  function remember(cid: CID, bytes: Uint8Array): void {
    for (const layer of fast) putInto(layer, cid, bytes)
  }

  function keep(cid: CID, bytes: Uint8Array): void | Promise<void> {
    const own = keepable(bytes)
    const isLarge = cid.code === codec.raw && bytes.byteLength >= largeLeafBytes
    if (!isLarge) remember(cid, own)
    let waits: Promise<void>[] | undefined
    for (const { writeBehind } of filled) {
      const wait = writeBehind.put(cid, own)
      if (wait) (waits ??= []).push(wait)
    }
    if (!isLarge) return waits && Promise.all(waits).then(() => {})
    const before = deletes
    // There it can be read while it waits. A write that fails brings it to memory (`Layer`).
    const onDisk = () =>
      filled.some(({ tier, writeBehind }) => !tier.traits.shared && writeBehind.waiting(blockKey(cid)))
    const otherwise = () => {
      if (deletes === before && !onDisk()) remember(cid, own)
    }
    return waits ? Promise.all(waits).then(otherwise) : otherwise()
  }

  /** A tier of this machine that has it for good. */
  async function keeperOf(cid: CID, signal: AbortSignal | undefined): Promise<SlowLayer | undefined> {
    for (const layer of slow)
      if (layer.tier.traits.keeps && (await layer.ask(signal, log, () => layer.tier.has(cid, signal)))) return layer
    return undefined
  }

  /** Until a shared tier has it, or that is no longer worth waiting for. */
  function offer(layer: SlowLayer, cid: CID, bytes: Uint8Array): Promise<Failure | undefined> {
    return new Promise((resolve) => {
      let isOver = false
      const fail = (error: unknown) => {
        if (!isOver) resolve(layer.outage(error, log))
        isOver = true
      }
      const work = layer.writeBehind.write(cid, bytes, { overdue: () => fail(late(layer.tier.name)) })
      work.then(() => resolve(undefined), fail)
    })
  }

  async function store(cid: CID, bytes: Uint8Array, signal?: AbortSignal) {
    signal?.throwIfAborted()
    const own = keepable(bytes)
    remember(cid, own)
    const failed: TierFailure[] = []
    const keeper = await keeperOf(cid, signal)
    const writes = filled.map(async (layer) => {
      const { writeBehind, tier } = layer
      const isSpared = keeper !== undefined && slow.indexOf(keeper) < slow.indexOf(layer)
      if (!tier.traits.shared) return isSpared ? undefined : writeBehind.put(cid, own)
      const failure = await offer(layer, cid, own)
      if (failure) failed.push({ tier: tier.name, failure })
    })
    await orAborted(signal, Promise.all(writes))
    return { failed }
  }

  async function bring(name: string, cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    const layer = slow.find(({ tier }) => tier.traits.shared && tier.name === name)
    if (!layer) throw new Failure('unavailable', `there is no shared tier ${name}`, { source: 'tier' })
    try {
      await orAborted(signal, layer.writeBehind.write(cid, new Uint8Array(bytes)))
    } catch (error) {
      signal.throwIfAborted()
      throw layer.outage(error, log)
    }
  }

  async function remove(cid: CID, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted()
    deletes++
    // A look under way has read it and must not bring it back: later readers begin another one.
    looks.delete(blockKey(cid))
    const work = all.map(({ writeBehind, tier }) => writeBehind?.delete(cid, signal) ?? tier.delete(cid, signal))
    const failures = (await Promise.allSettled(work)).filter((result) => result.status === 'rejected')
    signal?.throwIfAborted()
    if (failures[0]) throw failures[0].reason
  }

  // All of them.

  async function probeAll(signal?: AbortSignal): Promise<readonly TierFailure[]> {
    const failures = await Promise.all(
      all.map(async (layer): Promise<TierFailure | undefined> => {
        try {
          await layer.tier.probe?.(signal)
          return undefined
        } catch (error) {
          signal?.throwIfAborted()
          return { tier: layer.tier.name, failure: layer.outage(error, log) }
        }
      }),
    )
    return failures.filter((failure) => failure !== undefined)
  }

  async function shut(): Promise<void> {
    await Promise.all(own.map((layer) => layer.close(drainMs)))
    for (const one of looks.values()) one.abort(cancelled('the gateway is closing'))
    looks.clear()
    await Promise.all(own.map(({ tier }) => tier.close()))
  }

  return {
    name: 'tiers',
    traits: {
      persistent: all.some(({ tier }) => tier.traits.persistent),
      shared: all.some(({ tier }) => tier.traits.shared),
      trusted: all.every(({ tier }) => tier.traits.trusted),
    },
    ...{ near, atHand, lacks, holds, look, lookAgain, find, has, keep, store, bring, probeAll },
    async isPinned(cid, signal) {
      for (const { tier } of slow)
        if (tier.traits.readOnly && !tier.lacks?.(cid) && (await tier.has(cid, signal))) return true
      return false
    },
    get: async (cid, signal) => (await find(cid, signal))?.bytes,
    async put(cid, bytes, signal) {
      signal?.throwIfAborted()
      await orAborted(signal, Promise.resolve(keep(cid, bytes)))
    },
    shared: slow.flatMap(({ tier }) => (tier.traits.shared ? [tier.name] : [])),
    delete: remove,
    async probe(signal) {
      const [first] = await probeAll(signal)
      if (first) throw first.failure
    },
    stats() {
      return all.map(({ tier, writeBehind, hits, misses, outages }) => ({
        ...{ tier: tier.name, hits, misses, outages },
        ...(writeBehind?.stats ?? noFills),
      }))
    },
    close() {
      closing ??= shut()
      return closing
    },
  }
}

const noFills: FillStats = { written: 0, dropped: 0, failed: 0, queued: 0, queuedBytes: 0 }
