// When what waits in the queue before a slow tier is written: not while the tier is passed over, not soon again under the same
// key, and behind the one who reads. What comes in now comes in for a reader, and writing takes processor time from it.
import type { Clock } from '../../../core/clock.ts'

export type WriteScheduleOptions = {
  readonly clock: Clock
  readonly atOnce: number
  /** The same key is not written again sooner. */
  readonly rewriteMs: number
  /**
   * What waits has time: a tier elsewhere is brought a little at a time. A tier of this machine is left alone for
   * moments.
   */
  readonly hasTime: boolean
}

export interface WriteSchedule {
  /** So many bytes came into the queue. */
  arrived(bytes: number): void
  /** The queue is empty, and nothing is being written. */
  idle(): void
  written(key: string): void
  /** The tier is passed over for so long. */
  pause(ms: number): void
  forget(key: string): void
  notBefore(key: string): number
  /** How many may be written at once now, and if none: from when on. `isFilling`: the queue has not much room left. */
  now(isFilling: boolean): { readonly most: number; readonly from: number }
}

const mostRemembered = 4096
const calmMs = 2000
const calmAtOnce = 4
// More than this at once comes for a reader: it is written when nothing came for a moment, or that has gone on for long, or
// the queue is getting full.
const burstBytes = 256 * 1024
const soon = { quietMs: 50, mostMs: 1000 } as const
// For what has time. Beyond the room of the queue it waits by name, and is read again from memory, which has this much by default.
const patient = { quietMs: 250, mostMs: 3000, mostBytes: 64 * 1024 * 1024 } as const

export function createWriteSchedule({ clock, atOnce, rewriteMs, hasTime }: WriteScheduleOptions): WriteSchedule {
  const { quietMs, mostMs } = hasTime ? patient : soon
  const lastWrites = new Map<string, number>()
  let busySince = clock.monotonic()
  let pausedUntil = Number.NEGATIVE_INFINITY
  let lastArrival = Number.NEGATIVE_INFINITY
  let burst = 0

  function quietFrom(now: number, isFilling: boolean): number {
    const hasRoom = hasTime ? burst < patient.mostBytes : !isFilling
    const isHeld = burst > burstBytes && now - busySince < mostMs && hasRoom
    return isHeld ? lastArrival + quietMs : now
  }

  return {
    arrived(bytes) {
      const now = clock.monotonic()
      burst = now - lastArrival > quietMs ? bytes : burst + bytes
      lastArrival = now
    },
    idle() {
      busySince = clock.monotonic()
    },
    written(key) {
      pausedUntil = Number.NEGATIVE_INFINITY
      if (rewriteMs === 0) return
      lastWrites.delete(key)
      lastWrites.set(key, clock.monotonic())
      for (const [oldest] of lastWrites) {
        if (lastWrites.size <= mostRemembered) break
        lastWrites.delete(oldest)
      }
    },
    pause(ms) {
      pausedUntil = clock.monotonic() + ms
    },
    forget(key) {
      lastWrites.delete(key)
    },
    notBefore: (key) => (lastWrites.get(key) ?? Number.NEGATIVE_INFINITY) + rewriteMs,
    now(isFilling) {
      const now = clock.monotonic()
      const from = Math.max(pausedUntil, quietFrom(now, isFilling))
      if (from > now) return { most: 0, from }
      // After a pause one goes ahead of the others.
      if (pausedUntil > Number.NEGATIVE_INFINITY) return { most: 1, from }
      const isCalm = now - busySince < calmMs || (burst > burstBytes && now - lastArrival < quietMs)
      return { most: hasTime && isCalm ? Math.min(atOnce, calmAtOnce) : atOnce, from }
    },
  }
}
