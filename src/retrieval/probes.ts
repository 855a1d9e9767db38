// Looks at each upstream at start and on a schedule, so that requests need not find out what it can do. One that is not
// usable is looked at again soon, then less and less often.
import type { Clock } from '../clock.ts'
import { cancelled, Failure } from '../failure.ts'
import type { Log } from '../observe/log.ts'
import type { Member, Pool } from './pool.ts'

const probeTimeoutMs = 10_000
const firstRetryMs = 5_000

export interface Probes {
  close(): void
}

export function startProbes(options: {
  readonly pool: Pool
  readonly everyMs: number
  readonly clock: Clock
  readonly log: Log
  readonly random?: () => number
}): Probes {
  const { pool, everyMs, clock, log, random = Math.random } = options
  const closing = new AbortController()

  async function probe({ upstream, standing }: Member): Promise<boolean> {
    const own = new AbortController()
    const stop = clock.after(probeTimeoutMs, () =>
      own.abort(new Failure('timeout', `${upstream.name} did not answer its probe`, { source: 'upstream' })),
    )
    const leave = () => own.abort(closing.signal.reason)
    closing.signal.addEventListener('abort', leave, { once: true })
    try {
      const report = await upstream.probe(own.signal)
      standing.probed(report)
      log('debug', 'upstream.probed', { upstream: upstream.name, ...report })
      return report.usable
    } catch (error) {
      if (closing.signal.aborted) return false
      standing.unreachable(error)
      return false
    } finally {
      stop()
      closing.signal.removeEventListener('abort', leave)
    }
  }

  async function watch(member: Member): Promise<void> {
    let retryMs = firstRetryMs
    while (!closing.signal.aborted) {
      const usable = await probe(member)
      const waitMs = usable ? everyMs : Math.min(retryMs, everyMs)
      retryMs = usable ? firstRetryMs : retryMs * 2
      await clock.sleep(waitMs * (1 + 0.1 * random()), closing.signal)
    }
  }

  if (everyMs > 0) {
    for (const member of pool.members) {
      watch(member).catch((error: unknown) => {
        if (!closing.signal.aborted)
          log('error', 'probe.broke', { upstream: member.upstream.name, error: String(error) })
      })
    }
  }
  return { close: () => closing.abort(cancelled('the gateway is closing')) }
}
