// Measures how fast an upload arrives, over the last few seconds in which the client could send. Time in which the gateway
// made the client wait does not count. Imports leaves only.
import type { Clock } from '../../core/clock.ts'

export interface UploadRate {
  received(bytes: number): void
  /** Whether the client can send: not while the gateway has no room for more, and not once the whole upload is here. */
  turn(isSenders: boolean): void
  readonly isSenders: boolean
  /** Milliseconds in which the client could send. */
  readonly ms: number

  readonly bytesPerSecond: number
}

const windowMs = 2000

export function createUploadRate(clock: Clock): UploadRate {
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
    get bytesPerSecond() {
      const lasted = before.ms + ms() - window.at
      return lasted > 0 ? ((before.bytes + window.bytes) * 1000) / lasted : 0
    },
  }
}
