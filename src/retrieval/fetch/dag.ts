// A whole entity as answers of upstreams (CAR), block by block, each proved before anybody gets it. It moves only while
// somebody waits for a block, so a reader that stops reading stops the upstreams.
//
// Progress is what wins. One upstream is asked; when it fails, or falls behind what it usually brings and what another one
// could bring (pace.ts), the next is asked for what is still missing, from where the slowest waiting reader stands. Each
// proved block counts, whoever sent it; an upstream that the others have left behind is let go.
import type { CID } from 'multiformats/cid'
import type { DagWant } from '../../../backends/upstreams/contract.ts'
import { type Block, isIdentity } from '../../block.ts'
import type { Clock } from '../../clock.ts'
import { Failure } from '../../failure.ts'
import { type Attempts, createAttempts } from '../attempts.ts'
import { createCidSet } from '../cid-set.ts'
import { linksOf } from '../links.ts'
import type { Step } from '../order.ts'
import type { Member, Pool } from '../pool.ts'
import { verdict } from '../verdict.ts'
import { failedMs, isSlow, leastStallMs, type Progress, stallAfterMs } from './pace.ts'
import { lost } from './race.ts'
import { type Arrival, createReaders } from './readers.ts'
import { openSource, type Source } from './source.ts'
import { createStopwatch } from './stopwatch.ts'

export interface DagFlight {
  /** Waits until this block comes by. Rejects with the verdict when no upstream could even begin. */
  wait(cid: CID, around: DagWant, signal: AbortSignal): Promise<Arrival>
  /** Pulls everything, for nobody in particular. */
  drain(): Promise<void>
  readonly attempts: Attempts
  readonly over: boolean
  /** A block that came by points at this one, and it has not come by itself yet. */
  expects(cid: CID): boolean
}

export type DagFlightDeps = {
  readonly pool: Pool
  readonly clock: Clock
  readonly keep: (cid: CID, bytes: Uint8Array) => Promise<void>
  /** Nothing more will come from this flight. */
  readonly onOver: () => void
}

type Runner = {
  readonly source: Source
  /** On the clock of the readers. */
  readonly startedAt: number
  readonly patienceMs: number
  hasBegun: boolean
  isPulling: boolean
  /** Up to where its waiting has been told to its account. */
  toldAt: number
  /** What others brought since it was last of use, and whether it brought the same since, only later. */
  missedBlocks: number
  missedBytes: number
  isFollowing: boolean
}

const mostRunners = 3
const leftBehindBlocks = 2
const leftBehindBytes = 256 * 1024
const retryMs = 100
const rateWindowMs = 250
const leastLookMs = 5
// What a search behind a 404 brings in: the beginning of something huge, all of anything else.
const mostDrainedBytes = 256 * 1024 * 1024

