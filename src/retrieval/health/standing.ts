// What we know of one upstream: how it works, whether it has what we ask for, whether it may be asked now, and how much
// at once. A question gets a place here, and says here how it ended.
import type { ProbeReport } from '../../../backends/upstreams/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { isFailure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { createAdmission } from '../upstreams/admission.ts'
import type { Rank } from '../upstreams/line.ts'
import type { Place } from '../upstreams/places.ts'
import { createWindow } from '../upstreams/window.ts'
import { type Blame, blameFor, kindOf } from './blame.ts'
import { createDoubts } from './doubts.ts'
import { createHealth, type HealthState } from './health.ts'
import { createHits } from './hits.ts'
import { createPerformance } from './performance.ts'

export type AskKind = 'block' | 'dag'

export type StandingCount = 'asked' | 'won' | 'notFound' | 'throttled' | 'failed' | 'falseBytes' | 'lost'

export type StandingState = HealthState | 'over-budget'

/** One question under way; exactly one of the endings is called. */
export interface Ask {
  /** Aborts when its place is needed for others, because it has taken long already. */
  readonly signal: AbortSignal
  /** It takes long, and the upstream has answered others meanwhile. */
  readonly isOvertaken: boolean
  /** Wanted bytes came, for which readers waited this long since the last ones. The first tell how quick it begins. */
  brought(bytes: number, waitedMs: number): void
  /** It gave all that it was asked for. */
  done(): void
  /** Given up without having failed: others brought enough, or it fell behind what it usually does. */
  letGo(why: 'enough' | 'behind'): void
  /**
   * What may be nobody's fault (nobody has it) is not held against the upstream yet: the answer is what to call when
   * another one turns out to have it.
   */
  failed(error: unknown): (() => void) | undefined
}

export type Want = {
  readonly kind: AskKind
  readonly key: string
  /** How much it matters; a search for what may be nowhere gets the places that others leave. */
  readonly rank?: Rank
  /** The address of the client that wants it: clients take turns. */
  readonly client?: string
  /** How much of its time it has spent already. */
  readonly waitedMs?: number
}

export interface Standing {
  /** Whether it may be asked for this, and if not, why and when again; undefined: not known. */
  state(key: string): { readonly state: StandingState; readonly untilMs: number | undefined }
  /** It rests since a moment ago only, and is looked at often. */
  readonly isRestingBriefly: boolean
  /** It is well, and has answered somebody, or a look, since then. */
  isBackSince(at: number): boolean
  /** It is well, or rests since a moment ago only and is looked at. */
  readonly mayComeBack: boolean
  /** What asking it now is expected to cost, for 1 MiB of a DAG or one block: with guesses for the unknown. */
  load(kind: AskKind): number
  /** Nothing is known of it in this kind of work, or nothing new. */
  isUntried(kind: AskKind): boolean
  /** How long it may take to begin without being late; undefined while nothing is known. */
  usualMs(kind: AskKind): number | undefined
  /** Wanted bytes a millisecond while readers wait; undefined while nothing is known. */
  rate(kind: AskKind): number | undefined
  /** How long it should take to bring so many bytes if it were asked now: with guesses for the unknown. */
  expectedMs(kind: AskKind, bytes: number): number
  /** How long a question would wait for its place now. */
  readonly waitMs: number
  /** Its answers came late just now: more is asked of it than it can do. */
  readonly isCrowded: boolean
  /** For how long it has owed an answer without giving any to anybody. */
  readonly silentMs: number
  /** Whether this was looked for lately and not found. */
  isDoubted(key: string): boolean
  /**
   * A place to ask from, as soon as there is one. Rejects: `overloaded` when there is none in time, `unavailable` when
   * the upstream went out meanwhile, or with the reason of `signal`.
   */
  enter(want: Want, signal: AbortSignal): Promise<Ask>
  /** It failed at something that was no question of a race. */
  brokeOff(error: unknown): void
  probed(report: ProbeReport): void
  /** A probe that began then did not get through. */
  unreachable(error: unknown, beganAt: number): void
  /** Whether it should be looked at again before its turn, and when: `look` is called when that may have changed. */
  readonly lookInMs: number
  /** The answer takes `look` back: while one gateway takes over from another, both look. */
  onSuspicion(look: () => void): () => void
  /** It is one of these until the answer is called, and may be one of others as well. The newest say how patient it is. */
  join(others: Others): () => void
  readonly counts: Readonly<Record<StandingCount, number>>
}

export type Others = {
  /** Whether another upstream could be asked instead. */
  readonly hasOthers: () => boolean
  /** How long a question waits for its place and the answer. */
  readonly patienceMs?: number
}

export type StandingOptions = {
  readonly name: string
  readonly clock: Clock
  readonly log: Log
  readonly connections?: number | undefined
  readonly perMinute?: number | undefined
  readonly perCidPerMinute?: number | undefined
  /** How long a question waits for its place and the answer, unless its pool says something else. */
  readonly patienceMs?: number | undefined
  readonly random?: (() => number) | undefined
}

