// One piece of work for all callers that want the same thing at the same time (singleflight). A flight runs on its own
// signal: a caller that leaves does not stop it; the last one that leaves aborts it, unless the work is to be kept.
import { cancelled } from './failure.ts'

export interface Flight<T> {
  readonly work: T
  /** `keep`: this caller's time is over, but it still wants the result in the tiers, so the work goes on. */
  leave(options?: { readonly keep?: boolean }): void
}

export interface Flights<T> {
  /** Joins the flight of `key`, or starts it: `start` gets the signal that aborts when the last caller leaves. */
  join(key: string, start: (signal: AbortSignal) => T): Flight<T>
  /**
   * The next `join` of this key starts anew. Only the flight that holds `work` is ended. `isOver`: nothing is left that the last
   * caller to leave would have to stop.
   */
  land(key: string, work: T, isOver?: boolean): void
  /** The work of a flight in the air, without joining it. */
  peek(key: string): T | undefined
  readonly size: number
  /** Aborts everything in the air. */
  close(): void
}

type RunningFlight<T> = {
  work: T | undefined
  controller: AbortController | undefined
  passengers: number
  kept: boolean
  isOver: boolean
}

/**
 * A Map that grows or shrinks leaves its old table behind, which leads to the next one: once such a table is old itself, all that
 * lay in the tables outlives each collection of young memory. So an entry that was left holds nothing.
 */
function empty(entry: RunningFlight<unknown>): void {
  entry.work = undefined
  entry.controller = undefined
}

export function createFlights<T>(): Flights<T> {
  const flights = new Map<string, RunningFlight<T>>()
  // Made once: most flights are left when their work is over, and that happens several times for each miss.
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
    join(key, start) {
      const running = flights.get(key)
      if (running) return board(key, running, running.work as T)
      const controller = new AbortController()
      const work = start(controller.signal)
      const entry: RunningFlight<T> = { work, controller, passengers: 0, kept: false, isOver: false }
      flights.set(key, entry)
      return board(key, entry, work)
    },
    land(key, work, isOver = false) {
      const entry = flights.get(key)
      if (entry?.work !== work) return
      entry.isOver = isOver
      flights.delete(key)
    },
    peek: (key) => flights.get(key)?.work,
    get size() {
      return flights.size
    },
    close() {
      for (const entry of flights.values()) entry.controller?.abort(cancelled('the gateway is closing'))
      flights.clear()
    },
  }
}
