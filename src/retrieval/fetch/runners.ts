// The upstreams working on one answer now. Each is pulled while a reader wants its blocks; one that brings nothing useful while
// another brings much is dropped, and the result of each is noted in its account.
import type { DagWant } from '../../../backends/upstreams/contract.ts'
import type { Block } from '../../core/block.ts'
import { Failure } from '../../core/failure.ts'
import { lost } from '../flight/block-flight.ts'
import type { Attempts } from '../upstreams/attempts.ts'
import type { Step } from '../upstreams/order.ts'
import type { Member } from '../upstreams/pool.ts'
import type { Tries } from '../upstreams/tries.ts'
import { failedMs } from './hedging.ts'
import type { Progress } from './progress.ts'
import { openSource, type Source } from './source.ts'

export type Runner = {
  readonly source: Source
  /** On the clock of the readers: when it was asked. */
  readonly startedAt: number
  readonly patienceMs: number
  hasBegun: boolean
}

export interface Runners {
  readonly size: number
  /** The members working on it now, and those that have ended or failed. */
  readonly tried: ReadonlySet<Member>
  /** The members working on it now. */
  readonly members: ReadonlySet<Member>
  readonly newest: Runner | undefined
  /** One of them has not been asked yet: it waits in the upstream's queue. */
  readonly isQueued: boolean
  leaveQueue(): void
  start(step: Step<Member>, part: DagWant): void
  /** Pulls each of them, while they are wanted. */
  wake(): void
  dropTheWorst(): void
  /** Call it when the answer is over, or no reader wants it any more. */
  release(): void
}

export type RunnersOptions = {
  readonly attempts: Attempts
  readonly progress: Progress
  readonly tries: Tries
  readonly signal: AbortSignal
  readonly isExpected: (block: Block) => boolean
  readonly isWanted: () => boolean
  /** Takes a proved block. Resolves with whether it was the first to bring it. */
  readonly take: (block: Block, from: Member) => Promise<boolean>
  /** One of them is done: it ended cleanly, or it failed. */
  readonly onEnd: (how: 'ended' | 'failed') => void
}

type RunningFetch = Runner & {
  startedAt: number
  isPulling: boolean
  /** Up to where the readers' waiting has been told to its account. */
  toldAt: number
  /** What others brought since it was last of use, and whether it brought the same since, only later. */
  missedBlocks: number
  missedBytes: number
  isFollowing: boolean
}

const leftBehindBlocks = 2
const leftBehindBytes = 256 * 1024

export function createRunners(options: RunnersOptions): Runners {
  const { attempts, progress, tries, signal, isExpected, isWanted, take, onEnd } = options
  const running = new Set<RunningFetch>()
  const all = (): RunningFetch[] => [...running]

  function tell(runner: RunningFetch, bytes: number): void {
    const { now } = progress
    runner.source.brought(bytes, now - runner.toldAt)
    runner.toldAt = now
  }

  function pull(runner: RunningFetch): void {
    if (runner.isPulling) return
    runner.isPulling = true
    const run = async () => {
      while (isWanted() && running.has(runner)) {
        const block = await runner.source.next()
        if (!running.has(runner)) return
        if (block) await bring(runner, block)
        else end(runner, 'ended')
      }
    }
    run()
      .catch((error: unknown) => end(runner, 'failed', error))
      .finally(() => {
        runner.isPulling = false
        if (isWanted() && running.has(runner)) pull(runner)
      })
  }

  async function bring(runner: RunningFetch, block: Block): Promise<void> {
    const bytes = block.bytes.byteLength
    tell(runner, bytes)
    runner.hasBegun = true
    if (await take(block, runner.source.member)) leaveOthersBehind(runner, bytes)
    else runner.isFollowing = true
  }

  function leaveOthersBehind(leader: RunningFetch, bytes: number): void {
    leader.missedBlocks = 0
    leader.missedBytes = 0
    leader.isFollowing = false
    for (const runner of all()) {
      if (runner === leader) continue
      runner.missedBlocks++
      runner.missedBytes += bytes
      if (runner.missedBlocks < leftBehindBlocks || runner.missedBytes < leftBehindBytes) continue
      letGo(runner, runner.hasBegun && !runner.isFollowing ? 'behind' : 'enough')
    }
  }

  function letGo(runner: RunningFetch, why: 'enough' | 'behind'): void {
    running.delete(runner)
    tell(runner, 0)
    if (why === 'behind') tries.over(runner.source.member)
    runner.source.letGo(why, lost)
  }

  function end(runner: RunningFetch, how: 'ended' | 'failed', error?: unknown): void {
    if (!running.delete(runner)) return
    const { member } = runner.source
    if (how === 'ended' || runner.hasBegun) tries.over(member)
    else tries.failed(member, error)
    onEnd(how)
  }

  const members = (): Set<Member> => new Set(all().map(({ source }) => source.member))

  return {
    get size() {
      return running.size
    },
    get tried() {
      return new Set([...tries.spent, ...members()])
    },
    get members() {
      return members()
    },
    get newest() {
      return all().at(-1)
    },
    get isQueued() {
      return all().some(({ source }) => source.isQueued)
    },
    leaveQueue() {
      for (const runner of all()) if (runner.source.isQueued) letGo(runner, 'enough')
    },
    start({ who, patienceMs }, part) {
      const { now } = progress
      const onAsked = () => {
        runner.startedAt = runner.toldAt = progress.now
      }
      const source = openSource({ member: who, part, attempts, isExpected, signal, onAsked })
      const runner = newRunner(source, now, patienceMs)
      running.add(runner)
      pull(runner)
    },
    wake() {
      for (const runner of all()) pull(runner)
    },
    dropTheWorst() {
      const [worst] = all().sort((one, other) => other.missedBytes - one.missedBytes)
      if (worst) letGo(worst, 'behind')
    },
    release() {
      for (const runner of all()) {
        const { source, hasBegun, isFollowing, missedBlocks, startedAt } = runner
        const silentMs = progress.silentMs(startedAt)
        running.delete(runner)
        tell(runner, 0)
        if (silentMs >= failedMs) source.failed(stalled(source.member, silentMs))
        else if (hasBegun && missedBlocks === 0 && !isFollowing) source.done()
        else if (signal.aborted) source.failed(signal.reason)
        else source.letGo('enough', lost)
      }
    },
  }
}

const newRunner = (source: Source, now: number, patienceMs: number): RunningFetch => ({
  source,
  startedAt: now,
  patienceMs,
  hasBegun: false,
  isPulling: false,
  toldAt: now,
  missedBlocks: 0,
  missedBytes: 0,
  isFollowing: false,
})

const stalled = ({ upstream }: Member, ms: number): Failure =>
  new Failure('timeout', `${upstream.name} stalled: no useful block for ${Math.round(ms)} ms`, { source: 'upstream' })
