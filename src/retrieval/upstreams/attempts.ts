// The account of one race while it runs: who was asked, what became of it, and who has not answered yet.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../../core/block.ts'
import type { Clock } from '../../core/clock.ts'
import { isFailure } from '../../core/failure.ts'
import type { OpenSpan, Trace } from '../../core/wire/trace.ts'
import type { Attempt } from '../../observe/account.ts'
import type { Ask, AskKind } from '../health/upstream-health.ts'
import type { Rank } from './fair-queue.ts'
import type { Member } from './pool.ts'

/** Why a question is given up although it did not fail: others brought what was wanted, or it fell behind them. */
export type LetGo = 'enough' | 'behind'

/**
 * One question to one upstream, from the moment it is sent. The first ending counts; what comes after it is ignored.
 */
export interface Question {
  /** What `work` sends belongs to this question, where it is recorded in a trace. */
  within<Result>(work: () => Result): Result
  /** Calls when readers need its slot, because it has looked for long already. To be passed on to the upstream. */
  onLetGo(tell: (reason: unknown) => void): void
  /** A proved block that was wanted came from here. `waitedMs`: how long readers waited for it since the one before. */
  brought(bytes: number, waitedMs: number): void
  /** The upstream gave all that it was asked for. */
  done(): void
  letGo(why: LetGo): void
  failed(error: unknown): void
}

export interface Attempts {
  /**
   * Begins a question once this upstream has a slot for it. Rejects when `signal` aborts, and with a Failure that is
   * among the `failures` when there is none in time (`overloaded`) or the upstream went out meanwhile (`unavailable`).
   */
  ask(member: Member, kind: AskKind, cid: CID, signal: AbortSignal): Promise<Question>
  /** Every open question still waits in its upstream's queue: no upstream is working on it. */
  isQueued(): boolean
  /** Every upstream that was to be asked broke off before its first byte, or sent this gateway away. */
  wasRefused(): boolean
  /** An upstream was asked so late, or was so crowded, that a missing answer says nothing. */
  hasBeenCrowded(): boolean
  skip(skipped: readonly Attempt[]): void
  /** Adds the routers that were asked, and why they named nobody. */
  looked(attempts: readonly Attempt[], failure: unknown): void
  /** What can be said now; those still running are `no answer yet`. */
  list(): Attempt[]
  /** What the questions failed with, in the order in which they did. */
  readonly failures: readonly unknown[]
}

const mostKept = 32
// An upstream that sent nothing of use for so long is called stalled in the account.
const stalledMs = 1000
// An upstream that was asked so early in a race, and said nothing, had its full time.
const fullShare = 3 / 4
const waitsForSlot = 'waiting for its turn'

/** The client that wants it. */
export type Asker = {
  /** The address of the first client that asked. */
  readonly client: string
  /** The client has a part of the file already. */
  readonly hasBegun: boolean
  /** The CID at the root of the path that the client asked for: who holds that may hold what is below it. */
  readonly root?: CID | undefined
}

type AttemptRecord = {
  asked: Ask | undefined
  readonly member: Member
  outcome: string | undefined
  ms: number
  /** When it was asked, or began to wait for that. */
  at: number
  bytes: number
  broughtAt: number
  /** The upstream gave all that it was asked for. */
  isWhole: boolean
}

/**
 * Outcomes that say whether the upstream has the CID, or that it had its time: one that begins was not kept from it.
 */
const isAnswer = (outcome: string): boolean =>
  ['not-found', 'refused', 'timeout', 'won'].includes(outcome) || outcome.startsWith('began, ')

/** Outcomes of an upstream that could not be asked. */
const refusals: ReadonlySet<string> = new Set(['broken', 'throttled', 'unavailable'])

const anybody: Asker = { client: '', hasBegun: false }

