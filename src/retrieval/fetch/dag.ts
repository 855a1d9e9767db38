// Fetches a whole entity as CAR answers of upstreams, block by block, each proved before any reader gets it. It pulls only
// while a reader waits for a block, so a reader that stops reading stops the upstreams.
//
// Progress decides. One upstream is asked; when it fails, or falls behind its usual pace and what another one could bring
// (pace.ts), the next is asked for the missing blocks, from where the slowest waiting reader stands. A proved block counts
// from any upstream; an upstream that the others have left behind is dropped (runners.ts).
import type { CID } from 'multiformats/cid'
import type { DagWant } from '../../../backends/upstreams/contract.ts'
import { type Block, isIdentity } from '../../core/block.ts'
import type { Clock } from '../../core/clock.ts'
import { linksOf } from '../../ipld/block-links.ts'
import { createCidSet } from '../../ipld/cid-set.ts'
import { type Asker, type Attempts, createAttempts } from '../upstreams/attempts.ts'
import { outcomeOf } from '../upstreams/outcome.ts'
import type { Plan, Pool } from '../upstreams/pool.ts'
import { failedMs, isSlow, leastStallMs, stallAfterMs } from './pace.ts'
import { createProgress } from './progress.ts'
import { type Arrival, createReaders } from './readers.ts'
import { createRunners } from './runners.ts'
import { createTries, lookAgainMs } from './tries.ts'

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
  readonly asker?: Asker | undefined
  readonly keep: (cid: CID, bytes: Uint8Array) => Promise<void>
  /** Called when nothing more will come from this flight. */
  readonly onOver: () => void
}

const mostRunners = 3
const retryMs = 100
const drainLookMs = 1000
const leastLookMs = 5
// A search after a 404 fetches at most this much: the beginning of a huge file, all of any other.
const mostDrainedBytes = 256 * 1024 * 1024

