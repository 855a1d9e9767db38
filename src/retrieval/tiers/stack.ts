// The tiers as one: fastest first, and itself a tier. A block found in a slow one is brought to those before it; a new one
// is in memory at once and in the slow ones soon, behind the request. A tier that fails is passed over: for a reader of
// the stack there are hits and misses only.
import type { CID } from 'multiformats/cid'
import type { Tier } from '../../../backends/tiers/contract.ts'
import { blockKey } from '../../core/block.ts'
import { type Clock, systemClock } from '../../core/clock.ts'
import { orAborted } from '../../core/deadline.ts'
import { Failure } from '../../core/failure.ts'
import { type Log, silentLog } from '../../core/log.ts'
import type { InTurn } from './in-turn.ts'
import type { Layer } from './layer.ts'
import { createLayers, late, type SlowLayer, type TierHit } from './layers.ts'
import { createLooks, type Look } from './looks.ts'
import type { FillStats } from './write-behind.ts'

export type { TierHit } from './layers.ts'
export type { Look } from './looks.ts'
export type TierFailure = { readonly tier: string; readonly failure: Failure }

export type TierStats = FillStats & {
  readonly tier: string
  readonly hits: number
  readonly misses: number
  /** It could not be asked, or not in time. */
  readonly outages: number
}

