// The tiers as one: fastest first, and itself a tier. A block found in a slow one is brought to those before it; a new one
// is in memory at once and in the slow ones soon, behind the request. A tier that fails is passed over: for a reader of
// the stack there are hits and misses only.
import type { CID } from 'multiformats/cid'
import type { Patience, Tier } from '../../backends/tiers/contract.ts'
import { blockKey } from '../block.ts'
import { type Clock, systemClock } from '../clock.ts'
import { orAborted } from '../deadline.ts'
import { Failure, isFailure } from '../failure.ts'
import { type Log, silentLog } from '../observe/log.ts'
import { createFiller, type Filler, type FillStats } from './filler.ts'
import { createFlights } from './flights.ts'

export type Found = { readonly bytes: Uint8Array; readonly tier: string }
export type TierFailure = { readonly tier: string; readonly failure: Failure }

export type TierStats = FillStats & {
  readonly tier: string
  readonly hits: number
  readonly misses: number
  /** It could not be asked, or did not answer. */
  readonly outages: number
}

export type TierStack = Tier & {
  /** The first hit in order. Rejects only with the reason of `signal`. */
  find(cid: CID, signal?: AbortSignal): Promise<Found | undefined>
  /** For when nobody else has it: the slow tiers once more. */
  findPatiently(cid: CID, patience: Patience, signal?: AbortSignal): Promise<Found | undefined>
  /** How often a tier could not be asked, or not in time. */
  readonly outages: number
  /**
   * For an upload: resolves when memory and every shared tier has it, naming the shared tiers that failed; the
   * others get it behind, but for those after a tier of this machine that keeps it for good. Rejects only with the reason of `signal`.
   */
  store(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<{ readonly failed: readonly TierFailure[] }>
  /** Looks at every tier once; those that are of no use are named, and passed over from then on. */
  probeAll(signal?: AbortSignal): Promise<readonly TierFailure[]>
  stats(): readonly TierStats[]
}

export type TierStackOptions = {
  readonly clock?: Clock
  readonly log?: Log
  /** A tier could not be asked; called for each time. */
  readonly onOutage?: ((tier: string, failure: Failure) => void) | undefined
  /** For each slow tier: what may wait to be written there. */
  readonly fillBytes?: number
  /** How long closing waits for what is still to be written. */
  readonly drainMs?: number
}

type Layer = {
  readonly tier: Tier
  /** Undefined for memory, which is written to directly. */
  readonly filler: Filler | undefined
  hits: number
  misses: number
  outages: number
}

/** A look into the slow tiers, shared by all who want the block. `stale`: it was deleted meanwhile, so it fills nothing. */
type Look = { readonly found: Promise<Found | undefined>; stale: boolean }

const usualDrainMs = 5000
const sharedRewriteMs = 1000
// A tier slower than a stream of new blocks slows that stream down a little instead of losing parts of it: what was read
// once is to be there when every upstream is gone. A remote one may hold up each block for less: it can be very slow.
const localWaitMs = 500
const sharedWaitMs = 150

export function createTierStack(tiers: readonly Tier[], options: TierStackOptions = {}): TierStack {
  const { clock = systemClock, log = silentLog, onOutage, fillBytes, drainMs = usualDrainMs } = options
  const layers: readonly Layer[] = tiers.map((tier) => ({
    tier,
    filler: fillerFor(tier),
    hits: 0,
    misses: 0,
    outages: 0,
  }))
  const fast = layers.filter(({ filler }) => !filler)
  const slow = layers.filter((layer): layer is Layer & { readonly filler: Filler } => layer.filler !== undefined)
  const looks = createFlights<Look>()
  let deletes = 0
  let closing: Promise<void> | undefined

  function fillerFor(tier: Tier): Filler | undefined {
    const { persistent, shared } = tier.traits
    if (!persistent && !shared) return undefined
    return createFiller({
      tier,
      clock,
      ...(fillBytes === undefined ? {} : { maxBytes: fillBytes }),
      ...(shared ? { rewriteMs: sharedRewriteMs, waitMs: sharedWaitMs } : { waitMs: localWaitMs }),
    })
  }

  function outage(layer: Layer, error: unknown): Failure {
    const failure = isFailure(error) ? error : unexpected(layer.tier.name, error)
    if (failure.kind === 'internal') log('error', 'tier.unexpected', { tier: layer.tier.name, error: String(error) })
    layer.outages++
    onOutage?.(layer.tier.name, failure)
    return failure
  }

  /** Asks one tier; a failure of its own is a miss here. */
  async function ask<T>(
    layer: Layer,
    signal: AbortSignal | undefined,
    question: () => Promise<T>,
  ): Promise<T | undefined> {
    try {
      return await question()
    } catch (error) {
      if (signal?.aborted) throw error
      outage(layer, error)
      return undefined
    }
  }

  function hit(layer: Layer, bytes: Uint8Array): Found {
    layer.hits++
    return { bytes, tier: layer.tier.name }
  }

  async function findFast(cid: CID, signal: AbortSignal | undefined): Promise<Found | undefined> {
    for (const layer of fast) {
      const bytes = await ask(layer, signal, () => layer.tier.get(cid, signal))
      if (bytes) return hit(layer, bytes)
      layer.misses++
    }
    return undefined
  }

  async function findSlow(
    cid: CID,
    signal: AbortSignal | undefined,
    look: () => Pick<Look, 'stale'>,
    patience: Patience = 'usual',
  ): Promise<Found | undefined> {
    for (const layer of slow) {
      const before = layer.outages
      const read = () => layer.tier.get(cid, signal, patience)
      const bytes = layer.filler.waiting(blockKey(cid)) ?? (await ask(layer, signal, read))
      if (bytes) {
        if (!look().stale) fillBefore(layer, cid, bytes)
        return hit(layer, bytes)
      }
      if (layer.outages === before) layer.misses++
    }
    return undefined
  }

  /** Into every tier that is asked before this one. */
  function fillBefore(found: Layer, cid: CID, bytes: Uint8Array): void {
    for (const layer of layers.slice(0, layers.indexOf(found))) {
      if (layer.filler) behind(layer.filler.put(cid, bytes))
      else behind(layer.tier.put(cid, bytes))
    }
  }

  /** A fill that fails is counted where it fails; nobody waits for it. */
  function behind(work: Promise<void>): void {
    work.catch((error: unknown) => log('debug', 'tier.fill', { error: String(error) }))
  }

  function joinLook(cid: CID) {
    const key = blockKey(cid)
    return looks.join(key, (signal) => {
      // The first step is taken after `look` is there.
      const found = Promise.resolve().then(() => findSlow(cid, signal, () => look))
      const look: Look = { found, stale: false }
      const land = () => looks.land(key, look)
      found.then(land, land)
      return look
    })
  }

  async function find(cid: CID, signal?: AbortSignal): Promise<Found | undefined> {
    signal?.throwIfAborted()
    const near = await findFast(cid, signal)
    if (near || slow.length === 0) return near
    const flight = joinLook(cid)
    try {
      return await orAborted(signal, flight.work.found)
    } finally {
      flight.leave()
    }
  }

  /** Puts into memory and answers the copy that may be kept: the caller's own buffer is theirs to change. */
  async function putFast(cid: CID, bytes: Uint8Array, signal: AbortSignal | undefined): Promise<Uint8Array> {
    for (const layer of fast) {
      await ask(layer, signal, () => layer.tier.put(cid, bytes, signal))
      const kept = await ask(layer, signal, () => layer.tier.get(cid, signal))
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
    await orAborted(signal, Promise.all(slow.map(({ filler }) => filler.put(cid, own))))
  }

  /** A tier of this machine that has it for good. */
  async function keeperOf(cid: CID, signal: AbortSignal | undefined): Promise<(typeof slow)[number] | undefined> {
    for (const layer of slow)
      if (layer.tier.traits.keeps && (await ask(layer, signal, () => layer.tier.has(cid, signal)))) return layer
    return undefined
  }

  async function store(cid: CID, bytes: Uint8Array, signal?: AbortSignal) {
    signal?.throwIfAborted()
    const own = await putFast(cid, bytes, signal)
    const failed: TierFailure[] = []
    const keeper = await keeperOf(cid, signal)
    const writes = slow.map(async (layer) => {
      const { filler, tier } = layer
      const isSpared = keeper !== undefined && slow.indexOf(keeper) < slow.indexOf(layer)
      if (!tier.traits.shared) return isSpared ? undefined : filler.put(cid, own)
      try {
        await filler.write(cid, own, signal)
      } catch (error) {
        if (signal?.aborted) throw error
        failed.push({ tier: tier.name, failure: outage(layer, error) })
      }
    })
    await orAborted(signal, Promise.all(writes))
    return { failed }
  }

  async function remove(cid: CID, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted()
    deletes++
    const key = blockKey(cid)
    // A look under way has read it and must not bring it back; whoever looks from now on looks anew.
    const running = looks.peek(key)
    if (running) {
      running.stale = true
      looks.land(key, running)
    }
    const work = layers.map(({ filler, tier }) => filler?.delete(cid, signal) ?? tier.delete(cid, signal))
    const failures = (await Promise.allSettled(work)).filter((result) => result.status === 'rejected')
    signal?.throwIfAborted()
    if (failures[0]) throw failures[0].reason
  }

  async function probeAll(signal?: AbortSignal): Promise<readonly TierFailure[]> {
    const failures = await Promise.all(
      layers.map(async (layer): Promise<TierFailure | undefined> => {
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

  return {
    name: 'tiers',
    traits: {
      persistent: tiers.some(({ traits }) => traits.persistent),
      shared: tiers.some(({ traits }) => traits.shared),
      trusted: tiers.every(({ traits }) => traits.trusted),
    },
    find,
    findPatiently(cid, patience, signal) {
      const before = deletes
      return findSlow(cid, signal, () => ({ stale: deletes !== before }), patience)
    },
    get outages() {
      return layers.reduce((sum, layer) => sum + layer.outages, 0)
    },
    get: async (cid, signal) => (await find(cid, signal))?.bytes,
    put,
    store,
    async has(cid, signal) {
      signal?.throwIfAborted()
      for (const layer of layers) {
        if (layer.filler?.waiting(blockKey(cid))) return true
        if (await ask(layer, signal, () => layer.tier.has(cid, signal))) return true
      }
      return false
    },
    delete: remove,
    async probe(signal) {
      const [first] = await probeAll(signal)
      if (first) throw first.failure
    },
    probeAll,
    stats() {
      return layers.map(({ tier, filler, hits, misses, outages }) => ({
        tier: tier.name,
        hits,
        misses,
        outages,
        ...(filler?.stats ?? noFills),
      }))
    },
    close() {
      closing ??= shut()
      return closing
    },
  }

  async function shut(): Promise<void> {
    await Promise.all(slow.map(({ filler }) => filler.close(drainMs)))
    looks.close()
    await Promise.all(layers.map(({ tier }) => tier.close()))
  }
}

const noFills: FillStats = { written: 0, dropped: 0, failed: 0, queued: 0, queuedBytes: 0 }

const unexpected = (name: string, cause: unknown): Failure =>
  new Failure('internal', `tier ${name} failed in a way it should not`, { source: 'ours', cause })
