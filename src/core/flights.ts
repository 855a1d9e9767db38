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
  /** The work is over: the next `join` of this key starts anew. Only the flight that holds `work` is ended. */
  land(key: string, work: T): void
  /** The work of a flight in the air, without joining it. */
  peek(key: string): T | undefined
  readonly size: number
  /** Aborts everything in the air. */
  close(): void
}

type RunningFlight<T> = { readonly work: T; readonly controller: AbortController; passengers: number; kept: boolean }

export function createFlights<T>(): Flights<T> {
  const flights = new Map<string, RunningFlight<T>>()
  // Made once: most flights are left when their work is over, and that happens several times for each miss.
  const unwanted = cancelled('no caller waits for it any more')

  function board(key: string, entry: RunningFlight<T>): Flight<T> {
    let aboard = true
    entry.passengers++
    return {
      work: entry.work,
      leave(options) {
        if (!aboard) return
        aboard = false
        entry.passengers--
        if (options?.keep) entry.kept = true
        if (entry.passengers > 0 || entry.kept) return
        if (flights.get(key) === entry) flights.delete(key)
        entry.controller.abort(unwanted)
      },
    }
  }

  return {
    join(key, start) {
      const running = flights.get(key)
      if (running) return board(key, running)
      const controller = new AbortController()
      const entry: RunningFlight<T> = { work: start(controller.signal), controller, passengers: 0, kept: false }
      flights.set(key, entry)
      return board(key, entry)
    },
    land(key, work) {
      if (flights.get(key)?.work === work) flights.delete(key)
    },
    peek: (key) => flights.get(key)?.work,
    get size() {
      return flights.size
    },
    close() {
      for (const entry of flights.values()) entry.controller.abort(cancelled('the gateway is closing'))
      flights.clear()
    },
  }
}
