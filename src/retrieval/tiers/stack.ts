// The tiers as one: fastest first, and itself a tier. A block found in a slow one is brought to those before it; a new one
// is in memory at once and in the slow ones soon, behind the request. A tier that fails is passed over: for a reader of
// the stack there are hits and misses only.
import type { CID } from 'multiformats/cid'
import type { Tier } from '../../../backends/tiers/contract.ts'
import { type Clock, systemClock } from '../../core/clock.ts'
import { orAborted } from '../../core/deadline.ts'
import type { AtHandOptions } from '../../core/disk/at-hand.ts'
import type { Failure } from '../../core/failure.ts'
import { type Log, silentLog } from '../../core/log.ts'
import type { FillStats } from './filling/write-behind.ts'
import { createFinding, type Found, type HitAtHand } from './finding.ts'
import type { Layer } from './layer.ts'
import { createLayers, type TierHit } from './layers.ts'
import { createLooks, type Look, type TierFailed } from './looks.ts'
import { createStoring, type TierFailure } from './storing.ts'

export type { HitAtHand } from './finding.ts'
export type { TierHit } from './layers.ts'
export type { Look } from './looks.ts'
export type { TierFailure } from './storing.ts'

export type TierStats = FillStats & {
  readonly tier: string
  readonly hits: number
  readonly misses: number
  /** How often the tier could not be asked, or not in time. */
  readonly outages: number
}

export type TierStack = Omit<Tier, 'atHand'> & {
  /** Looks where it costs no wait: in memory, in what waits to be written, in files that are in the page cache. */
  atHand(cid: CID, options?: AtHandOptions): HitAtHand | undefined
  /** Looks into memory only, at once where all of it can be peeked into. Fails only with the reason of `signal`. */
  findFast(cid: CID, signal?: AbortSignal): Found
  /** Whether each slow tier surely lacks it, known without a look. Then this counts as a miss of each. */
  slowLack(cid: CID): boolean
  /** Whether a tier of this machine surely has it, known at once. Counts nothing. */
  surelyHas(cid: CID): boolean
  /**
   * A look into the slow tiers, shared by all readers of the block meanwhile. A reader that takes it must `leave` it.
   */
  look(cid: CID): Look
  /** Memory, then a look for as long as it is worth waiting. Rejects only with the reason of `signal`. */
  find(cid: CID, signal?: AbortSignal): Promise<TierHit | undefined>
  /**
   * When no upstream has it: asks the slow tiers once more, also those that failed lately, and waits for all of them. `failed`:
   * called for each that could not say whether it has it.
   */
  findPatiently(cid: CID, signal: AbortSignal, failed?: TierFailed): Promise<TierHit | undefined>
  /** Whether a tier that is only read has it, which are the pins and uploads on this machine. Rejects where one cannot be asked. */
  isPinned(cid: CID, signal: AbortSignal): Promise<boolean>
  /**
   * For an upload: resolves when memory and every shared tier has it, naming the shared tiers that failed or take longer
   * than is worth waiting for. The others get it behind, but for those after a tier of this machine that keeps it for good.
   * Rejects only with the reason of `signal`.
   */
  store(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<{ readonly failed: readonly TierFailure[] }>
  /** The tiers that other instances see too. */
  readonly shared: readonly string[]
  /** For a block that a shared tier lacks: resolves when it has the block, and rejects as it does. */
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

/**
 * Closes tiers that were passed in. It does not close a layer that was passed in, which may be part of another stack.
 */
export function createTierStack(parts: readonly (Tier | Layer)[], options: TierStackOptions = {}): TierStack {
  const { clock = systemClock, log = silentLog, onOutage, fillBytes, drainMs } = options
  const layers = createLayers(parts, { clock, log, onOutage, fillBytes })
  const { all, slow, filled, outage } = layers
  const tiers = all.map(({ tier }) => tier)
  const looks = createLooks(layers, log)
  const finding = createFinding(layers, looks)
  const storing = createStoring(layers)
  let deletes = 0
  let closing: Promise<void> | undefined

  async function put(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted()
    const before = deletes
    const isWanted = () => deletes === before
    const own = await storing.putNear(cid, bytes, isWanted, signal)
    // Something was deleted in between; it may have been this.
    if (!isWanted() || filled.length === 0) return
    await orAborted(signal, Promise.all(filled.map(({ writeBehind }) => writeBehind.put(cid, own))))
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
    atHand: finding.atHand,
    findFast: finding.findFast,
    slowLack: finding.slowLack,
    surelyHas: finding.surelyHas,
    look: (cid) => looks.join(cid),
    find: finding.find,
    findPatiently: looks.alone,
    async isPinned(cid, signal) {
      for (const tier of tiers)
        if (tier.traits.readOnly && !tier.lacks?.(cid) && (await tier.has(cid, signal))) return true
      return false
    },
    get: async (cid, signal) => (await finding.find(cid, signal))?.bytes,
    put,
    store: storing.store,
    shared: slow.flatMap(({ tier }) => (tier.traits.shared ? [tier.name] : [])),
    bring: storing.bring,
    has: finding.has,
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
