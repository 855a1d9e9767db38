// The timer that hedges in the middle of an answer: it rings when the upstreams that were asked should have brought something, and asks
// another one beside them when they did not (hedging.ts says when that is). It runs only while readers wait.
import type { Clock } from '../../../core/clock.ts'
import type { Step } from '../../upstreams/order.ts'
import type { Member, Pool } from '../../upstreams/pool.ts'
import { failedMs, isSlow, leastStallMs, stallAfterMs } from '../hedging.ts'
import type { Progress } from '../progress.ts'
import type { Readers } from '../readers.ts'
import type { Runners } from '../runners.ts'
import type { Asking } from './asking.ts'
import type { DagBlocks } from './blocks.ts'
import type { Demand } from './demand.ts'

export interface HedgeTimer {
  /** Looks after so long, if the answer is wanted; instead of a look that was due. */
  lookIn(ms: number): void
  /** Looks when the newest upstream is due, unless a look is due already. */
  begin(): void
  stop(): void
}

export type HedgeTimerOptions = {
  readonly clock: Clock
  readonly pool: Pool
  readonly progress: Progress
  readonly readers: Readers
  readonly runners: Runners
  readonly asking: Asking
  readonly blocks: DagBlocks
  readonly demand: Demand
  /** No upstream is being asked. */
  readonly onIdle: () => void
  /** The upstreams that were asked bring nothing, and no other can be asked. */
  readonly onStuck: () => void
}

const mostRunners = 3
const retryMs = 100
const drainLookMs = 1000
const leastLookMs = 5

export function createHedgeTimer(options: HedgeTimerOptions): HedgeTimer {
  const { clock, pool, progress, readers, runners, asking, blocks, demand } = options
  let stopTimer: (() => void) | undefined

  function stop(): void {
    stopTimer?.()
    stopTimer = undefined
  }

  function lookIn(ms: number): void {
    stop()
    if (!demand.isWanted) return
    // No reader waits for a search: it may be slower.
    const leastMs = readers.size > 0 ? leastLookMs : drainLookMs
    stopTimer = clock.after(Math.max(leastMs, ms), () => {
      stopTimer = undefined
      look()
    })
  }

  function firstLookMs(): number {
    const { newest } = runners
    return !newest || newest.hasBegun ? leastStallMs : newest.startedAt + newest.patienceMs - progress.now
  }

  /** How long until another upstream is asked, if nothing comes until then. */
  function patienceLeft(other: Step<Member> | undefined): number {
    const { newest } = runners
    if (!newest) return 0
    if (!newest.hasBegun) return newest.startedAt + newest.patienceMs - progress.now
    const could = other && ((bytes: number) => other.who.health.expectedMs('dag', bytes))
    if (isSlow(progress.seen, could)) return 0
    return stallAfterMs(progress.seen, could) - progress.silentMs(newest.startedAt)
  }

  function look(): void {
    if (!demand.isWanted) return
    if (runners.size === 0) return options.onIdle()
    const [other] = asking.candidates().steps
    if (runners.isQueued) return lookAtQueue(other)
    const leftMs = patienceLeft(other)
    if (leftMs > 0) return lookIn(leftMs)
    asking.findMore()
    if (!other) {
      options.onStuck()
      return lookIn(retryMs)
    }
    // An answer that stalled for so long has failed: asking another one is no hedge.
    const hasFailed = progress.silentMs(runners.newest?.startedAt ?? 0) >= failedMs
    const isFull = blocks.size > 0 && runners.size >= mostRunners
    if ((isFull && !hasFailed) || !(hasFailed || pool.mayHedge(other.who))) return lookIn(retryMs)
    if (isFull) runners.dropTheWorst()
    asking.start(other)
    lookIn(firstLookMs())
  }

  /** Time in the queue is no slowness of an upstream. If another one could be asked at once, leave the queue. */
  function lookAtQueue(other: Step<Member> | undefined): void {
    if (other && other.who.health.waitMs === 0) {
      runners.leaveQueue()
      asking.start(other)
    }
    lookIn(retryMs)
  }

  return {
    lookIn,
    begin() {
      if (!stopTimer) lookIn(firstLookMs())
    },
    stop,
  }
}
