// A whole entity as one answer (CAR), block by block, each proved before anybody gets it. It moves only while somebody
// waits for a block, so a reader that stops reading stops the upstream. When the upstream that won breaks off, stalls or
// lies, the rest is asked of another, from where the slowest waiting reader stands.
import type { CID } from 'multiformats/cid'
import type { DagWant } from '../../backends/upstreams/contract.ts'
import { type Block, blockKey, isIdentity, proves } from '../block.ts'
import type { Clock } from '../clock.ts'
import { Failure, isFailure } from '../failure.ts'
import { type Attempts, createAttempts, type Question } from './attempts.ts'
import { falseBytes } from './block-flight.ts'
import { createCidSet } from './cid-set.ts'
import { linksOf } from './links.ts'
import type { Member, Pool } from './pool.ts'
import { lost, race } from './race.ts'
import { verdict } from './verdict.ts'

export type Delivered = { readonly bytes: Uint8Array; readonly upstream: string }

export interface DagFlight {
  /**
   * Waits until this block comes by. `undefined`: it will not come from here (it went by already, was left out, or the
   * answer is over); ask for it alone. Rejects with the verdict when no upstream could even begin.
   */
  wait(cid: CID, around: DagWant, signal: AbortSignal): Promise<Delivered | undefined>
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

type Waiter = {
  readonly around: DagWant
  passedBlocks: number
  passedBytes: number
  readonly settle: (delivered: Delivered | undefined) => void
  readonly fail: (error: unknown) => void
}

type Source = {
  readonly member: Member
  readonly question: Question
  readonly blocks: AsyncIterator<Block> | undefined
  readonly stop: () => void
}

// How far a reader follows an answer that does not bring its block next, and how much is read that nobody asked for.
const mostPassedBlocks = 64
const mostPassedBytes = 16 * 1024 * 1024
const mostForeignBytes = 4 * 1024 * 1024
// What a search behind a 404 brings in: the beginning of something huge, all of anything else.
const mostDrainedBytes = 256 * 1024 * 1024

export function flyForDag(want: DagWant, signal: AbortSignal, deps: DagFlightDeps): DagFlight {
  const { pool, clock, keep } = deps
  const attempts = createAttempts(clock)
  const waiters = new Map<string, Set<Waiter>>()
  // Everything that was linked to, and of that what came by.
  const expected = createCidSet()
  const delivered = createCidSet()
  const spent = new Set<Member>()
  let draining = false
  let moving = false
  let over = false
  let failure: unknown
  let source: Source | undefined
  let foreignBytes = 0
  let keptBytes = 0
  const ended = Promise.withResolvers<void>()
  ended.promise.catch(() => {})
  expected.add(want.cid)

  const waiting = (): Waiter[] => [...waiters.values()].flatMap((set) => [...set])

  /** The race for a beginning: the first upstream that shows a proved block of what is wanted. */
  async function open(part: DagWant): Promise<Block> {
    const { steps, skipped, soonestMs } = pool.plan('dag', part.cid, spent)
    attempts.skip(skipped)
    if (steps.length === 0) throw verdict(part.cid, attempts.failures, skipped.length, soonestMs)
    const begin = async (member: Member, raceSignal: AbortSignal): Promise<{ source: Source; first: Block }> => {
      const controller = new AbortController()
      const abort = () => controller.abort(raceSignal.reason ?? signal.reason)
      raceSignal.addEventListener('abort', abort, { once: true })
      let question: Question | undefined
      try {
        question = await attempts.ask(member, 'dag', part.cid, raceSignal)
        const found = await beginning(member, part, controller)
        question.brought(found.first.bytes.byteLength, 0)
        return { source: { member, question, ...found }, first: found.first }
      } catch (error) {
        if (error === lost) question?.letGo('enough')
        else question?.failed(error)
        controller.abort()
        throw error
      } finally {
        raceSignal.removeEventListener('abort', abort)
      }
    }
    try {
      const won = await race({ steps, attempt: begin, mayHedge: pool.mayHedge, signal, clock })
      source = won.source
      return won.first
    } catch (error) {
      signal.throwIfAborted()
      if (attempts.failures.length === 0) throw error
      throw verdict(part.cid, attempts.failures, skipped.length, soonestMs)
    }
  }

  async function beginning({ upstream }: Member, part: DagWant, controller: AbortController) {
    const stop = () => controller.abort()
    const alone = async () => {
      const bytes = await upstream.block(part.cid, controller.signal)
      if (!proves(part.cid, bytes)) throw falseBytes(upstream.name, part.cid)
      return { blocks: undefined, stop, first: { cid: part.cid, bytes } }
    }
    if (!upstream.traits.dag) return alone()
    const blocks = upstream.dag(part, controller.signal)[Symbol.asyncIterator]()
    const first = await nextProved(blocks, upstream.name)
    if (first) return { blocks, stop, first }
    // Nothing in it, not even the root: the upstream may lack it, or have it and not know how to read it.
    if (part.segments.length === 0) return alone()
    throw new Failure('not-found', `${upstream.name} sent an answer without ${part.cid}`, { source: 'upstream' })
  }

  /** The next block that belongs here and is what it says; everything else is passed over, within bounds. */
  async function nextProved(blocks: AsyncIterator<Block>, name: string): Promise<Block | undefined> {
    for (;;) {
      const { value: block, done } = await blocks.next()
      if (done) return undefined
      if (expected.has(block.cid)) {
        if (!proves(block.cid, block.bytes)) throw falseBytes(name, block.cid)
        return block
      }
      foreignBytes += block.bytes.byteLength
      if (foreignBytes > mostForeignBytes) {
        throw new Failure('broken', `${name} keeps sending blocks that nobody asked for`, {
          source: 'upstream',
        })
      }
    }
  }

  async function deliver(block: Block): Promise<void> {
    const key = blockKey(block.cid)
    if (!delivered.has(block.cid)) {
      delivered.add(block.cid)
      for (const link of linksOf(block)) if (!isIdentity(link)) expected.add(link)
      keptBytes += block.bytes.byteLength
      await keep(block.cid, block.bytes)
    }
    const upstream = source?.member.upstream.name ?? ''
    for (const waiter of waiters.get(key) ?? []) waiter.settle({ bytes: block.bytes, upstream })
    waiters.delete(key)
    for (const [other, set] of waiters) {
      for (const waiter of set) {
        waiter.passedBlocks++
        waiter.passedBytes += block.bytes.byteLength
        if (waiter.passedBlocks <= mostPassedBlocks && waiter.passedBytes <= mostPassedBytes) continue
        set.delete(waiter)
        waiter.settle(undefined)
      }
      if (set.size === 0) waiters.delete(other)
    }
  }

  /** What is left to ask another upstream for: from the reader that is furthest behind. */
  function rest(): DagWant {
    const behind = waiting().map((waiter) => waiter.around)
    const from = (around: DagWant) => around.range?.from ?? 0
    return behind.length === 0 ? want : behind.reduce((least, around) => (from(around) < from(least) ? around : least))
  }

  function finish(error?: unknown): void {
    if (over) return
    over = true
    failure = error
    source?.question.letGo('enough')
    source?.stop()
    deps.onOver()
    for (const waiter of waiting()) {
      if (error === undefined || delivered.size > 0) waiter.settle(undefined)
      else waiter.fail(error)
    }
    waiters.clear()
    if (error === undefined) ended.resolve()
    else ended.reject(error)
  }

  /** Moves while somebody waits; ends the flight when the answer is over or nobody can go on with it. */
  async function move(): Promise<void> {
    while (!over && (draining || waiters.size > 0)) {
      if (waiters.size === 0 && keptBytes > mostDrainedBytes) return finish()
      if (!source) {
        const part = delivered.size === 0 ? want : rest()
        expected.add(part.cid)
        await deliver(await open(part))
        continue
      }
      const { member, question, blocks } = source
      const began = clock.monotonic()
      try {
        const block = blocks && (await nextProved(blocks, member.upstream.name))
        if (!block) {
          question.done()
          return finish()
        }
        question.brought(block.bytes.byteLength, clock.monotonic() - began)
        await deliver(block)
      } catch (error) {
        signal.throwIfAborted()
        question.failed(error)
        source.stop()
        source = undefined
        spent.add(member)
      }
    }
  }

  function wake(): void {
    if (moving || over) return
    moving = true
    move()
      .catch((error: unknown) => finish(isFailure(error) ? error : (signal.reason ?? error)))
      .finally(() => {
        moving = false
        if (waiters.size > 0 || (draining && !over)) wake()
      })
  }

  signal.addEventListener('abort', () => finish(signal.reason), { once: true })

  return {
    attempts,
    get over() {
      return over
    },
    expects: (cid) => !over && expected.has(cid) && !delivered.has(cid),
    wait(cid, around, own) {
      const key = blockKey(cid)
      if (over)
        return failure === undefined || delivered.size > 0 ? Promise.resolve(undefined) : Promise.reject(failure)
      if (delivered.has(cid)) return Promise.resolve(undefined)
      return new Promise((resolve, reject) => {
        const leave = () => {
          const set = waiters.get(key)
          set?.delete(waiter)
          if (set?.size === 0) waiters.delete(key)
          reject(own.reason)
        }
        const settled =
          <T>(then: (value: T) => void) =>
          (value: T) => {
            own.removeEventListener('abort', leave)
            then(value)
          }
        const waiter: Waiter = {
          around,
          passedBlocks: 0,
          passedBytes: 0,
          settle: settled(resolve),
          fail: settled(reject),
        }
        if (own.aborted) return reject(own.reason)
        own.addEventListener('abort', leave, { once: true })
        const set = waiters.get(key)
        if (set) set.add(waiter)
        else waiters.set(key, new Set([waiter]))
        wake()
      })
    },
    drain() {
      draining = true
      if (over) return failure === undefined ? Promise.resolve() : Promise.reject(failure)
      wake()
      return ended.promise
    },
  }
}
