// Logs the state of the gateway periodically, so that the log shows later which upstream was slow
// or sent wrong bytes, how full each tier was, and what was pending.
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import type { Provider, Status, Tier, Times, Upstream } from './dashboard/shape.ts'

export type StateLogOptions = {
  readonly read: () => Promise<Status>
  /** 0 means never. */
  readonly everyMs: number
  readonly clock: Clock
  readonly log: Log
}

export interface StateLog {
  close(): void
}

export function startStateLog({ read, everyMs, clock, log }: StateLogOptions): StateLog {
  let isClosed = false
  let cancel = everyMs > 0 ? again() : undefined

  function again(): () => void {
    return clock.after(everyMs, () => {
      write().catch((error: unknown) => log('error', 'gateway.state-failed', { error: String(error) }))
      cancel = again()
    })
  }

  async function write(): Promise<void> {
    const { ready, requests, hot, disk, journal, pins, ...told } = await read()
    if (isClosed) return
    log('info', 'gateway.state', {
      ready,
      requests: requests.total,
      byStatus: requests.byStatus,
      bySource: requests.bySource,
      hotBytes: hot.bytes,
      tiers: told.tiers.map(tierOf),
      upstreams: told.upstreams.map(upstreamOf),
      providers: told.providers.map(providerOf),
      waiting: journal.open,
      ...(journal.oldestAt !== undefined && { oldestWaiting: new Date(journal.oldestAt).toISOString() }),
      ...(pins?.pins !== undefined && { pins: pins.pins }),
      ...(disk && { freeBytes: disk.freeBytes }),
    })
  }

  return {
    close() {
      isClosed = true
      cancel?.()
    },
  }
}

/** Milliseconds. */
const rounded = ({ p50Ms, p95Ms }: Times) => ({
  ...(p50Ms !== undefined && { p50: Math.round(p50Ms) }),
  ...(p95Ms !== undefined && { p95: Math.round(p95Ms) }),
})

const tierOf = ({ name: tier, bytes, limitBytes, hits, misses, outages, corrupt, isDown, reads }: Tier) => ({
  ...{ tier, bytes, limitBytes, hits, misses, outages, corrupt, isDown },
  ...rounded(reads),
})

const upstreamOf = ({ name: upstream, state, why, asked, won, failed, hashMismatch, firstByte }: Upstream) => ({
  ...{ upstream, state, why, asked, won, failed, hashMismatch },
  ...rounded(firstByte),
})

const providerOf = ({ name: provider, ok, why, pinned, waiting }: Provider) => ({ provider, ok, why, pinned, waiting })
