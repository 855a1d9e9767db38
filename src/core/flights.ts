// Request coalescing (single-flight): one piece of work for all callers that want the same thing at
// the same time. A flight has its own signal: a caller that leaves does not stop it; the last one
// aborts it, unless the result is to be kept.
import { cancelled } from './failure.ts'

interface Flight<T> {
  readonly work: T
  /**
   * `keep`: the caller's deadline has passed, but the result should still reach the tiers, so the
   * work goes on.
   */
  leave(options?: { readonly keep?: boolean }): void
}

type RunningFlight<T> = {
  work: T | undefined
  controller: AbortController | undefined
  passengers: number
  kept: boolean
  isOver: boolean
}

/**
 * A Map that grows or shrinks leaves its old table behind, linked to the new one: once such a table
 * is in V8's old generation, everything in the tables survives each young collection. So an entry
 * is emptied when its flight ends.
 */
function empty(entry: RunningFlight<unknown>): void {
  entry.work = undefined
  entry.controller = undefined
}

export function createFlights<T>() {
  const flights = new Map<string, RunningFlight<T>>()
  // Created once, because several flights of each miss end this way.
  const unwanted = cancelled('no caller waits for it any more')

  function board(key: string, entry: RunningFlight<T>, work: T): Flight<T> {
    let aboard = true
    entry.passengers++
    return {
      work,
      leave(options) {
        if (!aboard) return
        aboard = false
        entry.passengers--
        if (options?.keep) entry.kept = true
        if (entry.passengers > 0 || entry.kept) return
        if (flights.get(key) === entry) flights.delete(key)
        if (!entry.isOver) entry.controller?.abort(unwanted)
        empty(entry)
      },
    }
  }

  return {
    /**
     * Joins the flight of `key`, or starts it. `start` gets a signal that aborts when the last caller
     * leaves.
     */
    join(key: string, start: (signal: AbortSignal) => T): Flight<T> {
      const running = flights.get(key)
      if (running) return board(key, running, running.work as T)
      const controller = new AbortController()
      const work = start(controller.signal)
      const entry: RunningFlight<T> = { work, controller, passengers: 0, kept: false, isOver: false }
      flights.set(key, entry)
      return board(key, entry, work)
    },
    /**
     * Ends the flight that holds `work`: the next `join` of this key starts a new one. `isOver`: the
     * work is complete, so the last caller to leave need not abort it.
     */
    land(key: string, work: T, isOver = false): void {
      const entry = flights.get(key)
      if (entry?.work !== work) return
      entry.isOver = isOver
      flights.delete(key)
    },
    /** The work of a running flight, without joining it. */
    peek: (key: string): T | undefined => flights.get(key)?.work,
    get size(): number {
      return flights.size
    },
    /** Aborts all running flights. */
    close(): void {
      for (const entry of flights.values()) entry.controller?.abort(cancelled('the gateway is closing'))
      flights.clear()
    },
  }
}
