// What a probe of an upstream told: whether it can be used, is there at all, or is there and ill. What it brought to clients
// just now says more than a probe.
import type { ProbeReport } from '../../../backends/upstreams/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { isFailure } from '../../core/failure.ts'
import type { UpstreamAdmission } from '../upstreams/admission.ts'
import type { Window } from '../upstreams/window.ts'
import type { Health } from './health.ts'
import type { Performance } from './performance.ts'
import type { ProbeSchedule } from './probe-schedule.ts'

export interface ProbeResults {
  probed(report: ProbeReport): void
  unreachable(error: unknown, beganAt: number): void
  readonly foundWellAt: number
  /**
   * The upstream answers, and fails at what a probe asks for: only a client's question tells whether it can do its
   * work.
   */
  readonly failsProbes: boolean
}

const probeAnswers = 2
export const briefRestMs = 10_000
const briefWaitMs = 2_000

export function createProbeResults(options: {
  readonly clock: Clock
  readonly health: Health
  readonly probeSchedule: ProbeSchedule
  readonly window: Window
  readonly work: readonly Performance[]
  readonly admission: () => Pick<UpstreamAdmission, 'alive' | 'turnAway'>
  readonly counts: { asked: number; falseBytes: number; throttled: number }
  /** Judges its health, and does what follows. */
  readonly judged: (judge: () => void) => void
}): ProbeResults {
  const { clock, health, probeSchedule, window, work, admission, counts, judged } = options
  let foundWellAt = Number.NEGATIVE_INFINITY
  let failsProbes = false

  /** A probe is counted where the upstream is out for what it answered: who reads the counters finds out why. */
  function count(what: 'falseBytes' | 'throttled'): void {
    counts.asked++
    counts[what]++
  }

  return {
    get foundWellAt() {
      return foundWellAt
    },
    get failsProbes() {
      return failsProbes
    },
    probed(report) {
      failsProbes = false
      const now = clock.monotonic()
      probeSchedule.made()
      if (report.lied) count('falseBytes')
      if (report.usable) window.open()
      judged(() => health.looked(report.usable, report.findings))
      if (!report.usable) return
      foundWellAt = now
      // A probe of a gateway that can do both asks two questions, one after the other.
      for (const performance of work) performance.probed(report.car ? report.ms / 2 : report.ms)
      admission().alive(now - report.ms, probeAnswers)
    },
    unreachable(error, beganAt) {
      probeSchedule.made()
      const isThrottled = isFailure(error, 'throttled')
      const isAnswer = isThrottled || (isFailure(error, 'broken') && error.facts.isIll === true)
      if (isAnswer && health.state === 'ready' && health.isProven) return
      failsProbes = isAnswer
      if (isThrottled) {
        count('throttled')
        return judged(() => health.throttled(error, beganAt))
      }
      judged(() => health.unreachable(error))
      probeSchedule.rested()
      // The upstream may be back in a moment: a client that came just now waits for the next probe.
      const isBrief = health.outMs < briefRestMs
      admission().turnAway(isBrief ? Math.min(beganAt, clock.monotonic() - briefWaitMs) : beganAt)
    },
  }
}