/** `trace`: questions are recorded below the request that began the race, and not below one that joined it later. */
export function createAttempts(clock: Clock, { client, hasBegun }: Asker = anybody, trace?: Trace): Attempts {
  const parent = trace?.here()
  const made: AttemptRecord[] = []
  const skippedOnes: Attempt[] = []
  const failures: unknown[] = []
  // What is held against an upstream only if another one has it.
  let heldBack: (() => void)[] = []
  const beganAt = clock.monotonic()
  let isThere = false
  // An upstream looked for it and brought nothing: it may be nowhere.
  let isDoubted = false
  let queued = 0
  let asking = 0

  /** How much the next question matters. */
  function rankOf(member: Member, key: string): Rank {
    if (isThere) return 'begun'
    if (isDoubted || member.health.isDoubted(key)) return 'search'
    if (hasBegun) return 'begun'
    return made.some(({ outcome, asked }) => outcome === undefined && asked?.isOvertaken()) ? 'again' : 'first'
  }

  function fail(error: unknown): void {
    if (failures.length < mostKept) failures.push(error)
  }

  return {
    failures,
    isQueued: () => queued > 0 && asking === 0,
    wasRefused: () => made.length > 0 && made.every(({ outcome }) => outcome !== undefined && refusals.has(outcome)),
    hasBeenCrowded: () => wasCrowded(made, clock.monotonic(), beganAt),
    async ask(member, kind, cid, signal) {
      signal.throwIfAborted()
      const key = blockKey(cid)
      const record = newRecord(member, clock.monotonic())
      if (made.length < mostKept) made.push(record)
      const span = trace?.ask(`upstream ${kind}`, parent)
      const asked = await enter().catch((error: unknown) => {
        record.ms = Math.round(clock.monotonic() - record.at)
        record.outcome = signal.aborted ? 'lost' : isFailure(error) ? error.kind : 'internal'
        if (!signal.aborted) fail(error)
        endSpan(span, record, cid)
        throw error
      })
      const waitedMs = Math.round(clock.monotonic() - record.at)
      record.asked = asked
      record.outcome = undefined
      record.at = clock.monotonic()
      asking++

      async function enter() {
        queued++
        try {
          // What has begun has time again.
          const waitedMs = isThere ? 0 : clock.monotonic() - beganAt
          return await member.health.enter({ kind, key, rank: rankOf(member, key), client, waitedMs }, signal)
        } finally {
          queued--
        }
      }
      const end = (outcome: string): boolean => {
        if (record.outcome !== undefined) return false
        record.ms = Math.round(clock.monotonic() - record.at)
        record.outcome = outcome
        asking--
        endSpan(span, record, cid, waitedMs)
        return true
      }
      return {
        within: (work) => (span ? span.run(work) : work()),
        onLetGo: (tell) => asked.letGoBy.onStop(tell),
        brought(bytes, waitedMs) {
          if (record.outcome !== undefined) return
          record.bytes += bytes
          if (bytes > 0) record.broughtAt = clock.monotonic()
          asked.brought(bytes, waitedMs)
          if (isThere || bytes === 0) return
          isThere = true
          for (const hold of heldBack) hold()
          heldBack = []
        },
        done() {
          if (!end('won')) return
          record.isWhole = true
          asked.done()
        },
        letGo(why) {
          const lost = why === 'behind' ? 'began, then fell behind' : 'won'
          if (end(record.bytes === 0 ? 'lost' : lost)) asked.letGo(why)
        },
        failed(error) {
          const kind = isFailure(error) ? error.kind : 'internal'
          const word = kind === 'timeout' ? 'stalled' : kind
          if (!end(record.bytes === 0 ? kind : `began, then ${word}`)) return
          if (kind === 'not-found' || kind === 'timeout' || asked.letGoBy.isStopped) isDoubted = true
          const hold = asked.failed(error)
          if (isThere) hold?.()
          else if (hold && heldBack.length < mostKept) heldBack.push(hold)
          fail(error)
        },
      }
    },
    skip(skipped) {
      skippedOnes.push(...skipped.slice(0, mostKept - skippedOnes.length))
    },
    looked(attempts, failure) {
      skippedOnes.push(...attempts.slice(0, mostKept - skippedOnes.length))
      if (failure !== undefined) fail(failure)
    },
    list() {
      const now = clock.monotonic()
      return [...made.map((record) => attemptOf(record, now)), ...skippedOnes]
    },
  }
}

const newRecord = (member: Member, at: number): AttemptRecord => ({
  asked: undefined,
  member,
  outcome: waitsForSlot,
  ms: 0,
  at,
  bytes: 0,
  broughtAt: 0,
  isWhole: false,
})

/** Names and numbers alone: messages of failures may repeat what a service said. */
function endSpan(
  span: OpenSpan | undefined,
  { member, outcome = '', bytes }: AttemptRecord,
  cid: CID,
  waitedMs?: number,
) {
  if (!span) return
  const facts = {
    'cidgate.upstream': member.upstream.name,
    'cidgate.outcome': outcome,
    'cidgate.bytes': bytes,
    'cidgate.cid': cid.toString(),
    'cidgate.waited_ms': waitedMs,
  }
  span.end(facts, !harmless.has(outcome))
}

/** Outcomes that are no fault: somebody has to lose a race, and most upstreams lack most things. */
const harmless: ReadonlySet<string> = new Set([
  ...['won', 'lost', 'not-found', 'cancelled'],
  ...['began, then fell behind', 'began, then cancelled'],
])

/** What can be said of a question now. */
function attemptOf({ member, outcome, ms, at, bytes, broughtAt }: AttemptRecord, now: number): Attempt {
  const upstream = member.upstream.name
  if (outcome === waitsForSlot) return { upstream, outcome, ms: Math.round(now - at) }
  if (outcome !== undefined) return { upstream, outcome, ms }
  const sending = now - broughtAt < stalledMs ? 'sending' : 'began, then stalled'
  return { upstream, outcome: bytes === 0 ? 'no answer yet' : sending, ms: Math.round(now - at) }
}

/** Whether a missing answer says nothing: no slot was found, what was asked is there, or no upstream had its time. */
function wasCrowded(made: readonly AttemptRecord[], now: number, beganAt: number): boolean {
  const hadTime = ({ outcome, at, member }: AttemptRecord) =>
    outcome === undefined ? now - at > (now - beganAt) * fullShare && !member.health.isCrowded : isAnswer(outcome)
  const foundNoSlot = made.some(({ outcome }) => outcome === 'overloaded' || outcome === waitsForSlot)
  // What brought its part is there: the time went by in front of something else.
  const isThere = made.some(({ isWhole }) => isWhole)
  return foundNoSlot || isThere || (made.length > 0 && !made.some(hadTime))
}
