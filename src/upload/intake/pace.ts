// How fast an upload comes in now: over the last few seconds in which its sender could send. Time in which we made it wait
// is not its own. Imports leaves only.
import type { Clock } from '../../core/clock.ts'

export interface Pace {
  received(bytes: number): void
  /** Whether it is the sender's turn: not while we have no room for more, and not once all of it is here. */
  turn(isSenders: boolean): void
  readonly isSenders: boolean
  /** Milliseconds in which it could send. */
  readonly ms: number
  /** Bytes a second. */
  readonly rate: number
}

const windowMs = 2000

export function createPace(clock: Clock): Pace {
  let spent = 0
  let since: number | undefined
  let window = { at: 0, bytes: 0 }
  let before = { ms: 0, bytes: 0 }

  const ms = (): number => spent + (since === undefined ? 0 : clock.monotonic() - since)

  return {
    received(bytes) {
      const now = ms()
      if (now - window.at >= windowMs) {
        before = { ms: now - window.at, bytes: window.bytes }
        window = { at: now, bytes: 0 }
      }
      window.bytes += bytes
    },
    turn(isSenders) {
      spent = ms()
      since = isSenders ? clock.monotonic() : undefined
    },
    get isSenders() {
      return since !== undefined
    },
    get ms() {
      return ms()
    },
    get rate() {
      const lasted = before.ms + ms() - window.at
      return lasted > 0 ? ((before.bytes + window.bytes) * 1000) / lasted : 0
    },
  }
}