export function flyForDag(want: DagWant, signal: AbortSignal, deps: DagFlightDeps): DagFlight {
  const { pool, clock, keep } = deps
  const attempts = createAttempts(clock)
  // Everything that was linked to, and of that what came by.
  const expected = createCidSet()
  const delivered = createCidSet()
  const runners = new Set<Runner>()
  const spent = new Set<Member>()
  const waited = createStopwatch(clock)
  const ended = Promise.withResolvers<void>()
  ended.promise.catch(() => {})
  let isDraining = false
  let over = false
  let failure: unknown
  let drainedBytes = 0
  let isFirst = true
  let keeping = 0
  /** Nobody brings anything, and nobody else could: readers ask for their blocks one by one meanwhile. */
  let isStuck = false
  let stopTimer: (() => void) | undefined
  let progressAt = 0
  let usualMs: number | undefined
  let rate: number | undefined
  let windowAt = 0
  let windowBytes = 0
  let blockBytes = 0
  expected.add(want.cid)

  const isWanted = (): boolean => !over && (isDraining || readers.size > 0)
  const readers = createReaders(() => time())
  const runnersLeft = (): Runner[] => [...runners]

  /** The time of the readers goes on while they wait for others than ourselves. */
  function time(): void {
    if (isWanted() && keeping === 0) return waited.run()
    waited.stop()
    if (isWanted()) return
    stopTimer?.()
    stopTimer = undefined
  }

  // --- asking -------------------------------------------------------------------------------------------------------

  /** Who could be asked for what is missing, the best first. */
  function candidates(): { steps: readonly Step<Member>[]; soonestMs: number | undefined; skipped: number } {
    const except = new Set([...spent, ...runnersLeft().map(({ source }) => source.member)])
    const { steps, skipped, soonestMs } = pool.plan('dag', want.cid, except)
    if (isFirst) attempts.skip(skipped)
    // One that knows single blocks only can bring a beginning, and nothing after that.
    const able = delivered.size === 0 ? steps : steps.filter(({ who }) => who.upstream.traits.dag)
    return { steps: able, soonestMs, skipped: skipped.length }
  }

  function start({ who, patienceMs }: Step<Member>): void {
    const part = delivered.size === 0 ? want : (readers.furthestBehind() ?? want)
    expected.add(part.cid)
    const isExpected = ({ cid }: Block) => expected.has(cid)
    const runner: Runner = {
      source: openSource({ member: who, part, attempts, isExpected, signal }),
      startedAt: waited.ms,
      patienceMs,
      hasBegun: false,
      isPulling: false,
      toldAt: waited.ms,
      missedBlocks: 0,
      missedBytes: 0,
      isFollowing: false,
    }
    runners.add(runner)
    pull(runner)
  }

  /** After a failure: whoever can go on, at once. The flight is over when nobody can. */
  function goOn(): void {
    const { steps, soonestMs, skipped } = candidates()
    isFirst = false
    const [step] = steps
    if (step) start(step)
    else if (runners.size > 0) return
    else if (delivered.size > 0) finish()
    else finish(verdict(want.cid, attempts.failures, skipped, soonestMs))
  }

  // --- pulling ------------------------------------------------------------------------------------------------------

  function pull(runner: Runner): void {
    if (runner.isPulling) return
    runner.isPulling = true
    const run = async () => {
      while (isWanted() && runners.has(runner)) {
        const block = await runner.source.next()
        if (!runners.has(runner)) return
        if (block) await take(runner, block)
        else ends(runner)
      }
    }
    run()
      .catch(() => fails(runner))
      .finally(() => {
        runner.isPulling = false
        if (isWanted() && runners.has(runner)) pull(runner)
      })
  }

  async function take(runner: Runner, block: Block): Promise<void> {
    const { cid, bytes } = block
    const size = bytes.byteLength
    tell(runner, size)
    runner.hasBegun = true
    if (delivered.has(cid)) {
      runner.isFollowing = true
      return
    }
    delivered.add(cid)
    for (const link of linksOf(block)) if (!isIdentity(link)) expected.add(link)
    progress(size)
    drainedBytes += size
    await kept(block)
    readers.arrived(cid, { bytes, upstream: runner.source.member.upstream.name })
    leaveBehind(runner, size)
    if (readers.size === 0 && drainedBytes > mostDrainedBytes) finish()
  }

  async function kept({ cid, bytes }: Block): Promise<void> {
    keeping++
    time()
    try {
      await keep(cid, bytes)
    } finally {
      keeping--
      time()
    }
  }

  /** Tells its account what it brought, and how long readers waited for that. */
  function tell(runner: Runner, bytes: number): void {
    const now = waited.ms
    runner.source.brought(bytes, now - runner.toldAt)
    runner.toldAt = now
  }

  function progress(bytes: number): void {
    const now = waited.ms
    const ms = now - progressAt
    // The first block is a beginning, which is known of each upstream; what comes after it is the pace of the answer.
    if (delivered.size > 1) usualMs = usualMs === undefined ? ms : usualMs + (ms - usualMs) * 0.2
    progressAt = now
    blockBytes = Math.max(blockBytes, bytes)
    windowBytes += bytes
    if (now - windowAt >= rateWindowMs) {
      rate = windowBytes / (now - windowAt)
      windowAt = now
      windowBytes = 0
    }
    isStuck = false
  }

  /** Whoever brought nothing of use while this one brought much is let go. */
  function leaveBehind(leader: Runner, bytes: number): void {
    leader.missedBlocks = 0
    leader.missedBytes = 0
    leader.isFollowing = false
    for (const runner of runnersLeft()) {
      if (runner === leader) continue
      runner.missedBlocks++
      runner.missedBytes += bytes
      if (runner.missedBlocks < leftBehindBlocks || runner.missedBytes < leftBehindBytes) continue
      letGo(runner, runner.hasBegun && !runner.isFollowing ? 'behind' : 'enough')
    }
  }

  function letGo(runner: Runner, why: 'enough' | 'behind'): void {
    runners.delete(runner)
    tell(runner, 0)
    if (why === 'behind') spent.add(runner.source.member)
    runner.source.letGo(why, lost)
  }

  /** Its answer ended cleanly. What readers still wait for was not in it; another answer may bring it. */
  function ends(runner: Runner): void {
    runners.delete(runner)
    spent.add(runner.source.member)
    if (runners.size === 0 || readers.size === 0) finish()
  }

  function fails(runner: Runner): void {
    if (!runners.delete(runner)) return
    spent.add(runner.source.member)
    if (signal.aborted) return finish(signal.reason)
    // While another one moves, the pace decides whether that one is enough.
    if (runners.size === 0 || delivered.size === 0) goOn()
  }

  // --- the pace -----------------------------------------------------------------------------------------------------

  /** How long until somebody else is asked, if nothing comes until then. */
  function patienceLeft(now: number, other: Member | undefined): number {
    const newest = runnersLeft().at(-1)
    if (!newest) return 0
    if (!newest.hasBegun) return newest.startedAt + newest.patienceMs - now
    const since = Math.max(progressAt, newest.startedAt)
    const could = other && ((bytes: number) => other.standing.expectedMs('dag', bytes))
    const seen = seenSince(now)
    return isSlow(seen, could) ? 0 : since + stallAfterMs(seen, could) - now
  }

  const seenSince = (now: number): Progress => ({ waitedMs: now - progressAt, usualMs, rate, blockBytes })

  /** Sets the clock that looks whether the answer has fallen behind. Runs only while readers wait. */
  function watch(inMs = firstLookMs()): void {
    stopTimer?.()
    stopTimer = undefined
    if (!isWanted()) return
    stopTimer = clock.after(Math.max(leastLookMs, inMs), () => {
      stopTimer = undefined
      look()
    })
  }

  function firstLookMs(): number {
    const newest = runnersLeft().at(-1)
    return !newest || newest.hasBegun ? leastStallMs : newest.startedAt + newest.patienceMs - waited.ms
  }

  function look(): void {
    if (!isWanted()) return
    const now = waited.ms
    const [next] = candidates().steps
    const leftMs = patienceLeft(now, next?.who)
    if (leftMs > 0) return watch(leftMs)
    const silentMs = now - Math.max(progressAt, runnersLeft().at(-1)?.startedAt ?? 0)
    const hasFailed = silentMs >= failedMs
    if (!next) {
      beStuck()
      return watch(retryMs)
    }
    const isFull = delivered.size > 0 && runners.size >= mostRunners
    if ((isFull && !hasFailed) || !(hasFailed || pool.mayHedge())) return watch(retryMs)
    if (isFull) dropTheWorst()
    start(next)
    watch()
  }

  /** Those who wait are told to ask for their blocks alone: whoever knows single blocks may have them. */
  function beStuck(): void {
    if (delivered.size === 0 || isDraining) return
    const except = new Set(runnersLeft().map(({ source }) => source.member))
    if (pool.plan('block', want.cid, except).steps.length === 0) return
    isStuck = true
    readers.settleAll('not-here')
  }

  function dropTheWorst(): void {
    const [worst] = runnersLeft().sort((one, other) => other.missedBytes - one.missedBytes)
    if (worst) letGo(worst, 'behind')
  }

  // --- the end ------------------------------------------------------------------------------------------------------

  function finish(error?: unknown): void {
    if (over) return
    over = true
    failure = error
    stopTimer?.()
    for (const runner of runnersLeft()) release(runner)
    deps.onOver()
    if (error === undefined || delivered.size > 0) readers.settleAll('not-here')
    else readers.failAll(error)
    waited.stop()
    if (error === undefined) ended.resolve()
    else ended.reject(error)
  }

  /** What becomes of the account of one that is still at it when the flight ends. */
  function release(runner: Runner): void {
    const { source, hasBegun, isFollowing, missedBlocks } = runner
    const silentMs = waited.ms - Math.max(progressAt, runner.startedAt)
    runners.delete(runner)
    tell(runner, 0)
    if (silentMs >= failedMs) source.failed(stalled(source.member, silentMs))
    else if (hasBegun && missedBlocks === 0 && !isFollowing) source.done()
    else if (signal.aborted) source.failed(signal.reason)
    else source.letGo('enough', lost)
  }

  function wake(): void {
    if (over) return
    if (isFirst) {
      pool.began()
      goOn()
    } else for (const runner of runnersLeft()) pull(runner)
    if (!stopTimer) watch()
  }

  signal.addEventListener('abort', () => finish(signal.reason), { once: true })

  return {
    attempts,
    get over() {
      return over
    },
    expects: (cid) => !over && expected.has(cid) && !delivered.has(cid),
    async wait(cid, around, own) {
      if (delivered.has(cid)) return 'went-by'
      if (over) {
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
      waited.run()
      if (!over) wake()
      else if (failure !== undefined) throw failure
      return ended.promise
    },
  }
}

const stalled = ({ upstream }: Member, ms: number): Failure =>
  new Failure('timeout', `${upstream.name} sent nothing of use for ${Math.round(ms)} ms`, { source: 'upstream' })
