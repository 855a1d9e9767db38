// Budgets of clients that several instances count together. Each decides by its own budget at once, and takes from it what others let
// through when it hears of that: down to a debt, since a client at its limit would have it at each instance otherwise.
import { LRUCache } from 'lru-cache'
import type { Clock } from '../../core/clock.ts'
import { type Budget, createBudget, type OwnBudget } from '../../core/counting/budget.ts'
import type { Counted, Telling } from '../../core/counting/telling.ts'
import { upTo } from '../../core/lru.ts'

export interface Together {
  budget(key: string, limit: { readonly size: number; readonly perSecond: number }): Budget
}

/** Once in that time a second of what others let through may be lost. */
const windowMs = 10_000
const mostShared = 100_000

export function createTogether({ telling, clock }: { telling: Telling; clock: Clock }): Together {
  /** What was heard of each client lately: without it, what is in the count already would be taken from its budget again. */
  const counts = new LRUCache<string, Counted & { readonly at: number }>(upTo(mostShared))

  function countOf(key: string, budget: OwnBudget): Counted {
    const known = counts.get(key)
    if (known && clock.monotonic() - known.at <= windowMs) return known
    const count = createCount(budget, clock)
    counts.set(key, count)
    return count
  }

  return {
    budget(key, limit) {
      const own = createBudget({ ...limit, clock })
      return {
        ...own,
        take() {
          const isTaken = own.take()
          if (isTaken) telling.note(key, 1, countOf(key, own))
          return isTaken
        },
        get waitMs() {
          return own.waitMs
        },
      }
    },
  }
}

function createCount(budget: OwnBudget, clock: Clock): Counted & { readonly at: number } {
  let before = 0
  let at = clock.monotonic()
  return {
    keptMs: windowMs,
    /** When something was heard last. */
    get at() {
      return at
    },
    heard(told, total) {
      // Less than before: the count had ended, and began anew.
      const byOthers = total - told - (total >= before + told ? before : 0)
      before = total
      at = clock.monotonic()
      if (byOthers > 0) budget.spend(byOthers)
    },
  }
}
