// The line before an upstream. It has ranks, and in each of them clients take turns: begun files go first, so that a burst does
// not end with many beginnings and no whole file; then first questions, then second ones, whose CID may be nowhere.
import { ClientLine } from '../loop-scheduler.ts'

/** `begun`: its client has a part of it. `again`: another upstream has it, and answers others meanwhile. */
export type Rank = 'begun' | 'first' | 'again' | 'search'

type Ranked = { readonly rank: Rank; readonly client: string }

// One in this many slots goes to a file that has not begun: large files must not keep out all other clients.
const firstShare = 4

export class RankedLine<Waiter extends Ranked> {
  readonly #ranks = {
    begun: new ClientLine<Waiter>(),
    first: new ClientLine<Waiter>(),
    again: new ClientLine<Waiter>(),
    search: new ClientLine<Waiter>(),
  }
  #begunInARow = 0

  add(waiter: Waiter): void {
    this.#ranks[waiter.rank].add(waiter, waiter.client)
  }

  delete(waiter: Waiter): boolean {
    return this.#ranks[waiter.rank].delete(waiter, waiter.client)
  }

  /** The next one that is no search, without taking it out of the line. */
  get reader(): Waiter | undefined {
    const { begun, first, again } = this.#ranks
    const fresh = first.next ?? again.next
    return fresh !== undefined && this.#begunInARow >= firstShare - 1 ? fresh : (begun.next ?? fresh)
  }

  get searcher(): Waiter | undefined {
    return this.#ranks.search.next
  }

  /** It gets its slot: other clients go before the next one of its client. */
  served(waiter: Waiter): void {
    this.passed(waiter.rank)
    this.#ranks[waiter.rank].turn(waiter.client)
    this.delete(waiter)
  }

  /** One got its slot without a wait. */
  passed(rank: Rank): void {
    if (rank !== 'search') this.#begunInARow = rank === 'begun' ? this.#begunInARow + 1 : 0
  }

  get readers(): number {
    const { begun, first, again } = this.#ranks
    return begun.size + first.size + again.size
  }

  get searchers(): number {
    return this.#ranks.search.size
  }

  get size(): number {
    return this.readers + this.searchers
  }

  all(): Waiter[] {
    return Object.values(this.#ranks).flatMap((line) => [...line])
  }
}
