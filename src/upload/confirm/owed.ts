// Brings uploads to a shared tier that did not take them before the 200, however long the tier is away. After a failure one
// upload tests whether the tier is back, then several go at once. The queue is bounded: providers hold every upload anyway.
import type { Block } from '../../core/block.ts'
import type { Clock } from '../../core/clock.ts'
import { isFailure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { Retrieval } from '../../retrieval/session.ts'
import { putBlocks } from './fill-tiers.ts'

export type Debt = {
  readonly cid: string
  /** Bytes kept on this disk only for this debt. */
  readonly bytes: number
  blocks(signal: AbortSignal): AsyncIterable<Block>
  /** Called when the tier has it, or will never get it. */
  readonly onOver: (tier: string) => void
}

export interface Owed {
  /** A debt that is added twice for one tier counts once. */
  add(id: string, tier: string, debt: Debt): void
  drop(id: string, tier: string): void
  /** Waiting uploads; one that two tiers lack counts twice. */
  readonly size: number
}

export type OwedOptions = {
  readonly retrieval: Pick<Retrieval, 'bring' | 'sharedTiers'>
  readonly clock: Clock
  readonly log: Log
  readonly random: () => number
  readonly closing: AbortSignal
  readonly track: <T>(work: Promise<T>) => Promise<T>
  /** Most uploads that may wait for one tier, and most of their bytes that are kept here only for it. */
  readonly most: number
  readonly mostBytes: number
}

type TierDebts = {
  readonly debts: Map<string, Debt>
  readonly bringing: Set<string>
  bytes: number
  /** Failures since the tier last took an upload. */
  failures: number
  /** While it rests: ends the timer. */
  wake: (() => void) | undefined
}

const atOnce = 4
const firstRestMs = 1000
const mostRestMs = 15_000

/** The blocks are missing or damaged where they were kept. */
class Lost extends Error {}

export function createOwed(options: OwedOptions): Owed {
  const { retrieval, clock, log, random, closing, track } = options
  const byTier = new Map<string, TierDebts>()

  closing.addEventListener('abort', () => {
    for (const { wake } of byTier.values()) wake?.()
  })

  function debtsOf(tier: string): TierDebts {
    const tierDebts = byTier.get(tier) ?? {
      debts: new Map(),
      bringing: new Set(),
      bytes: 0,
      failures: 0,
      wake: undefined,
    }
    byTier.set(tier, tierDebts)
    return tierDebts
  }

  function remove(tierDebts: TierDebts, id: string): Debt | undefined {
    const debt = tierDebts.debts.get(id)
    if (!debt) return undefined
    tierDebts.debts.delete(id)
    tierDebts.bytes -= debt.bytes
    return debt
  }

  function pump(tier: string, tierDebts: TierDebts): void {
    for (const [id, debt] of tierDebts.debts) {
      // After a failure one upload goes alone, as a test.
      if (closing.aborted || tierDebts.wake || tierDebts.bringing.size >= (tierDebts.failures > 0 ? 1 : atOnce)) return
      if (!tierDebts.bringing.has(id)) start(tier, tierDebts, id, debt)
    }
  }

  function start(tier: string, tierDebts: TierDebts, id: string, debt: Debt): void {
    tierDebts.bringing.add(id)
    const work = bring(tier, debt).then(
      () => {
        tierDebts.failures = 0
        remove(tierDebts, id)?.onOver(tier)
      },
      (error: unknown) => {
        if (!closing.aborted) failed(tier, tierDebts, id, error)
      },
    )
    void track(work).finally(() => {
      tierDebts.bringing.delete(id)
      pump(tier, tierDebts)
    })
  }

  async function bring(tier: string, { blocks }: Debt): Promise<void> {
    const read = async function* (signal: AbortSignal) {
      try {
        yield* blocks(signal)
      } catch (cause) {
        throw signal.aborted ? cause : new Lost(cause instanceof Error ? cause.message : String(cause), { cause })
      }
    }
    await putBlocks(read, (cid, bytes, signal) => retrieval.bring(tier, cid, bytes, signal), closing)
  }

  function failed(tier: string, tierDebts: TierDebts, id: string, error: unknown): void {
    if (error instanceof Lost) {
      const debt = remove(tierDebts, id)
      log('error', 'upload.tier-lost', { tier, cid: debt?.cid, why: error.message })
      return debt?.onOver(tier)
    }
    if (!retrieval.sharedTiers.includes(tier)) return giveUpAll(tier, tierDebts)
    // Those that were under way at once fail at once: that is one outage, and one rest.
    if (tierDebts.wake) return
    tierDebts.failures++
    const asked = isFailure(error) ? (error.retryAfterMs ?? 0) : 0
    const restMs = Math.max(asked, firstRestMs * 2 ** Math.min(10, tierDebts.failures - 1)) * (0.8 + 0.4 * random())
    tierDebts.wake = clock.after(Math.min(mostRestMs, restMs), () => {
      tierDebts.wake = undefined
      pump(tier, tierDebts)
    })
  }

  function giveUpAll(tier: string, tierDebts: TierDebts): void {
    log('warn', 'upload.tier-gone', { tier, uploads: tierDebts.debts.size })
    for (const id of [...tierDebts.debts.keys()]) remove(tierDebts, id)?.onOver(tier)
  }

  return {
    add(id, tier, debt) {
      const tierDebts = debtsOf(tier)
      if (tierDebts.debts.has(id)) return
      tierDebts.debts.set(id, debt)
      tierDebts.bytes += debt.bytes
      for (const [oldest, { cid }] of tierDebts.debts) {
        if (tierDebts.debts.size <= options.most && tierDebts.bytes <= options.mostBytes) break
        log('warn', 'upload.tier-given-up', { tier, cid })
        remove(tierDebts, oldest)?.onOver(tier)
      }
      pump(tier, tierDebts)
    },
    drop(id, tier) {
      const tierDebts = byTier.get(tier)
      if (tierDebts) remove(tierDebts, id)
    },
    get size() {
      return [...byTier.values()].reduce((sum, { debts }) => sum + debts.size, 0)
    },
  }
}
