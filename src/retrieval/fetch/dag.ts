// Fetches a whole entity as CAR answers of upstreams, block by block, each proved before any reader gets it. It pulls only
// while a reader waits for a block, so a reader that stops reading stops the upstreams.
//
// Progress decides. One upstream is asked; when it fails, or falls behind its usual pace and what another one could bring
// (hedging.ts), the next is asked for the missing blocks, from where the slowest waiting reader stands. A proved block counts
// from any upstream; an upstream that the others have left behind is dropped (runners.ts).
import type { CID } from 'multiformats/cid'
import type { DagWant } from '../../../backends/upstreams/contract.ts'
import type { Block } from '../../core/block.ts'
import type { Clock } from '../../core/clock.ts'
import type { Trace } from '../../core/wire/trace.ts'
import type { GiveWay } from '../../ipld/documents/read.ts'
import { Attempts, type Wanting } from '../upstreams/attempts.ts'
import type { Pool } from '../upstreams/pool.ts'
import { lookAgainMs, Tries } from '../upstreams/tries.ts'
import { createAsking } from './dag/asking.ts'
import { createDagBlocks } from './dag/blocks.ts'
import { createDemand } from './dag/demand.ts'
import { createHedgeTimer } from './dag/hedge-timer.ts'
import { createProgress } from './progress.ts'
import { type Arrival, createReaders } from './readers.ts'
import { createRunners } from './runners.ts'

export interface DagFlight {
  /** Waits until this block comes by. Rejects with that outcome when no upstream could even begin. */
  wait(cid: CID, around: DagWant, signal: AbortSignal): Promise<Arrival>
  /** Pulls everything, without a reader (for a background search). */
  drain(): Promise<void>
  readonly attempts: Attempts
  readonly over: boolean
  /** Whether a block that arrived links to this one, which has not arrived yet. */
  expects(cid: CID): boolean
}

export type DagFlightDeps = {
  readonly pool: Pool
  readonly clock: Clock
  readonly asker?: Wanting | undefined
  readonly trace?: Trace | undefined
  readonly keep: (cid: CID, bytes: Uint8Array) => void | Promise<void>
  /** Between blocks, and between the pieces of a document or of a large node. */
  readonly giveWay?: GiveWay
  /** Called when nothing more will come from this flight. */
  readonly onOver: () => void
}

// A search after a 404 fetches at most this much: the beginning of a huge file, all of any other.
const mostDrainedBytes = 256 * 1024 * 1024

export function flyForDag(want: DagWant, signal: AbortSignal, deps: DagFlightDeps): DagFlight {
  const { pool, clock, keep } = deps
  const attempts = new Attempts(clock, deps.asker, deps.trace)
  const progress = createProgress(clock)
  const tries = new Tries(clock, clock.monotonic() + pool.patienceMs)
  const blocks = createDagBlocks(deps.giveWay)
  const ended = Promise.withResolvers<void>()
  ended.promise.catch(() => {})
  /** No upstream brings anything, and no other could: readers ask for their blocks one by one meanwhile. */
  let isStuck = false
  let failure: unknown
  blocks.expect(want.cid)

  const readers = createReaders(() => demand.note())
  const demand = createDemand({ readers, progress, onUnwanted: () => hedgeTimer.stop() })
  const runners = createRunners({
    attempts,
    progress,
    tries,
    signal,
    isExpected: ({ cid }) => blocks.isExpected(cid),
    isWanted: () => demand.isWanted,
    take,
    onEnd(how) {
      if (signal.aborted) finish(signal.reason)
      // While another one moves, the pace decides whether that one is enough.
      else if (how === 'failed' && (runners.size === 0 || blocks.size === 0)) goOn()
      // An answer that ended cleanly lacked the blocks that readers still wait for; another one may bring them.
      else if (how === 'ended' && (runners.size === 0 || readers.size === 0)) finish()
    },
  })

  const asking = createAsking({
    ...{ want, pool, attempts, tries, blocks, readers, runners },
    root: deps.asker?.root ?? want.cid,
    onNews: wake,
  })
  const hedgeTimer = createHedgeTimer({
    ...{ clock, pool, progress, readers, runners, asking, blocks, demand },
    onIdle: wake,
    onStuck: beStuck,
  })

  async function take(block: Block, { upstream }: { upstream: { name: string } }): Promise<boolean> {
    const { cid, bytes } = block
    const isNew = blocks.add(block)
    // Also for a block that came by before: the next one of this sender may be what it links to. And a piece from a socket may have a
    // thousand blocks.
    for (const pause of [blocks.reading, deps.giveWay?.()]) if (pause !== undefined) await demand.during(() => pause)
    if (!isNew) return false
    progress.came(bytes.byteLength)
    isStuck = false
    const kept = keep(cid, bytes)
    if (kept !== undefined) await demand.during(() => kept)
    blocks.kept(cid)
    readers.arrived(cid, { bytes, upstream: upstream.name })
    if (readers.size === 0 && blocks.bytes > mostDrainedBytes) finish()
    return true
  }

  /** Starts the next upstream at once, first and after a failure. The flight ends when none can be asked in time. */
  function goOn(): void {
    const next = asking.goOn()
    if (next === 'later') hedgeTimer.lookIn(lookAgainMs)
    else if (next !== 'asked') finish(next === 'over' ? undefined : next)
  }

  /** Tells waiting readers to ask for their blocks one by one: an upstream without CAR may have them. */
  function beStuck(): void {
    if (blocks.size === 0 || demand.isDraining) return
    if (!asking.hasOtherForBlocks()) return
    isStuck = true
    readers.settleAll('not-here')
  }

  function finish(error?: unknown): void {
    if (demand.isOver) return
    demand.end()
    failure = error
    hedgeTimer.stop()
    runners.release()
    deps.onOver()
    if (error === undefined || blocks.size > 0) readers.settleAll('not-here')
    else readers.failAll(error)
    progress.setWaiting(false)
    if (error === undefined) ended.resolve()
    else ended.reject(error)
  }

  function wake(): void {
    if (demand.isOver) return
    demand.note()
    if (runners.size === 0) goOn()
    else runners.wake()
    hedgeTimer.begin()
  }

  signal.addEventListener('abort', () => finish(signal.reason), { once: true })

  return {
    attempts,
    get over() {
      return demand.isOver
    },
    expects: (cid) => !demand.isOver && blocks.isExpected(cid) && !blocks.wentBy(cid),
    async wait(cid, around, own) {
      if (blocks.wentBy(cid)) return 'went-by'
      if (demand.isOver) {
        if (failure === undefined || blocks.size > 0) return 'not-here'
        throw failure
      }
      if (isStuck && asking.candidates().steps.length === 0) return 'not-here'
      isStuck = false
      const arrival = readers.wait(cid, around, own)
      wake()
      return arrival
    },
    async drain() {
      demand.drain()
      if (!demand.isOver) wake()
      else if (failure !== undefined) throw failure
      return ended.promise
    },
  }
}
