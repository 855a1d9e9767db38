// The queue at an upstream. Begun files go first, so that a burst does not end with many beginnings and no whole file; then
// first questions, then second ones, whose CID may be nowhere. Clients take turns: one with many requests does not hold up
// another one with few.
import { createClientQueue } from '../turns/client-queue.ts'

/** `begun`: its client has a part of it. `again`: another upstream has it, and answers others meanwhile. */
export type Rank = 'begun' | 'first' | 'again' | 'search'

export interface FairQueue<Waiter> {
  add(waiter: Waiter, rank: Rank, client: string): void
  /** False: it does not stand here any more. */
  delete(waiter: Waiter): boolean
  has(waiter: Waiter): boolean
  /** The next waiter that is no search, without taking it out of the queue. */
  readonly reader: Waiter | undefined
  readonly searcher: Waiter | undefined
  /** The waiter was given its slot: other clients go before the next waiter of its client. */
  served(waiter: Waiter): void
  /** One got its slot without a wait. */
  passed(rank: Rank): void
  readonly readers: number
  readonly searchers: number
  all(): Waiter[]
}

// One in this many slots goes to a file that has not begun: large files must not keep out all other clients.
const firstShare = 4

export function createFairQueue<Waiter>(): FairQueue<Waiter> {
  const ranks = {
    begun: createClientQueue<Waiter>(),
    first: createClientQueue<Waiter>(),
    again: createClientQueue<Waiter>(),
  }
  const searches = createClientQueue<Waiter>()
  const queueOf = (rank: Rank) => (rank === 'search' ? searches : ranks[rank])
  const waiting = new Map<Waiter, { readonly rank: Rank; readonly client: string }>()
  let begunInARow = 0

  return {
    add(waiter, rank, client) {
      waiting.set(waiter, { rank, client })
      queueOf(rank).add(waiter, client)
    },
    delete(waiter) {
      const own = waiting.get(waiter)
      if (!own) return false
      waiting.delete(waiter)
      queueOf(own.rank).delete(waiter, own.client)
      return true
    },
    has: (waiter) => waiting.has(waiter),
    get reader() {
      const { begun, first, again } = ranks
      const fresh = first.next ?? again.next
      return fresh !== undefined && begunInARow >= firstShare - 1 ? fresh : (begun.next ?? fresh)
    },
    get searcher() {
      return searches.next
    },
    served(waiter) {
      const own = waiting.get(waiter)
      if (!own) return
      this.passed(own.rank)
      queueOf(own.rank).turn(own.client)
      this.delete(waiter)
    },
    passed(rank) {
      if (rank !== 'search') begunInARow = rank === 'begun' ? begunInARow + 1 : 0
    },
    get readers() {
      return waiting.size - searches.size
    },
    get searchers() {
      return searches.size
    },
    all: () => [...waiting.keys()],
  }
}
