// One tier in a stack: what is on its way to it, and what is counted of it. It may outlive the stack and go over to the next.
import type { CID } from 'multiformats/cid'
import type { Tier } from '../../../backends/tiers/contract.ts'
import { blockKey } from '../../core/block.ts'
import type { Clock } from '../../core/clock.ts'
import type { QueuedBlock } from './filling/queue.ts'
import { createWriteBehind, type WriteBehind } from './filling/write-behind.ts'

export type Layer = {
  readonly tier: Tier
  /** Undefined for memory, which is written to directly. */
  readonly writeBehind: WriteBehind | undefined
  hits: number
  misses: number
  outages: number
  /** Writes what waits for the tier, as long as that does not take longer than `drainMs`. The tier stays open. */
  close(drainMs?: number): Promise<void>
}

export type LayerOptions = {
  readonly clock: Clock
  /** What may wait to be written there. */
  readonly fillBytes?: number | undefined
  /** All of this machine that a block can be read from, where there was no room to keep it while it waits. */
  readonly here: () => Iterable<Layer>
}

const usualDrainMs = 5000
const sharedRewriteMs = 1000
const sharedAtOnce = 16
// A disk slower than a stream of new blocks slows the stream down a little instead of losing blocks: content read once should
// be there when every upstream is down. A shared tier delays no reader: it gets the rest from the disk later.
const localWaitMs = 500

export function createLayer(tier: Tier, { clock, fillBytes, here }: LayerOptions): Layer {
  const writeBehind = isSlow(tier) ? writeBehindFor() : undefined

  function writeBehindFor(): WriteBehind {
    return createWriteBehind({
      tier,
      clock,
      ...(fillBytes === undefined ? {} : { maxBytes: fillBytes }),
      ...(tier.traits.shared
        ? { atOnce: sharedAtOnce, rewriteMs: sharedRewriteMs, reread: readHere }
        : { waitMs: localWaitMs, onFailed: bringToMemory }),
    })
  }

  function bringToMemory({ cid, bytes }: QueuedBlock): void {
    if (!bytes) return
    for (const near of here()) if (!near.writeBehind) near.tier.put(cid, bytes).catch(() => near.outages++)
  }

  async function readHere(cid: CID): Promise<Uint8Array | undefined> {
    for (const { tier: near, writeBehind: waiting } of here()) {
      if (near.traits.shared) continue
      const bytes = waiting?.waiting(blockKey(cid)) ?? (await near.get(cid).catch(() => undefined))
      if (bytes) return bytes
    }
    return undefined
  }

  return {
    tier,
    writeBehind,
    hits: 0,
    misses: 0,
    outages: 0,
    async close(drainMs = usualDrainMs) {
      await writeBehind?.close(drainMs)
    },
  }
}

const isSlow = ({ traits }: Tier): boolean => traits.persistent || traits.shared
