// The health and score of one upstream, put together: how fast it is, whether it has what it is asked for (questions.ts), if
// it may be asked now (health.ts), when it is probed (probe-schedule.ts) and how much it is asked at once (admission.ts).
import type { ProbeReport } from '../../../backends/upstreams/contract.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { LoopTurns } from '../turns/loop-turns.ts'
import { createUpstreamAdmission, type UpstreamAdmission } from '../upstreams/admission.ts'
import type { Rank } from '../upstreams/fair-queue.ts'
import { createWindow } from '../upstreams/window.ts'
import { createHealth, healthStates } from './health.ts'
import { createPerformance } from './performance.ts'
import { briefRestMs, createProbeResults } from './probe-results.ts'
import { createProbeSchedule } from './probe-schedule.ts'
import {
  type Ask,
  type AskKind,
  createMeasured,
  createQuestions,
  type UpstreamCount,
  type UpstreamMeasured,
} from './questions.ts'
import type { Told } from './trouble.ts'

export type { Ask, AskKind, UpstreamCount, UpstreamMeasured } from './questions.ts'

export const upstreamStates = [...healthStates, 'over-budget'] as const
export type UpstreamState = (typeof upstreamStates)[number]

export type AskRequest = {
  readonly kind: AskKind
  readonly key: string
  /** How much it matters; a search for what may be nowhere gets the slots that others leave. */
  readonly rank?: Rank
  /** The address of the client that wants it: clients take turns. */
  readonly client?: string
  /** How much of its time it has spent already. */
  readonly waitedMs?: number
}

export interface UpstreamHealth {
  /** Whether the upstream may be asked for this, and if not, why and when again; undefined: not known. */
  state(key: string): { readonly state: UpstreamState; readonly untilMs: number | undefined }
  /** The upstream began to rest a moment ago, and is probed often. */
  readonly isRestingBriefly: boolean
  /** The upstream is well, and has answered a client or a probe since then. */
  isBackSince(at: number): boolean
  /** The upstream is throttling, and for less time than a client waits. */
  readonly coolsInTime: boolean
  /** How long until the upstream is tried although it cools down, which it does by a guess; undefined otherwise. */
  readonly triesInMs: number | undefined
  /** The upstream is out, and may be back so soon that what it lacks is not known: an outage of a minute is no absence of a moment. */
  readonly isOutBriefly: boolean
  /** The upstream is well, or began to rest a moment ago and is probed. */
  readonly mayComeBack: boolean
  /** A request that failed at the upstream waits until it is well: for a moment, it is looked at often. */
  waitedFor(): void
  /** The expected cost of asking the upstream now, for 1 MiB of a DAG or one block: with guesses for the unknown. */
  load(kind: AskKind): number
  /** Nothing is known of the upstream in this kind of work, or nothing new. */
  isUntried(kind: AskKind): boolean
  /** How long the upstream may take to begin without being late; undefined while nothing is known. */
  usualMs(kind: AskKind): number | undefined
  /** Wanted bytes a millisecond while readers wait; undefined while nothing is known. */
  rate(kind: AskKind): number | undefined
  /** How long the upstream would take for so many bytes if it were asked now: with guesses for the unknown. */
  expectedMs(kind: AskKind, bytes: number): number
  /** How long a question would wait for its slot now. */
  readonly waitMs: number
  /** Answers of the upstream came late just now: more is asked of it than it can do. */
  readonly isCrowded: boolean
  /** For how long the upstream has owed answers without giving any to any client. */
  readonly silentMs: number
  /** Whether this was looked for lately and not found. */
  isDoubted(key: string): boolean
  /**
   * A slot to ask from, as soon as there is one. Rejects: `overloaded` when there is none in time, `unavailable` when
   * the upstream went out meanwhile, or with the reason of `signal`.
   */
  enter(want: AskRequest, signal: AbortSignal): Promise<Ask>
  /** The upstream failed at something that was no question of a race. */
  brokeOff(error: unknown): void
  probed(report: ProbeReport): void
  /** A probe that began then did not get through. */
  unreachable(error: unknown, beganAt: number): void
  /** When the upstream should be probed before its turn: `look` is called when that may have changed. */
  readonly lookInMs: number
  /** The returned function takes `look` back: while one gateway takes over from another, both probe. */
  onSuspicion(look: () => void): () => void
  /**
   * The upstream is part of this pool until the returned function is called, and may be part of others. The newest
   * pool sets its patience.
   */
  join(others: Others): () => void
  readonly counts: Readonly<Record<UpstreamCount, number>>
  /** How long its questions took, and how many proved bytes they brought. */
  readonly measured: UpstreamMeasured
  /** What it is out for, or was last, and what it last did wrong: for the operator. */
  readonly told: Told
  /** The questions that it has not answered yet. */
  readonly pending: number
  readonly budget: UpstreamAdmission['budget']
}

export type Others = {
  /** Whether another upstream could be asked instead. */
  readonly hasOthers: () => boolean
  /** How long a question waits for its slot and the answer. */
  readonly patienceMs?: number
}

export type UpstreamHealthOptions = {
  readonly name: string
  readonly clock: Clock
  /** Shared with all that takes turns on this loop. */
  readonly turns: LoopTurns
  readonly log: Log
  readonly connections?: number | undefined
  readonly perMinute?: number | undefined
  readonly perCidPerMinute?: number | undefined
  /** How long a question waits for its slot and the answer, unless its pool says something else. */
  readonly patienceMs?: number | undefined
  readonly random?: (() => number) | undefined
}

