// The questions that are under way at one upstream, and what it teaches how each of them ends: how quick it is, whether it
// has what it is asked for, and whether it is well.
import type { Clock } from '../../core/clock.ts'
import { createHistogram, type Histogram } from '../../observe/histogram.ts'
import { createLastFew, type LastFew } from '../last-few.ts'
import type { Slot } from '../upstreams/slots.ts'
import type { Stop } from '../upstreams/stop.ts'
import type { Window } from '../upstreams/window.ts'
import { type Blame, blameFor, kindOf } from './blame.ts'
import { createDoubts } from './doubts.ts'
import type { Health } from './health.ts'
import { createHits } from './hits.ts'
import type { Performance } from './performance.ts'

export type AskKind = 'block' | 'dag'

export type UpstreamCount = 'asked' | 'won' | 'notFound' | 'throttled' | 'failed' | 'falseBytes' | 'lost'

/** For the operator alone. `recent`: milliseconds to the first byte of the last answers. */
export type UpstreamMeasured = {
  readonly firstByte: Histogram
  readonly duration: Histogram
  readonly recent: LastFew
  bytes: number
}

const recentAnswers = 64

export const createMeasured = (): UpstreamMeasured => ({
  firstByte: createHistogram(),
  duration: createHistogram(),
  recent: createLastFew(recentAnswers),
  bytes: 0,
})

/** One question under way; exactly one of the endings is called. */
export interface Ask {
  /** Stopped when its slot is needed for others, because it has taken long already. */
  readonly letGoBy: Stop
  /** The question takes long, and the upstream has answered others meanwhile. */
  isOvertaken(): boolean
  /** Wanted bytes came, for which readers waited this long since the last ones. The first tell how quick it begins. */
  brought(bytes: number, waitedMs: number): void
  /** The upstream gave all that it was asked for. */
  done(): void
  /** Given up without having failed: others brought enough, or it fell behind what it usually does. */
  letGo(why: 'enough' | 'behind'): void
  /**
   * A failure that may be no fault of the upstream (no upstream has the CID) does not count yet: call the returned function
   * when another one turns out to have it.
   */
  failed(error: unknown): (() => void) | undefined
}

export interface Questions {
  begin(kind: AskKind, key: string, slot: Slot): Ask
  /** The upstream failed at something that was no question of a race. */
  brokeOff(error: unknown): void
  readonly pending: number
  /** When the upstream last answered any client. */
  readonly answeredAt: number
  /** For how long the upstream has owed answers without giving any to any client. */
  readonly silentMs: number
  /** Whether this was looked for lately and not found. */
  isDoubted(key: string): boolean
  /** How long other upstreams have to be asked for this key, because this one sent false bytes; 0: it may be asked. */
  falsifiedMs(key: string): number
  /** The time that misses of this upstream add to a question, on average. */
  readonly lackCostMs: number
}

const doubtedMs = 600_000
const falsifiedMs = 60_000
// Falling behind others is less than giving out: the others may just have been very quick.
const behindWeight = 0.3

type Deps = {
  readonly clock: Clock
  readonly work: Readonly<Record<AskKind, Performance>>
  readonly window: Window
  readonly health: Health
  readonly counts: Record<UpstreamCount, number>
  readonly measured: UpstreamMeasured
  /** Tells its health something, and acts on what follows. */
  readonly judged: (judge: () => void) => void
  readonly suspect: () => void
}

/** Notes the failure of a question that began then. */
function blame(
  { work, window, health, counts, judged, suspect }: Deps,
  { kind, at, lacks, answeredAt }: { kind: AskKind; at: number; lacks: () => void; answeredAt: () => number },
): Blame {
  return {
    count: (what) => counts[what]++,
    answered: () => judged(() => health.answered(at)),
    lacks,
    throttled(failure) {
      window.failed(at)
      judged(() => health.throttled(failure, at))
    },
    lied: () => judged(health.lied),
    failed(error) {
      work[kind].gaveOut(1)
      judged(() => health.failed(error, at))
      window.failed(at)
      suspect()
    },
    gaveOut: () => work[kind].gaveOut(1),
    // If it has given no answer to any client since, a probe will tell.
    wondered: () => answeredAt() < at && suspect(),
  }
}

export function createQuestions(deps: Deps): Questions {
  const { clock, work, window, health, counts, measured, judged } = deps
  const hits = createHits()
  const doubts = createDoubts(clock, doubtedMs)
  // Of these it sent something else: another one has to answer.
  const falsified = createDoubts(clock, falsifiedMs)
  const unanswered = new Set<{ readonly at: number }>() // the oldest first
  let pending = 0
  let answeredAt = Number.NEGATIVE_INFINITY
  const lesson = (kind: AskKind, at: number) =>
    blame(deps, { kind, at, lacks: hits.lacks, answeredAt: () => answeredAt })

  function begin(kind: AskKind, key: string, slot: Slot): Ask {
    const { at } = slot
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
      measured.duration.observe((clock.monotonic() - at) / 1000)
      unanswered.delete(question)
      performance.ended()
      slot.leave()
    }
    return {
      letGoBy: slot.letGo,
      isOvertaken: slot.isOvertaken,
      brought(bytes, waitedMs) {
        measured.bytes += bytes
        if (isBegun) return performance.moved(bytes, waitedMs)
        if (bytes === 0) return
        isBegun = true
        answered()
        slot.answered()
        const ms = answeredAt - at
        performance.began(ms)
        measured.firstByte.observe(ms / 1000)
        measured.recent.add(ms)
        window.answered(ms, at, slot.wasFull)
        judged(() => health.answered(at))
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
        const isLetGo = slot.letGo.isStopped
        if (!isBegun && (what === 'not-found' || what === 'timeout' || isLetGo)) doubts.add(key)
        if (what === 'false-bytes') falsified.add(key)
        if (what === 'not-found') hits.saidNo(ms)
        if (what !== 'timeout' && what !== 'cancelled' && what !== 'overloaded' && !isLetGo) answered()
        if (what === 'not-found' || what === 'refused') slot.answered()
        if (isLetGo) {
          counts.lost++
          return void end()
        }
        const later = blameFor(error, isBegun, lesson(kind, at))
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
    begin,
    brokeOff(error) {
      blameFor(error, false, lesson('block', clock.monotonic()))
    },
    get pending() {
      return pending
    },
    get answeredAt() {
      return answeredAt
    },
    get silentMs() {
      // Questions are in the order in which they began: those before the newest answer say nothing.
      for (const { at } of unanswered) if (at >= answeredAt) return clock.monotonic() - at
      return 0
    },
    isDoubted: doubts.has,
    falsifiedMs: (key) => (falsified.has(key) ? falsified.leftMs(key) : 0),
    get lackCostMs() {
      return hits.costMs
    },
  }
}
