// The tiers of a stack with their counters. Callers see only hits and misses: a tier that fails or is late counts as an
// outage and gives a miss.
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { WriteBehind } from './filling/write-behind.ts'
import { createLayer, type Layer } from './layer.ts'

export type TierHit = { readonly bytes: Uint8Array; readonly tier: string }

export type { Layer } from './layer.ts'
export type SlowLayer = Layer & { readonly writeBehind: WriteBehind }

export interface Layers {
  readonly all: readonly Layer[]
  readonly fast: readonly Layer[]
  readonly slow: readonly SlowLayer[]
  /** The slow ones that new blocks are brought to. */
  readonly filled: readonly SlowLayer[]
  /** Asks one of them. Rejects only with the reason of `signal`. */
  ask<T>(
    layer: Layer,
    signal: AbortSignal | undefined,
    question: (call: Call) => Promise<T>,
    call?: Call,
  ): Promise<T | undefined>
  hit(layer: Layer, bytes: Uint8Array): TierHit
  outage(layer: Layer, error: unknown): Failure
  /** Writes what waits for them, as long as that does not take longer than `ms`. */
  drain(ms?: number): Promise<void>
  close(): Promise<void>
}

export type LayersOptions = {
  readonly clock: Clock
  readonly log: Log
  /** A tier could not be asked, or was late; called for each time. */
  readonly onOutage?: ((tier: string, failure: Failure) => void) | undefined
  /** For each slow tier: what may wait to be written there. */
  readonly fillBytes?: number | undefined
}

/**
 * Closes tiers that were passed in. It does not close a layer that was passed in, which may be part of another stack.
 */
export function createLayers(
  parts: readonly (Tier | Layer)[],
  { clock, log, onOutage, fillBytes }: LayersOptions,
): Layers {
  const all: readonly Layer[] = parts.map((part) =>
    isLayer(part) ? part : createLayer(part, { clock, fillBytes, here: () => all }),
  )
  const own = all.filter((_layer, index) => !isLayer(parts[index]))

  function outage(layer: Layer, error: unknown): Failure {
    const failure = isFailure(error) ? error : unexpected(layer.tier.name, error)
    if (failure.kind === 'internal') log('error', 'tier.error', { tier: layer.tier.name, error: String(error) })
    layer.outages++
    onOutage?.(layer.tier.name, failure)
    return failure
  }

  const slow = all.filter((layer): layer is SlowLayer => layer.writeBehind !== undefined)
  return {
    all,
    fast: all.filter(({ writeBehind }) => !writeBehind),
    slow,
    filled: slow.filter(({ tier }) => !tier.traits.readOnly),
    async ask(layer, signal, question, call) {
      let isCounted = false
      const count = (error: unknown) => {
        if (!isCounted) outage(layer, error)
        isCounted = true
      }
      const overdue = (isWell = false) => {
        if (!isWell) count(late(layer.tier.name))
        call?.overdue?.(isWell)
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
    drain: async (ms) => void (await Promise.all(own.map((layer) => layer.close(ms)))),
    close: async () => void (await Promise.all(own.map(({ tier }) => tier.close()))),
  }
}

const isLayer = (part: Tier | Layer | undefined): part is Layer => part !== undefined && 'writeBehind' in part

export const late = (name: string): Failure =>
  new Failure('timeout', `tier ${name} timed out: it takes longer than it is waited for`, { source: 'tier' })

const unexpected = (name: string, cause: unknown): Failure =>
  new Failure('internal', `tier ${name}: internal error; the log has it as tier.error`, { source: 'ours', cause })
