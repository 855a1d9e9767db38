// Looks at each upstream at start and on a schedule, so that requests need not find out what it can do. One that is not
// usable is looked at again soon, then less and less often.
import type { Clock } from '../clock.ts'
import { cancelled, Failure } from '../failure.ts'
import type { Log } from '../observe/log.ts'
import { watch } from '../watch.ts'
import type { Member, Pool } from './pool.ts'

const probeTimeoutMs = 10_000

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
  const { pool, everyMs, clock, log, random } = options
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

  if (everyMs > 0) {
    for (const member of pool.members) {
      watch({ everyMs, clock, signal: closing.signal, look: () => probe(member), ...(random && { random }) }).catch(
        (error: unknown) => {
          if (!closing.signal.aborted)
            log('error', 'probe.broke', { upstream: member.upstream.name, error: String(error) })
        },
      )
    }
  }
  return { close: () => closing.abort(cancelled('the gateway is closing')) }
}
