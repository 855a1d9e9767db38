// How many requests this machine can have in progress while its event loop keeps up. A loop that is late makes every client
// wait, those of hot answers too: then fewer cold requests are let in, step by step, and more again when it is in time.
import type { Clock } from '../../core/clock.ts'

export interface LearnedRoom {
  /** The most requests in progress now. */
  most(): number
}

export type LearnedRoomOptions = {
  readonly most: number
  /** How many requests are in progress. */
  readonly inFlight: () => number
  /** How late the loop may be. 0: as late as it likes. */
  readonly lateMs: number
  readonly clock: Clock
}

/** So many are let in however late the loop is: few requests are not what holds it up. */
export const leastRoom = 128

const everyMs = 50
// One long turn may be a collection of garbage: so many late looks, one behind the other, are a load.
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
    // No timer runs while there is little to do and the room is as large as it was.
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
