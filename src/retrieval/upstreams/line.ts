// The queue at an upstream. Begun files go first, so that a burst does not end with many beginnings and no whole file; then
// first questions, then second ones, whose CID may be nowhere. Clients take turns: one with many requests does not hold up
// another one with few.

/** `begun`: its client has a part of it. `again`: another upstream has it, and answers others meanwhile. */
export type Rank = 'begun' | 'first' | 'again' | 'search'

export interface Line<Waiter> {
  add(waiter: Waiter, rank: Rank, client: string): void
  /** False: it does not stand here any more. */
  delete(waiter: Waiter): boolean
  has(waiter: Waiter): boolean
  /** Who goes next of those that are no searches, without taking it out of the line. */
  readonly reader: Waiter | undefined
  readonly searcher: Waiter | undefined
  /** It was given its place: its client's others have to let the other clients go first. */
  served(waiter: Waiter): void
  readonly readers: number
  readonly searchers: number
  all(): Waiter[]
}

// One in this many places goes to a file that has not begun: large files must not keep out all other clients.
const firstShare = 4

export function createLine<Waiter>(): Line<Waiter> {
  const ranks = { begun: createTurns<Waiter>(), first: createTurns<Waiter>(), again: createTurns<Waiter>() }
  const searches = createTurns<Waiter>()
  const turnsOf = (rank: Rank) => (rank === 'search' ? searches : ranks[rank])
  const health = new Map<Waiter, { readonly rank: Rank; readonly client: string }>()
  let begunInARow = 0

  return {
    add(waiter, rank, client) {
      health.set(waiter, { rank, client })
      turnsOf(rank).add(waiter, client)
    },
    delete(waiter) {
      const place = health.get(waiter)
      if (!place) return false
      health.delete(waiter)
      turnsOf(place.rank).delete(waiter, place.client)
      return true
    },
    has: (waiter) => health.has(waiter),
    get reader() {
      const { begun, first, again } = ranks
      const fresh = first.next ?? again.next
      return fresh !== undefined && begunInARow >= firstShare - 1 ? fresh : (begun.next ?? fresh)
    },
    get searcher() {
      return searches.next
    },
    served(waiter) {
      const place = health.get(waiter)
      if (!place) return
      if (place.rank !== 'search') begunInARow = place.rank === 'begun' ? begunInARow + 1 : 0
      turnsOf(place.rank).turn(place.client)
      this.delete(waiter)
    },
    get readers() {
      return health.size - searches.size
    },
    get searchers() {
      return searches.size
    },
    all: () => [...health.keys()],
  }
}

/** Each client's in the order in which they came; one of each client after the other. */
function createTurns<Waiter>() {
  const clients = new Map<string, Set<Waiter>>()
  let size = 0
  return {
    get size() {
      return size
    },
    get next(): Waiter | undefined {
      const [waiting] = clients.values()
      return waiting?.values().next().value
    },
    add(waiter: Waiter, client: string): void {
      const waiting = clients.get(client)
      if (waiting) waiting.add(waiter)
      else clients.set(client, new Set([waiter]))
      size++
    },
    delete(waiter: Waiter, client: string): void {
      const waiting = clients.get(client)
      if (!waiting?.delete(waiter)) return
      size--
      if (waiting.size === 0) clients.delete(client)
    },
    /** The others go before this client's next. */
    turn(client: string): void {
      const waiting = clients.get(client)
      if (!waiting || clients.size === 1) return
      clients.delete(client)
      clients.set(client, waiting)
    },
  }
}