const usualBytes = { block: 256 * 1024, dag: 1024 * 1024 } as const
const defaultConnections = 32
const defaultPatienceMs = 4_000
const connectionsThatSlow = 32
const lateLeastMs = 250
const longOutMs = 60_000
const lateUnknownMs = 1_000

export function createUpstreamHealth(options: UpstreamHealthOptions): UpstreamHealth {
  const { name, clock, turns, log, connections = defaultConnections } = options
  const joined = new Set<Others>()
  const hasOthers = () => [...joined].some((others) => others.hasOthers())
  const patienceMs = () => [...joined].at(-1)?.patienceMs ?? options.patienceMs ?? defaultPatienceMs
  const work = { block: createPerformance(clock), dag: createPerformance(clock) }
  const health = createHealth({ name, clock, log, random: options.random })
  const window = createWindow(connections, clock)
  const counts = { asked: 0, won: 0, notFound: 0, throttled: 0, failed: 0, falseBytes: 0, lost: 0 }
  const measured = createMeasured()
  const probeSchedule = createProbeSchedule({ clock, health, isQueuedFor: () => admission.queued > 0 })
  const { suspect } = probeSchedule

  const lateMs = () => Math.max(lateLeastMs, work.dag.usualMs ?? work.block.usualMs ?? lateUnknownMs)
  const admission = createUpstreamAdmission({
    name,
    clock,
    turns,
    health,
    window,
    connections,
    patienceMs,
    perMinute: options.perMinute,
    perCidPerMinute: options.perCidPerMinute,
    lateMs,
    onStuck: suspect,
    onWanted: suspect,
    isProbed: () => probeSchedule.areOn && !results.failsProbes,
  })

  const coolsInTime = () => health.state === 'cooling-down' && (health.untilMs ?? 0) < patienceMs()
  const isRestingBriefly = () => health.state === 'resting' && health.outMs < briefRestMs

  /** Runs `judge`, and acts on a change of the state. */
  function judged(judge: () => void): void {
    const before = health.state
    judge()
    const { state } = health
    if (state === before) return
    if (state === 'resting') {
      window.close()
      admission.setAside()
      probeSchedule.rested()
    }
    // A request that waits for an upstream that has just gone to rest waits for the next probe, if no other can be asked.
    if (state !== 'ready' && (state !== 'resting' || hasOthers())) admission.turnAway(clock.monotonic())
    admission.look()
    if (state === 'resting') probeSchedule.changed()
  }

  const results = createProbeResults({
    ...{ clock, health, probeSchedule, window, counts, judged },
    work: Object.values(work),
    admission: () => admission,
  })
  const questions = createQuestions({ clock, work, window, health, counts, measured, judged, suspect })

  return {
    counts,
    measured,
    told: health.told,
    get pending() {
      return questions.pending
    },
    get budget() {
      return admission.budget
    },
    state(key) {
      const { state, untilMs } = health
      if (state !== 'ready') return { state, untilMs }
      const falsifiedMs = questions.falsifiedMs(key)
      if (falsifiedMs > 0) return { state: 'quarantined', untilMs: falsifiedMs }
      const budgetMs = admission.budgetMs(key)
      return budgetMs > patienceMs() ? { state: 'over-budget', untilMs: budgetMs } : { state, untilMs: 0 }
    },
    get isRestingBriefly() {
      return isRestingBriefly()
    },
    isBackSince: (at) => health.state === 'ready' && Math.max(questions.answeredAt, results.foundWellAt) > at,
    get coolsInTime() {
      return coolsInTime()
    },
    get triesInMs() {
      return admission.triesInMs
    },
    get isOutBriefly() {
      return health.state === 'cooling-down' || (health.state === 'resting' && health.outMs < longOutMs)
    },
    get mayComeBack() {
      return coolsInTime() || (probeSchedule.areOn && (health.state === 'ready' || isRestingBriefly()))
    },
    waitedFor: probeSchedule.waitedFor,
    load(kind) {
      const cost = Math.max(work[kind].costMs(usualBytes[kind]), questions.silentMs)
      return cost * (1 + questions.pending / connectionsThatSlow) + questions.lackCostMs + admission.waitMs
    },
    isUntried: (kind) => work[kind].isUntried,
    usualMs: (kind) => work[kind].usualMs,
    rate: (kind) => work[kind].rate,
    expectedMs: (kind, bytes) => Math.max(work[kind].expectedMs(bytes), questions.silentMs) + admission.waitMs,
    get waitMs() {
      return admission.waitMs
    },
    get isCrowded() {
      return window.isCrowded
    },
    get silentMs() {
      return questions.silentMs
    },
    isDoubted: questions.isDoubted,
    async enter(want, signal) {
      return questions.begin(want.kind, want.key, await admission.enter(want, signal))
    },
    brokeOff: questions.brokeOff,
    probed: results.probed,
    unreachable: results.unreachable,
    get lookInMs() {
      return probeSchedule.inMs
    },
    onSuspicion: probeSchedule.onSuspicion,
    join(others) {
      joined.add(others)
      return () => joined.delete(others)
    },
  }
}
