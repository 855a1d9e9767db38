// The scheduler of the event loop. Each iteration admits a fixed number of requests, then runs one
// short slice of queued work, first come, first served: traversals whose blocks are all in memory,
// and work that comes due by the thousand in one iteration.
import type { Clock } from '../core/clock.ts'

export type LoopScheduler = ReturnType<typeof createLoopScheduler>

export const beginsEachTurn = 8
export const sliceMs = 5
/** The slice while requests wait to begin: a request takes less time than a traversal. */
export const shortSliceMs = 2

// The maximum that is resumed in one iteration, one by one while its slice lasts.
const maxReleased = 64

/** `later` runs an action in the next iteration, after its socket events. */
export function createLoopScheduler(clock: Clock, later: (action: () => void) => void = setImmediate) {
  const waiting: (() => void)[] = []
  const toBegin = new ClientLine<() => void>()
  let isOpen = false
  let sliceAt = 0
  let begun = 0

  const isOver = (): boolean => clock.monotonic() - sliceAt >= (toBegin.size > 0 ? shortSliceMs : sliceMs)

  function startSlice(): void {
    sliceAt = clock.monotonic()
  }

  function release(): void {
    if (!isOver()) waiting.shift()?.()
  }

  function nextTurn(): void {
    startSlice()
    isOpen = waiting.length > 0 || toBegin.size > 0
    begun = 0
    if (!isOpen) return
    // Queued first, so that the slice of an iteration begins before any work is resumed in it.
    later(nextTurn)
    if (toBegin.size > 0) {
      for (let count = Math.min(toBegin.size, beginsEachTurn); count > 0; count--) later(toBegin.take() as () => void)
      // A request that comes before they are resumed is queued after them.
      begun = beginsEachTurn
      // However long it takes them to begin, those who gave way go on in each turn.
      later(startSlice)
    }
    for (let count = Math.min(waiting.length, maxReleased); count > 0; count--) later(release)
  }

  function open(): void {
    if (isOpen) return
    isOpen = true
    startSlice()
    later(nextTurn)
  }

  /**
   * Resolves in a later iteration that has time left, for work that may come due thousands of times
   * in one.
   */
  const waitTurn = (): Promise<void> => {
    open()
    return new Promise((resolve) => void waiting.push(resolve))
  }

  return {
    /**
     * Undefined: the request may begin now. Otherwise resolves when it may, round-robin by client. A
     * request works in several later iterations, so too many at once would make each of them long.
     */
    begin(client: string): Promise<void> | undefined {
      open()
      if (begun >= beginsEachTurn) return new Promise((resolve) => toBegin.add(resolve, client))
      begun++
      return undefined
    },
    /** Requests that wait to begin. */
    get toBegin() {
      return toBegin.size
    },
    waitTurn,
    /** Undefined while this iteration has time left; otherwise resolves in a later one. */
    yieldIfDue(): Promise<void> | undefined {
      open()
      return isOver() ? waitTurn() : undefined
    },
  }
}

/**
 * A queue in which clients take turns: one of each client goes after the other, each client's own
 * in order.
 */
export class ClientLine<Waiter> {
  readonly #clients = new Map<string, Set<Waiter>>()
  size = 0

  /** The first of the next client. */
  get next(): Waiter | undefined {
    const [waiting] = this.#clients.values()
    return waiting?.values().next().value
  }

  add(waiter: Waiter, client: string): void {
    const waiting = this.#clients.get(client)
    if (waiting) waiting.add(waiter)
    else this.#clients.set(client, new Set([waiter]))
    this.size++
  }

  /** False: it does not stand here any more. */
  delete(waiter: Waiter, client: string): boolean {
    const waiting = this.#clients.get(client)
    if (!waiting?.delete(waiter)) return false
    this.size--
    if (waiting.size === 0) this.#clients.delete(client)
    return true
  }

  /** The others go before this client's next. */
  turn(client: string): void {
    const waiting = this.#clients.get(client)
    if (!waiting || this.#clients.size === 1) return
    this.#clients.delete(client)
    this.#clients.set(client, waiting)
  }

  /** Takes the next one out; the other clients go before the next of its client. */
  take(): Waiter | undefined {
    const [first] = this.#clients
    if (!first) return undefined
    const [client, waiting] = first
    const [waiter] = waiting
    this.turn(client)
    this.delete(waiter as Waiter, client)
    return waiter
  }

  *[Symbol.iterator](): Generator<Waiter> {
    for (const waiting of this.#clients.values()) yield* waiting
  }
}
