// Rate limits shared by instances. Each instance decides at once by its own bucket, and subtracts
// what the others admitted when it learns of it, possibly into debt: otherwise a client could use
// its full limit at each instance.
import { LRUCache } from 'lru-cache'
import { upTo } from '../../core/cache.ts'
import type { Clock } from '../../core/clock.ts'
import { type Budget, createBudget, type OwnBudget } from '../../core/counting/budget.ts'
import type { Counted, Telling } from '../../core/counting/telling.ts'

export interface Together {
  budget(key: string, limit: { readonly size: number; readonly perSecond: number }): Budget
}

/** Per window, up to a second of the others' requests may be lost. */
const windowMs = 10_000
const mostShared = 100_000

export function createTogether({ telling, clock }: { telling: Telling; clock: Clock }): Together {
  /**
   * The last known total of each client: without it, requests that were subtracted before would be
   * subtracted again.
   */
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
    /** The time of the last update. */
    get at() {
      return at
    },
    heard(told, total) {
      // A smaller total means that the counter expired and restarted.
      const byOthers = total - told - (total >= before + told ? before : 0)
      before = total
      at = clock.monotonic()
      if (byOthers > 0) budget.spend(byOthers)
    },
  }
}
