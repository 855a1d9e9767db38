// Looks at each upstream at start and on a schedule, so that requests need not find out what it can do; and soon and
// often at one that failed, so that it is out no longer than it has to be.
import { type Clock, onceLate } from '../../core/clock.ts'
import { cancelled, Failure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { Health } from './health.ts'
import type { Member, Pool } from './pool.ts'

const mostProbeMs = 10_000
// An upstream that is suspected of being gone has to answer sooner.
const leastSuspectedMs = 1_000
const suspectedTimes = 4
const firstRetryMs = 5_000
const mostRetryMs = 600_000
const jitter = 0.1
const longestTimerMs = 2 ** 31 - 1

export interface Probes {
  close(): void
}

export function startProbes(options: {
  readonly pool: Pool
  /** How often all is looked at while it is well. 0: only what failed is. */
  readonly everyMs: number
  readonly clock: Clock
  readonly log: Log
  readonly random?: () => number
}): Probes {
  const { pool, everyMs, clock, log, random = Math.random } = options
  const closing = new AbortController()

  async function probe({ upstream, health }: Member, timeoutMs: number): Promise<boolean> {
    const own = new AbortController()
    const beganAt = clock.monotonic()
    const stop = onceLate(clock, timeoutMs, () =>
      own.abort(new Failure('timeout', `${upstream.name} did not answer its probe`, { source: 'upstream' })),
    )
    const leave = () => own.abort(closing.signal.reason)
    closing.signal.addEventListener('abort', leave, { once: true })
    try {
      const report = await upstream.probe(own.signal)
      health.probed(report)
      log('debug', 'upstream.probed', { upstream: upstream.name, ...report })
      return report.usable
    } catch (error) {
      if (!closing.signal.aborted) health.unreachable(error, beganAt)
      return false
    } finally {
      stop()
      closing.signal.removeEventListener('abort', leave)
    }
  }

  async function watch(member: Member): Promise<void> {
    const { health } = member
    let wake = () => {}
    const forget = health.onSuspicion(() => wake())
    closing.signal.addEventListener('abort', forget, { once: true })
    const asleep = (ms: number) =>
      new Promise<void>((resolve, reject) => {
        const stop = clock.after(Math.min(ms, longestTimerMs), () => end(resolve))
        const leave = () => end(() => reject(closing.signal.reason))
        const end = (then: () => void) => {
          stop()
          closing.signal.removeEventListener('abort', leave)
          then()
        }
        wake = () => end(resolve)
        closing.signal.addEventListener('abort', leave, { once: true })
      })
    let dueAt = everyMs > 0 ? clock.monotonic() : Number.POSITIVE_INFINITY
    let retryMs = firstRetryMs
    while (!closing.signal.aborted) {
      const waitMs = Math.min(dueAt - clock.monotonic(), health.lookInMs)
      if (waitMs > 0) {
        await asleep(waitMs)
        continue
      }
      const isSuspected = clock.monotonic() < dueAt
      const usualMs = health.usualMs('dag') ?? health.usualMs('block') ?? 0
      const suspectedMs = Math.min(mostProbeMs, Math.max(leastSuspectedMs, usualMs * suspectedTimes))
      const isWell = await probe(member, isSuspected ? suspectedMs : mostProbeMs)
      const nextMs = isWell ? everyMs || Number.POSITIVE_INFINITY : Math.min(retryMs, everyMs || mostRetryMs)
      retryMs = isWell ? firstRetryMs : retryMs * 2
      dueAt = clock.monotonic() + nextMs * (1 + jitter * random())
    }
  }

  for (const member of pool.members) {
    watch(member).catch((error: unknown) => {
      if (!closing.signal.aborted) log('error', 'probe.error', { upstream: member.upstream.name, error: String(error) })
    })
  }
  return { close: () => closing.abort(cancelled('the gateway is closing')) }
}

// When an upstream is probed before its turn: soon after it failed or fell silent, and often while it rests.

export interface ProbeSchedule {
  /** Whether probes are scheduled at all. */
  readonly areOn: boolean
  /** How long until the next one; Infinity: not before its turn. */
  readonly inMs: number
  /** The answer takes `listener` back. */
  onSuspicion(listener: () => void): () => void
  /** A request that failed at it waits until it is well: for a moment, it is looked at as often as for one in its line. */
  waitedFor(): void
  /** Asks for a probe, but not again and again. */
  suspect(): void
  /** It rests from now on. */
  rested(): void
  /** What decides when the next one is has changed. */
  changed(): void
  /** One was made. */
  made(): void
}

const looksApartMs = 250
// Who waits says so every 200 ms (tries.ts).
const momentMs = 500

export function createProbeSchedule(options: {
  readonly clock: Clock
  readonly health: Health
  /** Requests stand in its line. */
  readonly isQueuedFor: () => boolean
}): ProbeSchedule {
  const { clock, health, isQueuedFor } = options
  const listeners = new Set<() => void>()
  let lookAt = Number.POSITIVE_INFINITY
  let lookedAt = Number.NEGATIVE_INFINITY
  let restLookMs = 0
  let waitedForUntil = Number.NEGATIVE_INFINITY
  const isWaitedFor = () => isQueuedFor() || clock.monotonic() < waitedForUntil

  function changed(): void {
    for (const listener of listeners) listener()
  }

  function rested(): void {
    restLookMs = health.lookAgainMs
  }

  return {
    get areOn() {
      return listeners.size > 0
    },
    get inMs() {
      const now = clock.monotonic()
      const wanted = Math.max(0, lookAt - now)
      if (health.state !== 'unhealthy') return wanted
      const ms = isWaitedFor() ? Math.min(restLookMs, looksApartMs) : restLookMs
      return Math.min(wanted, Math.max(0, lookedAt + ms - now))
    },
    onSuspicion(listener) {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    waitedFor() {
      const wasWaitedFor = isWaitedFor()
      waitedForUntil = clock.monotonic() + momentMs
      if (!wasWaitedFor) changed()
    },
    suspect() {
      const at = Math.max(clock.monotonic(), lookedAt + looksApartMs)
      if (at >= lookAt) return
      lookAt = at
      changed()
    },
    rested,
    changed,
    made() {
      lookedAt = clock.monotonic()
      lookAt = Number.POSITIVE_INFINITY
    },
  }
}
