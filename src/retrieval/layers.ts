// The tiers of a stack with what is counted of each. For whoever asks through here there are hits and misses only: a tier
// that fails, or is late, is counted as an outage and is a miss.
import type { CID } from 'multiformats/cid'
import type { Call, Tier } from '../../backends/tiers/contract.ts'
import { blockKey } from '../block.ts'
import type { Clock } from '../clock.ts'
import { Failure, isFailure } from '../failure.ts'
import type { Log } from '../observe/log.ts'
import { createFiller, type Filler } from './filler.ts'

export type Found = { readonly bytes: Uint8Array; readonly tier: string }

export type Layer = {
  readonly tier: Tier
  /** Undefined for memory, which is written to directly. */
  readonly filler: Filler | undefined
  hits: number
  misses: number
  outages: number
}
export type SlowLayer = Layer & { readonly filler: Filler }

export interface Layers {
  readonly all: readonly Layer[]
  readonly fast: readonly Layer[]
  readonly slow: readonly SlowLayer[]
  /** Asks one of them. Rejects only with the reason of `signal`. */
  ask<T>(
    layer: Layer,
    signal: AbortSignal | undefined,
    question: (call: Call) => Promise<T>,
    call?: Call,
  ): Promise<T | undefined>
  hit(layer: Layer, bytes: Uint8Array): Found
  outage(layer: Layer, error: unknown): Failure
}

export type LayersOptions = {
  readonly clock: Clock
  readonly log: Log
  /** A tier could not be asked, or was late; called for each time. */
  readonly onOutage?: ((tier: string, failure: Failure) => void) | undefined
  /** For each slow tier: what may wait to be written there. */
  readonly fillBytes?: number | undefined
}

const sharedRewriteMs = 1000
// A disk slower than a stream of new blocks slows that stream down a little instead of losing parts of it: what was read
// once is to be there when every upstream is gone. A shared tier holds up nobody: it gets the rest from the disk, later.
const localWaitMs = 500

export function createLayers(tiers: readonly Tier[], { clock, log, onOutage, fillBytes }: LayersOptions): Layers {
  const all: readonly Layer[] = tiers.map((tier) => ({
    tier,
    filler: fillerFor(tier),
    hits: 0,
    misses: 0,
    outages: 0,
  }))

  function fillerFor(tier: Tier): Filler | undefined {
    const { persistent, shared } = tier.traits
    if (!persistent && !shared) return undefined
    return createFiller({
      tier,
      clock,
      ...(fillBytes === undefined ? {} : { maxBytes: fillBytes }),
      ...(shared ? { rewriteMs: sharedRewriteMs, reread: readHere } : { waitMs: localWaitMs }),
    })
  }

  /** What memory or this machine's disk has of it. */
  async function readHere(cid: CID): Promise<Uint8Array | undefined> {
    for (const { tier, filler } of all) {
      if (tier.traits.shared) continue
      const bytes = filler?.waiting(blockKey(cid)) ?? (await tier.get(cid).catch(() => undefined))
      if (bytes) return bytes
    }
    return undefined
  }

  function outage(layer: Layer, error: unknown): Failure {
    const failure = isFailure(error) ? error : unexpected(layer.tier.name, error)
    if (failure.kind === 'internal') log('error', 'tier.unexpected', { tier: layer.tier.name, error: String(error) })
    layer.outages++
    onOutage?.(layer.tier.name, failure)
    return failure
  }

  return {
    all,
    fast: all.filter(({ filler }) => !filler),
    slow: all.filter((layer): layer is SlowLayer => layer.filler !== undefined),
    async ask(layer, signal, question, call) {
      let isCounted = false
      const count = (error: unknown) => {
        if (!isCounted) outage(layer, error)
        isCounted = true
      }
      const overdue = () => {
        count(late(layer.tier.name))
        call?.overdue?.()
      }
      try {
        const answer = await question({ ...call, overdue })
        if (answer === undefined && !isCounted) layer.misses++
        return answer
      } catch (error) {
        if (signal?.aborted) throw error
        count(error)
        return undefined
      }
    },
    hit(layer, bytes) {
      layer.hits++
      return { bytes, tier: layer.tier.name }
    },
    outage,
  }
}

export const late = (name: string): Failure =>
  new Failure('timeout', `tier ${name} takes longer than it is waited for`, { source: 'tier' })

const unexpected = (name: string, cause: unknown): Failure =>
  new Failure('internal', `tier ${name} failed in a way it should not`, { source: 'ours', cause })
