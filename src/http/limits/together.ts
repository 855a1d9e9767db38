// Budgets of clients that several instances count together, by a tally that all of them reach. No request waits for the tally: each
// instance decides by its own budget at once, tells what was taken within a second, and takes from its budget what others took. Where
// the tally is away, each counts alone.
import { createHash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import type { Tally } from '../../../backends/tallies/contract.ts'
import { type Budget, createBudget } from '../../core/budget.ts'
import type { Clock } from '../../core/clock.ts'
import { withDeadline } from '../../core/deadline.ts'
import { cancelled, Failure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { upTo } from '../../core/lru.ts'

export interface Together {
  budget(key: string, limit: { readonly size: number; readonly perSecond: number }): Budget
  /** The tally is away. */
  readonly isAlone: boolean
  close(): void
}

/** `untold`: taken here since the tally was told. `heard`: what it held then. `at`: when. */
type Shared = { readonly budget: Budget; untold: number; heard: number; at: number }

const everyMs = 1000
const answerMs = 900
/** How long a count stays in the tally from its first addition. Once in that time a second of what others took may be lost. */
const windowMs = 10_000
const mostAtOnce = 1000
const mostShared = 100_000

export function createTogether({ tally, clock, log }: { tally: Tally; clock: Clock; log: Log }): Together {
  const shared = new LRUCache<string, Shared>(upTo(mostShared))
  /** Those that have something untold, in the order in which they began. */
  const waiting = new Set<string>()
  const closing = new AbortController()
  let cancelTelling: (() => void) | undefined
  let isAlone = false

  function note(key: string, budget: Budget): void {
    let one = shared.get(key)
    if (!one || (one.untold === 0 && clock.monotonic() - one.at > windowMs)) {
      one = { budget, untold: 0, heard: 0, at: clock.monotonic() }
      shared.set(key, one)
    }
    one.untold++
    waiting.add(key)
    if (!closing.signal.aborted) cancelTelling ??= clock.after(everyMs, tell)
  }

  function heard(one: Shared, told: number, total: number): void {
    // Less than before: the count had ended, and began anew.
    const before = total >= one.heard + told ? one.heard : 0
    one.heard = total
    one.at = clock.monotonic()
    const byOthers = total - told - before
    if (byOthers > 0) one.budget.spend(byOthers)
  }

  function became(alone: boolean, why?: string): void {
    if (alone === isAlone) return
    isAlone = alone
    if (alone) log('warn', 'limits.alone', { why })
    else log('info', 'limits.together', {})
  }

  function tell(): void {
    const telling = [...waiting].slice(0, mostAtOnce).flatMap((key) => {
      waiting.delete(key)
      const one = shared.peek(key)
      if (!one) return []
      const amount = one.untold
      one.untold = 0
      return [{ key, one, amount }]
    })
    const counts = telling.map(({ key, amount }) => ({ key: nameOf(key), amount }))
    withDeadline({ ms: answerMs, clock, signal: closing.signal, late }, (signal) => tally.add(counts, windowMs, signal))
      .then(
        (totals) => {
          for (const [at, { one, amount }] of telling.entries()) heard(one, amount, totals[at] ?? amount)
          became(false)
        },
        // What could not be told is forgotten: nobody is to pay for it later.
        (error: unknown) => closing.signal.aborted || became(true, String(error)),
      )
      .finally(() => {
        cancelTelling = waiting.size > 0 && !closing.signal.aborted ? clock.after(everyMs, tell) : undefined
      })
  }

  return {
    budget(key, limit) {
      const own = createBudget({ ...limit, clock })
      return {
        ...own,
        take() {
          const isTaken = own.take()
          if (isTaken) note(key, own)
          return isTaken
        },
        get waitMs() {
          return own.waitMs
        },
      }
    },
    get isAlone() {
      return isAlone
    },
    close() {
      closing.abort(cancelled('the gateway is closing'))
      cancelTelling?.()
    },
  }
}

const late = () => new Failure('timeout', 'it did not answer in time', { source: 'ours' })

/** No address of a client lies in the store. */
const nameOf = (key: string): string => createHash('sha256').update(key).digest('base64url').slice(0, 22)
