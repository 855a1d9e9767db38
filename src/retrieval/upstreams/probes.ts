// Probes each upstream at start and on a schedule, so that requests need not find out what it can
// do; soon after it failed or fell silent, and often while it is unhealthy, so that it is out no
// longer than it has to be.
import { type Clock, onceLate } from '../../core/clock.ts'
import { cancelled, Failure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { minuteMs, stalledMs } from './estimates.ts'
import type { Member, Pool } from './pool.ts'
import { probesApartMs } from './upstream-health.ts'

export interface Probes {
  close(): void
}

export function startProbes(options: {
  readonly pool: Pool
  /** The interval while it is well. 0: only after failures. */
  readonly everyMs: number
  readonly clock: Clock
  readonly log: Log
}): Probes {
  const { pool, clock, log } = options
  const everyMs = options.everyMs || Number.POSITIVE_INFINITY
  const closing = cancelled('the gateway is closing')

  function watch({ upstream, health }: Member): () => void {
    let probedAt = Number.NEGATIVE_INFINITY
    let dueAt = Number.POSITIVE_INFINITY
    let own: AbortController | undefined
    let stopTimer: (() => void) | undefined
    let isClosed = false

    /** A suspicion during a probe is answered by that. */
    function probeAt(at: number): void {
      if (isClosed || own || at >= dueAt) return
      stopTimer?.()
      dueAt = at
      const ms = at - clock.monotonic()
      if (ms <= 0) void probe()
      else stopTimer = clock.after(ms, () => void probe())
    }

    async function probe(): Promise<void> {
      const running = new AbortController()
      own = running
      const beganAt = clock.monotonic()
      const typicalMs = health.typicalMs('dag') ?? health.typicalMs('block') ?? pool.timeoutMs
      // No client would wait longer.
      const timeoutMs = Math.min(pool.timeoutMs, Math.max(stalledMs, typicalMs * 4))
      const stop = onceLate(clock, timeoutMs, () =>
        running.abort(new Failure('timeout', `${upstream.name} did not answer its probe`, { source: 'upstream' })),
      )
      let isWell = false
      try {
        const report = await upstream.probe(running.signal)
        isWell = report.usable
        health.probed(report)
        log('debug', 'upstream.probed', { upstream: upstream.name, ...report })
      } catch (error) {
        if (!isClosed) health.unreachable(error, beganAt)
      } finally {
        stop()
      }
      own = undefined
      dueAt = Number.POSITIVE_INFINITY
      probedAt = clock.monotonic()
      const isUnhealthy = health.state('').state === 'unhealthy'
      const apartMs = isUnhealthy ? Math.min(minuteMs, probesApartMs + health.outMs / 10) : minuteMs
      probeAt(probedAt + (isWell ? everyMs : Math.min(everyMs, apartMs)))
    }

    const forget = health.onProbeWanted(() => probeAt(Math.max(clock.monotonic(), probedAt + probesApartMs)))
    if (everyMs < Number.POSITIVE_INFINITY) probeAt(clock.monotonic())
    return () => {
      isClosed = true
      forget()
      stopTimer?.()
      own?.abort(closing)
    }
  }

  const stops = pool.members.map(watch)
  return {
    close() {
      for (const stop of stops) stop()
    },
  }
}