export type TierStack = Tier & {
  /** Looks into memory only. Rejects only with the reason of `signal`. */
  findFast(cid: CID, signal?: AbortSignal): Promise<TierHit | undefined>
  /** A look into the slow tiers, shared by all readers of the block meanwhile. A reader that takes it must `leave` it. */
  look(cid: CID): Look
  /** Memory, then a look for as long as it is worth waiting. Rejects only with the reason of `signal`. */
  find(cid: CID, signal?: AbortSignal): Promise<TierHit | undefined>
  /** When no upstream has it: asks the slow tiers once more; `beyond`: also those that failed lately. */
  findPatiently(cid: CID, patience: 'whole' | 'beyond', signal: AbortSignal): Promise<TierHit | undefined>
  /** How often a tier could not be asked, or not in time. */
  readonly outages: number
  /**
   * For an upload: resolves when memory and every shared tier has it, naming the shared tiers that failed or take longer
   * than is worth waiting for. The others get it behind, but for those after a tier of this machine that keeps it for good.
   * Rejects only with the reason of `signal`.
   */
  store(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<{ readonly failed: readonly TierFailure[] }>
  /** Those that other instances see too. */
  readonly shared: readonly string[]
  /** For what one of them lacks: resolves when it has the block, and rejects as it does. */
  bring(tier: string, cid: CID, bytes: Uint8Array, signal: AbortSignal): Promise<void>
  /** Looks at every tier once; those that are of no use are named, and passed over from then on. */
  probeAll(signal?: AbortSignal): Promise<readonly TierFailure[]>
  stats(): readonly TierStats[]
}

export type TierStackOptions = {
  readonly clock?: Clock
  readonly log?: Log
  /** A tier could not be asked, or was late; called for each time. */
  readonly onOutage?: ((tier: string, failure: Failure) => void) | undefined
  /** For each slow tier: what may wait to be written there. */
  readonly fillBytes?: number
  /** How long closing waits for what is still to be written. */
  readonly drainMs?: number
}

/** Closes tiers that were passed in. It does not close a layer that was passed in, which may be part of another stack. */
export function createTierStack(parts: readonly (Tier | Layer)[], options: TierStackOptions = {}): TierStack {
  const { clock = systemClock, log = silentLog, onOutage, fillBytes, drainMs } = options
  const layers = createLayers(parts, { clock, log, onOutage, fillBytes })
  const { all, fast, slow, ask, hit, outage } = layers
  const tiers = all.map(({ tier }) => tier)
  const looks = createLooks(layers, log)
  let deletes = 0
  let closing: Promise<void> | undefined

  async function findFast(cid: CID, signal?: AbortSignal): Promise<TierHit | undefined> {
    signal?.throwIfAborted()
    for (const layer of fast) {
      const bytes = await ask(layer, signal, () => layer.tier.get(cid, signal))
      if (bytes) return hit(layer, bytes)
    }
    const key = blockKey(cid)
    for (const layer of slow) {
      const bytes = layer.writeBehind.waiting(key)
      if (bytes) return hit(layer, bytes)
    }
    return undefined
  }

  async function find(cid: CID, signal?: AbortSignal): Promise<TierHit | undefined> {
    const near = await findFast(cid, signal)
    if (near || slow.length === 0) return near
    const look = looks.join(cid)
    try {
      return await worthWaiting(look, signal)
    } finally {
      look.leave()
    }
  }

  /** The answer, or undefined as soon as it is no longer worth waiting for. */
  async function worthWaiting<T>(
    { found, overdue }: InTurn<T>,
    signal: AbortSignal | undefined,
  ): Promise<T | undefined> {
    return orAborted(signal, Promise.race([found, overdue.then(() => undefined)]))
  }

  /** Puts into memory and answers the copy that may be kept: the caller's own buffer is theirs to change. */
  async function putFast(cid: CID, bytes: Uint8Array, signal: AbortSignal | undefined): Promise<Uint8Array> {
    for (const layer of fast) {
      const kept = await ask(layer, signal, async () => {
        await layer.tier.put(cid, bytes, signal)
        return (await layer.tier.get(cid, signal)) ?? false
      })
      if (kept && kept !== bytes) return kept
    }
    return new Uint8Array(bytes)
  }

  async function put(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted()
    const before = deletes
    const own = fast.length > 0 ? await putFast(cid, bytes, signal) : new Uint8Array(bytes)
    // Something was deleted in between; it may have been this.
    if (deletes !== before) return
    await orAborted(signal, Promise.all(slow.map(({ writeBehind }) => writeBehind.put(cid, own))))
  }

  /** A tier of this machine that has it for good. */
  async function keeperOf(cid: CID, signal: AbortSignal | undefined): Promise<SlowLayer | undefined> {
    for (const layer of slow)
      if (layer.tier.traits.keeps && (await ask(layer, signal, () => layer.tier.has(cid, signal)))) return layer
    return undefined
  }

  /** Until a shared tier has it, or that is no longer worth waiting for. */
  function offer(layer: SlowLayer, cid: CID, bytes: Uint8Array): Promise<Failure | undefined> {
    return new Promise((resolve) => {
      let isOver = false
      const fail = (error: unknown) => {
        if (!isOver) resolve(outage(layer, error))
        isOver = true
      }
      const work = layer.writeBehind.write(cid, bytes, { overdue: () => fail(late(layer.tier.name)) })
      work.then(() => resolve(undefined), fail)
    })
  }

  async function store(cid: CID, bytes: Uint8Array, signal?: AbortSignal) {
    signal?.throwIfAborted()
    const own = await putFast(cid, bytes, signal)
    const failed: TierFailure[] = []
    const keeper = await keeperOf(cid, signal)
    const writes = slow.map(async (layer) => {
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
      throw outage(layer, error)
    }
  }

  async function has(cid: CID, signal?: AbortSignal): Promise<boolean> {
    signal?.throwIfAborted()
    const key = blockKey(cid)
    if (slow.some(({ writeBehind }) => writeBehind.waiting(key))) return true
    for (const layer of fast) if (await ask(layer, signal, () => layer.tier.has(cid, signal))) return true
    const stop = new AbortController()
    try {
      return (await worthWaiting(looks.has(cid, stop.signal), signal)) ?? false
    } finally {
      stop.abort()
    }
  }

  async function remove(cid: CID, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted()
    deletes++
    // A look under way has read it and must not bring it back.
    looks.forget(cid)
    const work = all.map(({ writeBehind, tier }) => writeBehind?.delete(cid, signal) ?? tier.delete(cid, signal))
    const failures = (await Promise.allSettled(work)).filter((result) => result.status === 'rejected')
    signal?.throwIfAborted()
    if (failures[0]) throw failures[0].reason
  }

  async function probeAll(signal?: AbortSignal): Promise<readonly TierFailure[]> {
    const failures = await Promise.all(
      all.map(async (layer): Promise<TierFailure | undefined> => {
        try {
          await layer.tier.probe?.(signal)
          return undefined
        } catch (error) {
          signal?.throwIfAborted()
          return { tier: layer.tier.name, failure: outage(layer, error) }
        }
      }),
    )
    return failures.filter((failure) => failure !== undefined)
  }

  async function shut(): Promise<void> {
    await layers.drain(drainMs)
    looks.close()
    await layers.close()
  }

  return {
    name: 'tiers',
    traits: {
      persistent: tiers.some(({ traits }) => traits.persistent),
      shared: tiers.some(({ traits }) => traits.shared),
      trusted: tiers.every(({ traits }) => traits.trusted),
    },
    findFast,
    look: (cid) => looks.join(cid),
    find,
    findPatiently: (cid, patience, signal) => looks.alone(cid, signal, patience === 'beyond'),
    get outages() {
      return all.reduce((sum, layer) => sum + layer.outages, 0)
    },
    get: async (cid, signal) => (await find(cid, signal))?.bytes,
    put,
    store,
    shared: slow.flatMap(({ tier }) => (tier.traits.shared ? [tier.name] : [])),
    bring,
    has,
    delete: remove,
    async probe(signal) {
      const [first] = await probeAll(signal)
      if (first) throw first.failure
    },
    probeAll,
    stats() {
      return all.map(({ tier, writeBehind, hits, misses, outages }) => ({
        tier: tier.name,
        hits,
        misses,
        outages,
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