export function flyForDag(want: DagWant, signal: AbortSignal, deps: DagFlightDeps): DagFlight {
  const { pool, clock, keep } = deps
  const attempts = createAttempts(clock, deps.asker)
  const progress = createProgress(clock)
  const tries = createTries({ clock, patienceMs: pool.patienceMs })
  // Everything that was linked to, and of that what came by.
  const expected = createCidSet()
  const delivered = createCidSet()
  const ended = Promise.withResolvers<void>()
  ended.promise.catch(() => {})
  let isFirst = true
  let isDraining = false
  let isOver = false
  /** No upstream brings anything, and no other could: readers ask for their blocks one by one meanwhile. */
  let isStuck = false
  let keeping = 0
  let broughtBytes = 0
  let failure: unknown
  let stopTimer: (() => void) | undefined
  expected.add(want.cid)

  const isWanted = (): boolean => !isOver && (isDraining || readers.size > 0)
  const readers = createReaders(() => noteWaiting())
  const runners = createRunners({
    attempts,
    progress,
    tries,
    signal,
    isExpected: ({ cid }) => expected.has(cid),
    isWanted,
    take,
    onEnd(how) {
      if (signal.aborted) finish(signal.reason)
      // While another one moves, the pace decides whether that one is enough.
      else if (how === 'failed' && (runners.size === 0 || delivered.size === 0)) goOn()
      // An answer that ended cleanly lacked the blocks that readers still wait for; another one may bring them.
      else if (how === 'ended' && (runners.size === 0 || readers.size === 0)) finish()
    },
  })

  /** The readers' clock runs while they wait for upstreams, not while this process is busy. */
  function noteWaiting(): void {
    progress.setWaiting(isWanted() && keeping === 0)
    if (!isWanted()) stopWatching()
  }

  async function take(block: Block, { upstream }: { upstream: { name: string } }): Promise<boolean> {
    const { cid, bytes } = block
    if (delivered.has(cid)) return false
    delivered.add(cid)
    for (const link of linksOf(block)) if (!isIdentity(link)) expected.add(link)
    progress.came(bytes.byteLength)
    isStuck = false
    broughtBytes += bytes.byteLength
    keeping++
    noteWaiting()
    try {
      await keep(cid, bytes)
    } finally {
      keeping--
      noteWaiting()
    }
    readers.arrived(cid, { bytes, upstream: upstream.name })
    if (readers.size === 0 && broughtBytes > mostDrainedBytes) finish()
    return true
  }

  /** The upstreams that could be asked for the missing blocks, the best first. */
  function candidates(): Plan {
    const plan = pool.plan('dag', want.cid, runners.tried)
    if (delivered.size === 0) return plan
    // An upstream without CAR can bring the first block, and nothing after that.
    return { ...plan, steps: plan.steps.filter(({ who }) => who.upstream.traits.dag) }
  }

  function start(step: Plan['steps'][number]): void {
    const part = delivered.size === 0 ? want : (readers.furthestBehind() ?? want)
    expected.add(part.cid)
    runners.start(step, part)
  }

  /** Starts the next upstream at once, first and after a failure. The flight ends when none can be asked in time. */
  function goOn(): void {
    const { steps, soonestMs, skipped } = candidates()
    if (isFirst) attempts.skip(skipped)
    isFirst = false
    const [step] = steps
    if (step) start(step)
    else if (runners.size > 0) return
    else if (delivered.size > 0) finish()
    else if (tries.hasHope) watch(lookAgainMs)
    else finish(outcomeOf(want.cid, attempts.failures, skipped.length, soonestMs))
  }

  // The watch over its pace. It runs only while readers wait.

  function stopWatching(): void {
    stopTimer?.()
    stopTimer = undefined
  }

  function watch(inMs: number): void {
    stopWatching()
    if (!isWanted()) return
    // No reader waits for a search: it may be slower.
    const leastMs = readers.size > 0 ? leastLookMs : drainLookMs
    stopTimer = clock.after(Math.max(leastMs, inMs), () => {
      stopTimer = undefined
      look()
    })
  }

  function firstLookMs(): number {
    const { newest } = runners
    return !newest || newest.hasBegun ? leastStallMs : newest.startedAt + newest.patienceMs - progress.now
  }

  /** How long until another upstream is asked, if nothing comes until then. */
  function patienceLeft(other: Plan['steps'][number] | undefined): number {
    const { newest } = runners
    if (!newest) return 0
    if (!newest.hasBegun) return newest.startedAt + newest.patienceMs - progress.now
    const could = other && ((bytes: number) => other.who.health.expectedMs('dag', bytes))
    if (isSlow(progress.seen, could)) return 0
    return stallAfterMs(progress.seen, could) - progress.silentMs(newest.startedAt)
  }

  function look(): void {
    if (!isWanted()) return
    if (runners.size === 0) return wake()
    const [next] = candidates().steps
    if (runners.inLine) return lookAtLine(next)
    const leftMs = patienceLeft(next)
    if (leftMs > 0) return watch(leftMs)
    if (!next) {
      beStuck()
      return watch(retryMs)
    }
    // An answer that stalled for so long has failed: asking another one is no hedge.
    const hasFailed = progress.silentMs(runners.newest?.startedAt ?? 0) >= failedMs
    const isFull = delivered.size > 0 && runners.size >= mostRunners
    if ((isFull && !hasFailed) || !(hasFailed || pool.mayHedge())) return watch(retryMs)
    if (isFull) runners.dropTheWorst()
    start(next)
    watch(firstLookMs())
  }

  /** Time in the queue is no slowness of an upstream. If another one could be asked at once, leave the queue. */
  function lookAtLine(next: Plan['steps'][number] | undefined): void {
    if (next && next.who.health.waitMs === 0) {
      runners.leaveLine()
      start(next)
    }
    watch(retryMs)
  }

  /** Tells waiting readers to ask for their blocks one by one: an upstream without CAR may have them. */
  function beStuck(): void {
    if (delivered.size === 0 || isDraining) return
    if (pool.plan('block', want.cid, runners.members).steps.length === 0) return
    isStuck = true
    readers.settleAll('not-here')
  }

  function finish(error?: unknown): void {
    if (isOver) return
    isOver = true
    failure = error
    stopWatching()
    runners.release()
    deps.onOver()
    if (error === undefined || delivered.size > 0) readers.settleAll('not-here')
    else readers.failAll(error)
    progress.setWaiting(false)
    if (error === undefined) ended.resolve()
    else ended.reject(error)
  }

  function wake(): void {
    if (isOver) return
    noteWaiting()
    if (isFirst) pool.began()
    if (runners.size === 0) goOn()
    else runners.wake()
    if (!stopTimer) watch(firstLookMs())
  }

  signal.addEventListener('abort', () => finish(signal.reason), { once: true })

  return {
    attempts,
    get over() {
      return isOver
    },
    expects: (cid) => !isOver && expected.has(cid) && !delivered.has(cid),
    async wait(cid, around, own) {
      if (delivered.has(cid)) return 'went-by'
      if (isOver) {
        if (failure === undefined || delivered.size > 0) return 'not-here'
        throw failure
      }
      if (isStuck && candidates().steps.length === 0) return 'not-here'
      isStuck = false
      const arrival = readers.wait(cid, around, own)
      wake()
      return arrival
    },
    async drain() {
      isDraining = true
      if (!isOver) wake()
      else if (failure !== undefined) throw failure
      return ended.promise
    },
  }
}
