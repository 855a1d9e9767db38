// Looks into the slow tiers: one for all who want a block at the same time. What is found fills the tiers before it.
import type { CID } from 'multiformats/cid'
import type { Call } from '../../../backends/tiers/contract.ts'
import { blockKey } from '../../core/block.ts'
import { createFlights } from '../../core/flights.ts'
import type { Log } from '../../core/log.ts'
import { askInTurn, type InTurn } from './in-turn.ts'
import type { Layer, Layers, SlowLayer, TierHit } from './layers.ts'

export interface Look {
  /**
   * Undefined: no slow tier has it, or none could be asked. Rejects only when all readers left, or the stack was
   * closed.
   */
  readonly found: Promise<TierHit | undefined>
  /** Resolves as soon as it is worth asking an upstream too. The look goes on. */
  readonly overdue: Promise<void>
  /** Resolves when no tier of this machine has it, or could say so. They may be slow because we are busy. */
  readonly here: Promise<void>
  /** Whether each tier that it asked so far said whether it has it: none failed, and none that was late still owes its answer. */
  haveAnswered(): boolean
  leave(): void
}

export interface Looks {
  join(cid: CID): Look
  /** A look that is not shared, and also asks tiers that failed lately. `failed`: called for each tier that could not say. */
  alone(cid: CID, signal: AbortSignal, failed?: TierFailed): Promise<TierHit | undefined>
  /** Whether a slow tier has it, as far as they say so soon. */
  has(cid: CID, signal: AbortSignal): InTurn<true>
  /** The block was deleted: a running look fills no tier with it, and later readers begin a new look. */
  forget(cid: CID): void
  close(): void
}

export type TierFailed = (tier: string, error: unknown) => void

type Looking = Omit<Look, 'leave'>
/** `isStale`: it was deleted meanwhile. */
type SharedLook = { readonly looking: Looking; isStale: boolean }

export function createLooks({ all, slow, ask, hit }: Layers, log: Log): Looks {
  const flights = createFlights<SharedLook>()
  let deletes = 0

  /** Fills every tier that is asked before this one. A failed fill is counted there; no reader waits for it. */
  function fillBefore(found: Layer, cid: CID, bytes: Uint8Array): void {
    const onError = (error: unknown) => log('debug', 'tier.write-failed', { error: String(error) })
    for (const { writeBehind, tier } of all.slice(0, all.indexOf(found)))
      if (!tier.traits.readOnly) (writeBehind ? writeBehind.put(cid, bytes) : tier.put(cid, bytes)).catch(onError)
  }

  /** A tier that surely lacks it, as far as it knows, is asked last: its look at the disk would be in the way of each block. */
  function likelyFirst(cid: CID): readonly SlowLayer[] {
    const lacking = slow.filter(({ tier }) => tier.lacks?.(cid))
    return lacking.length === 0 ? slow : [...slow.filter((layer) => !lacking.includes(layer)), ...lacking]
  }

  type How = { readonly isStale: () => boolean; readonly anyway: boolean; readonly failed?: TierFailed | undefined }

  function begin(cid: CID, signal: AbortSignal, { isStale, anyway, failed }: How): Looking {
    const here = Promise.withResolvers<void>()
    let left = slow.filter(isHere).length
    const over = (layer: Layer): undefined => {
      if (isHere(layer) && --left === 0) here.resolve()
    }
    const owing = new Set<Layer>()
    const asked = likelyFirst(cid).map((layer) => async (own: AbortSignal, call: Call) => {
      const get = async (told: Call): Promise<Uint8Array | undefined> => {
        try {
          const answer = await layer.tier.get(cid, own, told)
          owing.delete(layer)
          return answer
        } catch (error) {
          owing.add(layer)
          failed?.(layer.tier.name, error)
          throw error
        }
      }
      const overdue = (isWell = false): void => {
        if (!isWell) owing.add(layer)
        call.overdue?.(isWell)
      }
      const bytes = await ask(layer, own, get, { ...call, overdue, anyway })
      if (!bytes) return over(layer)
      if (!isStale()) fillBefore(layer, cid, bytes)
      return hit(layer, bytes)
    })
    if (left === 0) here.resolve()
    return { ...askInTurn(asked, signal), here: here.promise, haveAnswered: () => owing.size === 0 }
  }

  return {
    join(cid) {
      const key = blockKey(cid)
      const flight = flights.join(key, (signal) => {
        const shared: SharedLook = {
          looking: begin(cid, signal, { isStale: () => shared.isStale, anyway: false }),
          isStale: false,
        }
        const land = () => flights.land(key, shared)
        shared.looking.found.then(land, land)
        return shared
      })
      return { ...flight.work.looking, leave: () => flight.leave() }
    },
    alone(cid, signal, failed) {
      const before = deletes
      return begin(cid, signal, { isStale: () => deletes !== before, anyway: true, failed }).found
    },
    has(cid, signal) {
      const asked = slow.map(
        (layer) => async (own: AbortSignal, call: Call) =>
          (await ask(layer, own, (told) => layer.tier.has(cid, own, told), call)) || undefined,
      )
      return askInTurn(asked, signal)
    },
    forget(cid) {
      deletes++
      const key = blockKey(cid)
      const running = flights.peek(key)
      if (!running) return
      running.isStale = true
      flights.land(key, running)
    },
    close: () => flights.close(),
  }
}

const isHere = ({ tier }: Layer): boolean => !tier.traits.shared
