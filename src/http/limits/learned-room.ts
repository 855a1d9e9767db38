// An adaptive concurrency limit that follows event-loop delay. A late loop delays all clients,
// including those of cached responses: the limit then shrinks step by step, and grows again when
// the loop is in time.
import type { Clock } from '../../core/clock.ts'

export interface LearnedRoom {
  /** The current limit of concurrent requests. */
  most(): number
}

export type LearnedRoomOptions = {
  readonly most: number
  /** The number of requests in progress. */
  readonly inFlight: () => number
  /** The maximum event-loop delay; 0 disables the limit. */
  readonly lateMs: number
  readonly clock: Clock
}

/** The minimum of the limit: so few requests are not what delays the loop. */
export const leastRoom = 128

const everyMs = 50
// A single delay may be garbage collection; this many in a row are load.
const lateLooks = 3
const shrink = 0.7
const grow = 1.03

export function createLearnedRoom({ most, inFlight, lateMs, clock }: LearnedRoomOptions): LearnedRoom {
  const least = Math.min(most, leastRoom)
  let room = most
  let isWatched = false
  let late = 0

  function look(dueAt: number): void {
    if (clock.monotonic() - dueAt >= lateMs) {
      if (++late >= lateLooks) room = Math.max(least, Math.floor(Math.min(room, inFlight()) * shrink))
    } else {
      late = 0
      room = Math.min(most, Math.ceil(room * grow))
    }
    // The timer stops when there are few requests and the limit is at its maximum.
    if (room < most || inFlight() >= least) watch()
    else isWatched = false
  }

  function watch(): void {
    isWatched = true
    const dueAt = clock.monotonic() + everyMs
    clock.after(everyMs, () => look(dueAt))
  }

  return {
    most() {
      if (!isWatched && lateMs > 0 && inFlight() >= least) {
        late = 0
        watch()
      }
      return room
    },
  }
}
