// One tier in a stack: what is on its way to it, and what is counted of it. It may outlive the
// stack and go over to the next.
import type { CID } from 'multiformats/cid'
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import { blockKey } from '../../core/block.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { createWriteBehind, type QueuedBlock, type WriteBehind } from './write-behind.ts'

type LayerOptions = {
  readonly clock: Clock
  /** What may wait to be written there. */
  readonly fillBytes?: number | undefined
  /**
   * All of this machine that a block can be read from, where there was no room to keep it while it
   * waits.
   */
  readonly here: () => Iterable<Layer>
}

/** A tier that is waited for, and written to behind the readers. */
export type SlowLayer = Layer & { readonly writeBehind: WriteBehind }

const defaultDrainMs = 5000
const sharedRewriteMs = 1000
// A disk slower than a stream of new blocks slows the stream down a little instead of losing
// blocks: content read once should be there when every upstream is down. A shared tier delays no
// reader: it gets the rest from the disk later.
const localWaitMs = 500

export class Layer {
  readonly tier: Tier
  /** Undefined for memory, which is written to directly. */
  readonly writeBehind: WriteBehind | undefined
  hits = 0
  misses = 0
  outages = 0
  readonly #here: () => Iterable<Layer>

  constructor(tier: Tier, { clock, fillBytes, here }: LayerOptions) {
    this.tier = tier
    this.#here = here
    this.writeBehind = tier.peek
      ? undefined
      : createWriteBehind({
          tier,
          clock,
          ...(fillBytes === undefined ? {} : { maxBytes: fillBytes }),
          ...(tier.traits.shared
            ? { rewriteMs: sharedRewriteMs, reread: (cid) => this.#reread(cid) }
            : { waitMs: localWaitMs, onFailed: (block) => this.#keepInMemory(block) }),
        })
  }

  /**
   * Asks it, and counts what became of that. Undefined: it has nothing, or could not say. Rejects
   * only with the reason of `signal`.
   */
  async ask<T>(
    signal: AbortSignal | undefined,
    log: Log,
    question: (call: Call) => Promise<T>,
    call?: Call,
  ): Promise<T | undefined> {
    let isCounted = false
    const count = (error: unknown) => {
      if (!isCounted) this.outage(error, log)
      isCounted = true
    }
    const overdue = (isWell = false) => {
      if (!isWell) count(late(this.tier.name))
      call?.overdue?.(isWell)
    }
    try {
      const answer = await question({ ...call, overdue })
      if (answer === undefined && !isCounted) this.misses++
      return answer
    } catch (error) {
      if (signal?.aborted) throw error
      count(error)
      return undefined
    }
  }

  outage(error: unknown, log: Log): Failure {
    const failure = isFailure(error) ? error : unexpected(this.tier.name, error)
    if (failure.kind === 'internal') log('error', 'tier.error', { tier: this.tier.name, error: String(error) })
    this.outages++
    return failure
  }

  /**
   * Writes what waits for the tier, as long as that does not take longer than `drainMs`. The tier
   * stays open.
   */
  async close(drainMs = defaultDrainMs): Promise<void> {
    await this.writeBehind?.close(drainMs)
  }

  #keepInMemory({ cid, bytes }: QueuedBlock): void {
    if (!bytes) return
    for (const { tier } of this.#here()) if (tier.peek) tier.put(cid, bytes).catch(() => {})
  }

  async #reread(cid: CID): Promise<Uint8Array | undefined> {
    for (const { tier, writeBehind } of this.#here()) {
      if (tier.traits.shared) continue
      const bytes = writeBehind?.waiting(blockKey(cid)) ?? (await tier.get(cid).catch(() => undefined))
      if (bytes) return bytes
    }
    return undefined
  }
}

export const late = (name: string): Failure =>
  new Failure('timeout', `tier ${name} timed out: it takes longer than it is waited for`, { source: 'tier' })

const unexpected = (name: string, cause: unknown): Failure =>
  new Failure('internal', `tier ${name}: internal error; the log has it as tier.error`, { source: 'ours', cause })
