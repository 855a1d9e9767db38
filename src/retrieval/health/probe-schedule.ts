// When an upstream is probed before its turn: soon after it failed or fell silent, and often while it rests.
import type { Clock } from '../../core/clock.ts'
import type { Health } from './health.ts'

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
      if (health.state !== 'resting') return wanted
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
