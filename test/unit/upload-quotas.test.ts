// Quotas of tokens: what is used up, given back, kept over a restart, and begun anew with the next day.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { createCounterSync } from '../../src/core/counting/counter-sync.ts'
import { isFailure } from '../../src/core/failure.ts'
import type { Log } from '../../src/core/log.ts'
import type { Row, Store } from '../../src/store/store.ts'
import { createQuotas, type Quota } from '../../src/upload/quotas.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { createMemoryCounters } from '../support/memory-counters.ts'

const dayMs = 86_400_000
/** The uses that uploads committed. */
type Stored = Row[]

/** Reads the last day, as the store does. */
const storeOf = (stored: Stored) => {
  const last = Math.max(...stored.map(({ day }) => Number(day)))
  return { read: async () => stored.filter(({ day }) => day === last), accept: async () => {} }
}

/** Some minutes before the first midnight. */
function stage(store: Pick<Store, 'read' | 'accept'> = storeOf([])) {
  const clock = createFakeClock()
  const events: string[] = []
  const log: Log = (_level, event) => void events.push(event)
  return { clock, events, quotas: createQuotas({ store, clock, log }) }
}

const named = (quota: Quota, token = 'ci') => ({ token, quota })

/** What the client is told of the rest. */
function refusal(work: () => unknown) {
  try {
    work()
  } catch (error) {
    if (!isFailure(error, 'throttled')) throw error
    return { message: error.message, retryAfterMs: error.retryAfterMs, ...error.facts.quota }
  }
  return assert.fail('it was let in')
}

describe('quota', () => {
  test('per token; tokens without a quota are unlimited', () => {
    const { quotas } = stage()
    const one = quotas.begin(named({ uploads: 1 }))
    one.add(1e12)
    one.accept()
    refusal(() => quotas.begin(named({ uploads: 1 })))
    quotas.begin(named({ uploads: 1 }, 'other')).accept()
    assert.deepEqual(quotas.used('other'), { uploads: 1, bytes: 0 })
  })

  test('resets at midnight (UTC), Retry-After until then', async () => {
    const { quotas, clock } = stage()
    const quota = named({ uploads: 1 })
    const left = dayMs - clock.now()
    const one = quotas.begin(quota)
    one.accept()
    assert.equal(refusal(() => quotas.begin(quota)).retryAfterMs, left)
    await clock.advance(left)
    assert.deepEqual(quotas.used('ci'), { uploads: 0, bytes: 0 })
    const late = quotas.begin(quota)
    // A clock that is set back does not give the day twice.
    late.accept()
    await clock.advance(-1000)
    // The day that is used up begins again in a second: the client is told the end of that one.
    assert.equal(refusal(() => quotas.begin(quota)).retryAfterMs, dayMs + 1000)
  })

  test('unreadable store → counts from zero, with a warning', async () => {
    const { quotas, events } = stage({ ...storeOf([]), read: () => Promise.reject(new Error('damaged')) })
    await quotas.ready
    assert.deepEqual(events, ['quotas.read-failed'])
    quotas.begin(named({ uploads: 5 })).accept()
    assert.deepEqual(quotas.used('ci'), { uploads: 1, bytes: 0 })
  })
})

describe('quota shared by two instances', () => {
  function pair() {
    const clock = createFakeClock()
    const counters = createMemoryCounters(clock)
    const open = (stored: Stored = []) => {
      const shared = createCounterSync({ add: counters.add, clock, log: () => {} })
      return { quotas: createQuotas({ store: storeOf(stored), shared, clock, log: () => {} }) }
    }
    return { clock, counters, open, one: open(), other: open() }
  }
  const quota = named({ uploads: 10, bytes: 1000 })
  const upload = ({ quotas }: { quotas: ReturnType<typeof createQuotas> }, bytes: number) => {
    const use = quotas.begin(quota)
    use.add(bytes)
    use.accept()
    use.end()
  }

  test('use at one → known to the other within a second', async () => {
    const { clock, one, other } = pair()
    upload(one, 600)
    await clock.advance(1000)
    other.quotas.begin(quota).end()
    await clock.advance(1000)
    assert.deepEqual(other.quotas.used('ci'), { uploads: 1, bytes: 600 })
    upload(other, 300)
    assert.deepEqual(refusal(() => upload(other, 101)).bytes, { limit: 1000, remaining: 100 })
    await clock.advance(1000)
    one.quotas.used('ci')
    await clock.advance(1000)
    assert.deepEqual(one.quotas.used('ci'), { uploads: 2, bytes: 900 })
  })

  test('nothing counts twice: restart, or during a flush', async () => {
    const { clock, open, one } = pair()
    upload(one, 100)
    assert.deepEqual(one.quotas.used('ci'), { uploads: 1, bytes: 100 })
    await clock.advance(999)
    upload(one, 100)
    await clock.advance(2000)
    assert.deepEqual(one.quotas.used('ci'), { uploads: 2, bytes: 200 })
    const again = open([{ day: 0, token: 'ci', uploads: 2, bytes: 200 }])
    await again.quotas.ready
    upload(again, 100)
    await clock.advance(2000)
    assert.deepEqual(again.quotas.used('ci'), { uploads: 3, bytes: 300 })
  })

  test('store down → applies locally, synced later', async () => {
    const { clock, counters, one, other } = pair()
    counters.fault = 'away'
    upload(one, 600)
    await clock.advance(5000)
    assert.deepEqual(one.quotas.used('ci'), { uploads: 1, bytes: 600 })
    refusal(() => upload(one, 500))
    upload(other, 100)
    counters.fault = undefined
    await clock.advance(2000)
    for (const { quotas } of [one, other, one, other]) {
      quotas.used('ci')
      await clock.advance(1000)
    }
    assert.deepEqual(one.quotas.used('ci'), { uploads: 2, bytes: 700 })
    assert.deepEqual(other.quotas.used('ci'), { uploads: 2, bytes: 700 })
  })

  test('resets with the day', async () => {
    const { clock, one, other } = pair()
    upload(one, 1000)
    await clock.advance(2000)
    await clock.advance(dayMs)
    upload(one, 1000)
    upload(other, 1000)
  })
})