const usualBytes = { block: 256 * 1024, dag: 1024 * 1024 } as const
const defaultConnections = 32
const defaultPatienceMs = 4_000
const connectionsThatSlow = 32
// Falling behind others is less than giving out: the others may just have been very quick.
const behindWeight = 0.3
const lateLeastMs = 250
const lateUnknownMs = 1_000
const looksApartMs = 250
const probeAnswers = 2
const doubtedMs = 600_000
const falsifiedMs = 60_000
const briefRestMs = 10_000
const briefWaitMs = 2_000

export function createStanding(options: StandingOptions): Standing {
  const { name, clock, log, connections = defaultConnections } = options
  const joined = new Set<Others>()
  const lookers = new Set<() => void>()
  const look = () => {
    for (const one of lookers) one()
  }
  const hasOthers = () => [...joined].some((others) => others.hasOthers())
  const patienceMs = () => [...joined].at(-1)?.patienceMs ?? options.patienceMs ?? defaultPatienceMs
  const doubts = createDoubts(clock, doubtedMs)
  // Of these it sent something else: another one has to answer.
  const falsified = createDoubts(clock, falsifiedMs)
  const work = { block: createPerformance(clock), dag: createPerformance(clock) }
  const health = createHealth({ name, clock, log, random: options.random })
  const window = createWindow(connections, clock)
  const hits = createHits()
  const counts = { asked: 0, won: 0, notFound: 0, throttled: 0, failed: 0, falseBytes: 0, lost: 0 }
  const unanswered = new Set<{ readonly at: number }>() // the oldest first
  let pending = 0
  let answeredAt = Number.NEGATIVE_INFINITY
  let lookAt = Number.POSITIVE_INFINITY
  let lookedAt = Number.NEGATIVE_INFINITY
  let foundWellAt = Number.NEGATIVE_INFINITY
  let restLookMs = 0

  const lateMs = () => Math.max(lateLeastMs, work.dag.usualMs ?? work.block.usualMs ?? lateUnknownMs)
  const admission = createAdmission({
    name,
    clock,
    health,
    window,
    connections,
    patienceMs,
    perMinute: options.perMinute,
    perCidPerMinute: options.perCidPerMinute,
    lateMs,
    onStuck: suspect,
    onWanted: suspect,
    isLookedAt: () => lookers.size > 0,
  })

  /** Asks for a look, but not again and again. */
  function suspect(): void {
    const at = Math.max(clock.monotonic(), lookedAt + looksApartMs)
    if (at >= lookAt) return
    lookAt = at
    look()
  }

  /** A look is counted where the upstream is out for what it answered: who reads the counters finds out why. */
  function countLook(what: 'falseBytes' | 'throttled'): void {
    counts.asked++
    counts[what]++
  }

  const isRestingBriefly = () => health.state === 'resting' && health.outMs < briefRestMs

  function silentMs(): number {
    // Questions are in the order in which they began: those before the newest answer say nothing.
    for (const { at } of unanswered) if (at >= answeredAt) return clock.monotonic() - at
    return 0
  }

  /** What its health says of it, and what follows when that is news. */
  function judged(judge: () => void): void {
    const before = health.state
    judge()
    const { state } = health
    if (state === before) return
    if (state === 'resting') {
      window.close()
      admission.setAside()
      restLookMs = health.lookAgainMs
    }
    // Who waits for one that has just gone to rest waits for the next look, where there is nobody else to be asked.
    if (state !== 'ready' && (state !== 'resting' || hasOthers())) admission.turnAway(clock.monotonic())
    admission.look()
    if (state === 'resting') look()
  }

  /** What a question that began then teaches by failing. */
  const blame = (kind: AskKind, at: number): Blame => ({
    count: (what) => counts[what]++,
    answered: () => judged(health.answered),
    lacks: hits.lacks,
    throttled(failure) {
      window.failed(at)
      judged(() => health.throttled(failure))
    },
    lied: () => judged(health.lied),
    failed(error) {
      work[kind].gaveOut(1)
      judged(() => health.failed(error, at))
      window.failed(at)
      suspect()
    },
    gaveOut: () => work[kind].gaveOut(1),
    // Where it has told nobody anything since, a look will tell.
    wondered: () => answeredAt < at && suspect(),
  })

  function begin(kind: AskKind, key: string, place: Place): Ask {
    const { at } = place
    const performance = work[kind]
    const question = { at }
    let isBegun = false
    counts.asked++
    pending++
    unanswered.add(question)
    performance.asked()

    const answered = () => {
      unanswered.delete(question)
      answeredAt = clock.monotonic()
    }
    const end = () => {
      pending--
      unanswered.delete(question)
      performance.ended()
      place.leave()
    }
    return {
      signal: place.signal,
      get isOvertaken() {
        return place.isOvertaken
      },
      brought(bytes, waitedMs) {
        if (isBegun) return performance.moved(bytes, waitedMs)
        if (bytes === 0) return
        isBegun = true
        answered()
        place.answered()
        const ms = answeredAt - at
        performance.began(ms)
        window.answered(ms, at, place.wasFull)
        judged(health.answered)
        hits.has()
        doubts.delete(key)
      },
      done() {
        counts.won++
        performance.finished()
        end()
      },
      letGo(why) {
        if (!isBegun) {
          counts.lost++
          performance.notYet(clock.monotonic() - at)
        } else if (why === 'behind') performance.gaveOut(behindWeight)
        end()
      },
      failed(error) {
        const ms = clock.monotonic() - at
        const what = kindOf(error)
        const isLetGo = place.signal.aborted
        if (!isBegun && (what === 'not-found' || what === 'timeout' || isLetGo)) doubts.add(key)
        if (what === 'false-bytes') falsified.add(key)
        if (what === 'not-found') hits.saidNo(ms)
        if (what !== 'timeout' && what !== 'cancelled' && !isLetGo) answered()
        if (what === 'not-found' || what === 'refused') place.answered()
        if (isLetGo) {
          counts.lost++
          return void end()
        }
        const later = blameFor(error, isBegun, blame(kind, at))
        end()
        if (what !== 'timeout' || !later) return later
        return () => {
          performance.notYet(ms)
          later()
        }
      },
    }
  }

  return {
    counts,
    state(key) {
      const { state, untilMs } = health
      if (state !== 'ready') return { state, untilMs }
      if (falsified.has(key)) return { state: 'quarantined', untilMs: falsified.leftMs(key) }
      const budgetMs = admission.budgetMs(key)
      return budgetMs > patienceMs() ? { state: 'over-budget', untilMs: budgetMs } : { state, untilMs: 0 }
    },
    get isRestingBriefly() {
      return isRestingBriefly()
    },
    isBackSince: (at) => health.state === 'ready' && Math.max(answeredAt, foundWellAt) > at,
    get mayComeBack() {
      return lookers.size > 0 && (health.state === 'ready' || isRestingBriefly())
    },
    load(kind) {
      const cost = Math.max(work[kind].costMs(usualBytes[kind]), silentMs())
      return cost * (1 + pending / connectionsThatSlow) + hits.costMs + admission.waitMs
    },
    isUntried: (kind) => work[kind].isUntried,
    usualMs: (kind) => work[kind].usualMs,
    rate: (kind) => work[kind].rate,
    expectedMs: (kind, bytes) => Math.max(work[kind].expectedMs(bytes), silentMs()) + admission.waitMs,
    get waitMs() {
      return admission.waitMs
    },
    get isCrowded() {
      return window.isCrowded
    },
    get silentMs() {
      return silentMs()
    },
    isDoubted: (key) => doubts.has(key),
    async enter(want, signal) {
      return begin(want.kind, want.key, await admission.enter(want, signal))
    },
    brokeOff(error) {
      blameFor(error, false, blame('block', clock.monotonic()))
    },
    probed(report) {
      const now = clock.monotonic()
      lookedAt = now
      lookAt = Number.POSITIVE_INFINITY
      if (report.lied) countLook('falseBytes')
      if (report.usable) window.open()
      judged(() => health.looked(report.usable, report.findings))
      if (!report.usable) return
      foundWellAt = now
      // A probe of a gateway that can do both asks two questions, one after the other.
      for (const performance of Object.values(work)) performance.probed(report.car ? report.ms / 2 : report.ms)
      admission.alive(now - report.ms, probeAnswers)
    },
    unreachable(error, beganAt) {
      lookedAt = clock.monotonic()
      lookAt = Number.POSITIVE_INFINITY
      if (isFailure(error, 'throttled')) {
        countLook('throttled')
        return judged(() => health.throttled(error))
      }
      judged(() => health.unreachable(error))
      restLookMs = health.lookAgainMs
      // It may be back in a moment: who came just now waits for the next look.
      const isBrief = health.outMs < briefRestMs
      admission.turnAway(isBrief ? Math.min(beganAt, lookedAt - briefWaitMs) : beganAt)
    },
    get lookInMs() {
      const now = clock.monotonic()
      const wanted = Math.max(0, lookAt - now)
      if (health.state !== 'resting') return wanted
      const ms = admission.inLine > 0 ? Math.min(restLookMs, looksApartMs) : restLookMs
      return Math.min(wanted, Math.max(0, lookedAt + ms - now))
    },
    onSuspicion(listener) {
      lookers.add(listener)
      return () => lookers.delete(listener)
    },
    join(others) {
      joined.add(others)
      return () => joined.delete(others)
    },
  }
}
