// Probes each upstream at start and on a schedule, so that requests need not find out what it can
// do; soon after it failed or fell silent, and often while it is unhealthy, so that it is out no
// longer than it has to be.
import { type Clock, onceLate } from '../../core/clock.ts'
import { cancelled, Failure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { Member, Pool } from './pool.ts'

const maxProbeMs = 10_000
/** An upstream that is suspected of being gone has to answer sooner. */
const minSuspectedMs = 1_000
const firstRetryMs = 5_000
const maxRetryMs = 600_000
const maxTimerMs = 2 ** 31 - 1

export interface Probes {
  close(): void
}

export function startProbes(options: {
  readonly pool: Pool
  /** The interval while it is well. 0: only after failures. */
  readonly everyMs: number
  readonly clock: Clock
  readonly log: Log
  readonly random?: () => number
}): Probes {
  const { pool, everyMs, clock, log, random = Math.random } = options
  const reason = cancelled('the gateway is closing')
  let isClosed = false

  function watch({ upstream, health }: Member): () => void {
    let dueAt = everyMs > 0 ? clock.monotonic() : Number.POSITIVE_INFINITY
    let retryMs = firstRetryMs
    let own: AbortController | undefined
    let stopTimer: (() => void) | undefined

    function schedule(): void {
      stopTimer?.()
      if (own || isClosed) return
      const ms = Math.min(dueAt - clock.monotonic(), health.probeInMs)
      if (ms <= 0) void probe()
      else if (Number.isFinite(ms)) stopTimer = clock.after(Math.min(ms, maxTimerMs), schedule)
    }

    async function probe(): Promise<void> {
      const running = new AbortController()
      own = running
      const beganAt = clock.monotonic()
      const typicalMs = health.typicalMs('dag') ?? health.typicalMs('block') ?? 0
      const timeoutMs = beganAt < dueAt ? Math.min(maxProbeMs, Math.max(minSuspectedMs, typicalMs * 4)) : maxProbeMs
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
      const nextMs = isWell ? everyMs || Number.POSITIVE_INFINITY : Math.min(retryMs, everyMs || maxRetryMs)
      retryMs = isWell ? firstRetryMs : retryMs * 2
      dueAt = clock.monotonic() + nextMs * (1 + random() / 10)
      schedule()
    }

    const forget = health.onSuspicion(schedule)
    schedule()
    return () => {
      forget()
      stopTimer?.()
      own?.abort(reason)
    }
  }

  const stops = pool.members.map(watch)
  return {
    close() {
      isClosed = true
      for (const stop of stops) stop()
    },
  }
}
