// One block, raced for: the first upstream whose bytes hash to the CID wins.
import type { CID } from 'multiformats/cid'
import { proves } from '../../core/block.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'
import type { Trace } from '../../core/wire/trace.ts'
import { type Asker, type Attempts, createAttempts } from '../upstreams/attempts.ts'
import type { Step } from '../upstreams/order.ts'
import { outcomeOf } from '../upstreams/outcome.ts'
import type { Finding, Member, Plan, Pool } from '../upstreams/pool.ts'
import { lost, race } from './race.ts'
import { createTries, type Tries } from './tries.ts'

export type FetchedBlock = { readonly bytes: Uint8Array; readonly upstream: string }

export interface BlockFlight {
  readonly found: Promise<FetchedBlock>
  readonly attempts: Attempts
}

export type BlockFlightDeps = {
  readonly pool: Pool
  readonly clock: Clock
  readonly asker?: Asker | undefined
  readonly trace?: Trace | undefined
  /** Called with each proved block before any reader gets it. */
  readonly keep: (cid: CID, bytes: Uint8Array) => Promise<void>
}

/** A place in the race for a gateway that a router will name. */
const toBeFound = Symbol('to be found')
/** So many of them are raced at once. */
const maxFoundAtOnce = 3
/** A gateway that nothing is known of is waited for so long before the next one is asked too. */
const foundPatienceMs = 300

export function flyForBlock(cid: CID, signal: AbortSignal, deps: BlockFlightDeps): BlockFlight {
  const { pool, clock, keep } = deps
  const attempts = createAttempts(clock, deps.asker, deps.trace)
  const beganAt = clock.monotonic()
  // Made when the first question failed.
  let tries: Tries | undefined
  const root = deps.asker?.root ?? cid
  let finding: Finding | undefined
  let isFindingNoted = false
  let foundAtOnce = 0
  const taken = new Set<Member>()
  const triesOf = () => (tries ??= createTries({ clock, giveUpAt: beganAt + pool.patienceMs }))

  function find(): Finding | undefined {
    return (finding ??= pool.find?.(root))
  }

  /** Asks one gateway after another, as routers name them. */
  async function askFound(own: AbortSignal, giveWay: () => void): Promise<FetchedBlock> {
    for (;;) {
      const member = await find()?.next(taken, own)
      if (!member) throw finding?.failure ?? new Failure('not-found', 'nobody is named', { source: 'upstream' })
      taken.add(member)
      try {
        return await askOnce(member, own)
      } catch (error) {
        if (own.aborted) throw error
        giveWay()
      }
    }
  }

  async function askOnce(member: Member, own: AbortSignal): Promise<FetchedBlock> {
    if (!member.isFound) return askThe(member, own)
    foundAtOnce++
    return askThe(member, own).finally(() => foundAtOnce--)
  }

  async function askThe(member: Member, own: AbortSignal): Promise<FetchedBlock> {
    const { upstream } = member
    const question = await attempts.ask(member, 'block', cid, own)
    const stop = new AbortController()
    const leave = () => stop.abort(own.reason)
    own.addEventListener('abort', leave, { once: true })
    question.onLetGo((reason) => stop.abort(reason))
    try {
      const bytes = await question.within(() => upstream.block(cid, stop.signal))
      if (!proves(cid, bytes)) throw falseBytes(upstream.name, cid)
      question.brought(bytes.byteLength, 0)
      question.done()
      return { bytes, upstream: upstream.name }
    } catch (error) {
      if (error === lost) question.letGo('enough')
      else question.failed(error)
      throw error
    } finally {
      own.removeEventListener('abort', leave)
    }
  }

  async function attempt(
    member: Member | typeof toBeFound,
    own: AbortSignal,
    giveWay: () => void,
  ): Promise<FetchedBlock> {
    if (member === toBeFound) return askFound(own, giveWay)
    taken.add(member)
    for (;;) {
      try {
        return await askOnce(member, own)
      } catch (error) {
        if (own.aborted) throw error
        triesOf().failed(member, error)
        giveWay()
        await triesOf().untilBack(member, error, own)
      }
    }
  }

  function raceFor(steps: Plan['steps']): Promise<FetchedBlock> {
    // Time in the queue is no slowness of an upstream: an upstream with room is asked instead, and no hedge is used.
    const hasRoom = () => steps.some(({ who }) => who.health.waitMs === 0)
    const mayHedge = (who: Member | typeof toBeFound) => {
      if (who !== toBeFound && !who.isFound) return attempts.isQueued() ? hasRoom() : pool.mayHedge(who)
      return foundAtOnce < maxFoundAtOnce && (who === toBeFound || pool.mayHedge(who))
    }
    const places = pool.find ? [...steps, ...placesForFound] : steps
    return race<Member | typeof toBeFound, FetchedBlock>({
      ...{ steps: places, attempt, mayHedge, signal, clock },
      onLate: () => void find(),
    })
  }

  /** Once, when the routers have said what they had to. */
  function noteFinding(): void {
    if (!finding?.isOver || isFindingNoted) return
    isFindingNoted = true
    attempts.looked(finding.attempts, finding.failure)
  }

  async function fly(): Promise<FetchedBlock> {
    pool.began()
    for (let isFirst = true; ; isFirst = false) {
      const { steps, ...left } = pool.plan('block', cid, taken, root)
      if (isFirst) attempts.skip(left.skipped)
      if (steps.length === 0 && (!isFirst || !pool.find)) throw outcomeOf(cid, attempts.failures, left)
      try {
        const won = await raceFor(steps)
        noteFinding()
        await keep(cid, won.bytes)
        return won
      } catch (error) {
        noteFinding()
        signal.throwIfAborted()
        if (attempts.failures.length === 0) throw error
      }
      // An upstream that was down at first may be well by now.
      for (const { who } of steps) taken.add(who)
    }
  }
  const found = fly()
  found.catch(() => {}) // every reader that joins handles it, but all may have left: no unhandled rejection then
  return { found, attempts }
}

const placesForFound: readonly Step<typeof toBeFound>[] = Array.from({ length: maxFoundAtOnce }, () => ({
  who: toBeFound,
  patienceMs: foundPatienceMs,
}))

export const falseBytes = (upstream: string, cid: CID): Failure =>
  new Failure('false-bytes', `${upstream} sent bytes that do not hash to ${cid}`, { source: 'upstream' })
