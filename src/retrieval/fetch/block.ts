// One block, raced for: the first upstream whose bytes hash to the CID wins.
import type { CID } from 'multiformats/cid'
import { proves } from '../../core/block.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'
import type { Trace } from '../../core/wire/trace.ts'
import { type Asker, type Attempts, createAttempts } from '../upstreams/attempts.ts'
import { outcomeOf } from '../upstreams/outcome.ts'
import type { Member, Plan, Pool } from '../upstreams/pool.ts'
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

export function flyForBlock(cid: CID, signal: AbortSignal, deps: BlockFlightDeps): BlockFlight {
  const { pool, clock, keep } = deps
  const attempts = createAttempts(clock, deps.asker, deps.trace)
  const beganAt = clock.monotonic()
  // Made when the first question failed.
  let tries: Tries | undefined
  const triesOf = () => (tries ??= createTries({ clock, giveUpAt: beganAt + pool.patienceMs }))

  async function askOnce(member: Member, own: AbortSignal): Promise<FetchedBlock> {
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

  async function attempt(member: Member, own: AbortSignal, giveWay: () => void): Promise<FetchedBlock> {
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
    const mayHedge = () => (attempts.isQueued() ? hasRoom() : pool.mayHedge())
    return race({ steps, attempt, mayHedge, signal, clock })
  }

  async function fly(): Promise<FetchedBlock> {
    pool.began()
    const asked = new Set<Member>()
    for (let isFirst = true; ; isFirst = false) {
      const { steps, ...left } = pool.plan('block', cid, asked)
      if (isFirst) attempts.skip(left.skipped)
      if (steps.length === 0) throw outcomeOf(cid, attempts.failures, left)
      try {
        const won = await raceFor(steps)
        await keep(cid, won.bytes)
        return won
      } catch (error) {
        signal.throwIfAborted()
        if (attempts.failures.length === 0) throw error
      }
      // An upstream that was down at first may be well by now.
      for (const { who } of steps) asked.add(who)
    }
  }
  const found = fly()
  found.catch(() => {}) // every reader that joins handles it, but all may have left: no unhandled rejection then
  return { found, attempts }
}

export const falseBytes = (upstream: string, cid: CID): Failure =>
  new Failure('false-bytes', `${upstream} sent bytes that do not hash to ${cid}`, { source: 'upstream' })
