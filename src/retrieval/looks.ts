// Looks into the slow tiers: one for all who want a block at the same time. What is found fills the tiers before it.
import type { CID } from 'multiformats/cid'
import type { Call } from '../../backends/tiers/contract.ts'
import { blockKey } from '../block.ts'
import type { Log } from '../observe/log.ts'
import { createFlights } from './flights.ts'
import { askInTurn, type InTurn } from './in-turn.ts'
import type { Found, Layer, Layers } from './layers.ts'

export interface Look {
  /** Undefined: no slow tier has it, or none could be asked. Rejects only when everybody left, or the stack was closed. */
  readonly found: Promise<Found | undefined>
  /** Resolves as soon as it is worth asking somebody else too. The look goes on. */
  readonly overdue: Promise<void>
  leave(): void
}

export interface Looks {
  join(cid: CID): Look
  /** With nobody else, `anyway`: those too that failed lately. */
  alone(cid: CID, signal: AbortSignal, anyway: boolean): InTurn<Found>
  /** Whether a slow tier has it, as far as they say so soon. */
  has(cid: CID, signal: AbortSignal): InTurn<true>
  /** It was deleted: what is being read now fills nothing, and whoever looks from now on looks anew. */
  forget(cid: CID): void
  close(): void
}

/** `isStale`: it was deleted meanwhile. */
type Looking = { readonly inTurn: InTurn<Found>; isStale: boolean }

export function createLooks({ all, slow, ask, hit }: Layers, log: Log): Looks {
  const flights = createFlights<Looking>()
  let deletes = 0

  /** Into every tier that is asked before this one. A fill that fails is counted where it fails; nobody waits for it. */
  function fillBefore(found: Layer, cid: CID, bytes: Uint8Array): void {
    const onError = (error: unknown) => log('debug', 'tier.fill', { error: String(error) })
    for (const { filler, tier } of all.slice(0, all.indexOf(found)))
      (filler ? filler.put(cid, bytes) : tier.put(cid, bytes)).catch(onError)
  }

  function begin(cid: CID, signal: AbortSignal, isStale: () => boolean, anyway: boolean): InTurn<Found> {
    const asked = slow.map((layer) => async (own: AbortSignal, call: Call) => {
      const bytes = await ask(layer, own, (told) => layer.tier.get(cid, own, told), { ...call, anyway })
      if (!bytes) return undefined
      if (!isStale()) fillBefore(layer, cid, bytes)
      return hit(layer, bytes)
    })
    return askInTurn(asked, signal)
  }

  return {
    join(cid) {
      const key = blockKey(cid)
      const flight = flights.join(key, (signal) => {
        const looking: Looking = { inTurn: begin(cid, signal, () => looking.isStale, false), isStale: false }
        const land = () => flights.land(key, looking)
        looking.inTurn.found.then(land, land)
        return looking
      })
      const { inTurn } = flight.work
      return { ...inTurn, leave: () => flight.leave() }
    },
    alone(cid, signal, anyway) {
      const before = deletes
      return begin(cid, signal, () => deletes !== before, anyway)
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
