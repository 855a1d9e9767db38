// What is kept of a look-up, for how long, and who waits for whom.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { createLookups, type LookupContext, type LookupOptions, type LookupResult } from '../../src/names/lookups.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const missing = new Failure('not-found', 'nobody has it', { source: 'upstream' })
const unavailable = new Failure('unavailable', 'nobody could be asked', { source: 'upstream' })

function make(more: Partial<LookupOptions<string, string>> = {}) {
  const clock = createFakeClock()
  const looks: string[] = []
  const signals: AbortSignal[] = []
  const state: {
    look: (
      known: string | undefined,
      recalled: LookupContext<string>['recalled'],
    ) => Promise<Partial<LookupResult<string>>>
  } = {
    look: async () => ({ value: 'one' }),
  }
  const lookups = createLookups<string, string>({
    async look(name, known, { signal, note, recalled }) {
      looks.push(name)
      signals.push(signal)
      try {
        const found = await state.look(known, recalled)
        note({ upstream: 'u', outcome: 'record', ms: 1 })
        return { value: 'one', freshForMs: 60_000, endsAt: clock.now() + 600_000, via: 'u', ...found }
      } catch (error) {
        note({ upstream: 'u', outcome: isFailure(error) ? error.kind : 'internal', ms: 1 })
        throw error
      }
    },
    invalidates: () => false,
    late: () => new Failure('timeout', 'too late', { source: 'upstream' }),
    deadlineMs: 5_000,
    notFoundMs: 5_000,
    maxEntries: 3,
    clock,
    ...more,
  })
  const get = (name = 'n', wants: { noCache?: boolean; onlyIfCached?: boolean; signal?: AbortSignal } = {}) =>
    lookups
      .get(name, name, { signal: new AbortController().signal, ...wants })
      .then(({ value, freshMs, via }) => ({ value, freshMs, via }))
  return { clock, looks, signals, state, lookups, get }
}

const kindOf = (work: Promise<unknown>) =>
  work.then(
    () => 'ok',
    (error) => (isFailure(error) ? error.kind : String(error)),
  )

describe('name lookups', () => {
  test('continues when one client leaves, stops with the last', async () => {
    const { get, state, signals, looks } = make()
    const gate = Promise.withResolvers<Partial<LookupResult<string>>>()
    state.look = () => gate.promise
    const leaving = new AbortController()
    const first = kindOf(get('n', { signal: leaving.signal }))
    const second = get()
    await new Promise(setImmediate)
    leaving.abort(new Failure('cancelled', 'left', { source: 'client' }))
    assert.equal(await first, 'cancelled')
    assert.equal(signals[0]?.aborted, false)
    gate.resolve({})
    assert.equal((await second).value, 'one')

    state.look = () => new Promise(() => {})
    const last = new AbortController()
    const only = kindOf(get('other', { signal: last.signal }))
    await new Promise(setImmediate)
    last.abort(new Failure('cancelled', 'left', { source: 'client' }))
    assert.equal(await only, 'cancelled')
    await new Promise(setImmediate)
    assert.equal(signals[1]?.aborted, true)
    state.look = async () => ({})
    assert.equal((await get('other')).value, 'one', 'who leaves leaves no memory of a failure')
    assert.equal(looks.length, 3)
  })

  test('servers down → stale, retried every 10 s, until expiry', async () => {
    const { get, state, clock, looks, lookups } = make()
    await get()
    state.look = async () => {
      throw unavailable
    }
    await clock.advance(60_000)
    assert.deepEqual(await get(), { value: 'one', freshMs: 10_000, via: 'stale' })
    await get()
    assert.equal(looks.length, 2, 'who was just asked in vain is not asked again at once')
    await clock.advance(10_000)
    await get()
    assert.equal(looks.length, 3)
    await clock.advance(530_000 - 3)
    assert.deepEqual(await get(), { value: 'one', freshMs: 3, via: 'stale' })
    await clock.advance(3)
    assert.equal(await kindOf(get()), 'unavailable')
    assert.equal(lookups.stats().stale, 4)
  })

  test('known result → served stale after 1 s, lookup continues', async () => {
    const { get, state, clock } = make()
    await get()
    await clock.advance(60_000)
    const gate = Promise.withResolvers<Partial<LookupResult<string>>>()
    state.look = () => gate.promise
    const asked = get()
    await clock.advance(999)
    assert.equal(await Promise.race([asked, 'waiting']), 'waiting')
    await clock.advance(1)
    assert.deepEqual(await asked, { value: 'one', freshMs: 10_000, via: 'stale' })
    const later = get()
    await clock.advance(0)
    assert.equal((await Promise.race([later, 'waiting'])) !== 'waiting', true, 'it has waited long enough for all')
    gate.resolve({ value: 'two' })
    await clock.advance(0)
    assert.deepEqual(await get(), { value: 'two', freshMs: 60_000, via: 'memory' })
  })

  test('not-found → cached briefly, with Retry-After', async () => {
    const { get, state, clock, looks } = make()
    state.look = async () => {
      throw missing
    }
    assert.equal(await kindOf(get()), 'not-found')
    await clock.advance(2_000)
    const again = await get().catch((error: Failure) => error)
    assert.ok(isFailure(again, 'not-found'))
    assert.equal(again.retryAfterMs, 3_000)
    assert.equal(looks.length, 1)
    state.look = async () => ({})
    assert.equal((await get('n', { noCache: true })).value, 'one')
    state.look = async () => {
      throw unavailable
    }
    assert.equal(await kindOf(get('x')), 'unavailable')
    assert.equal(await kindOf(get('x')), 'unavailable')
    assert.equal(looks.length, 4, 'that nobody could be asked is not remembered')
  })

  test('unavailable → cached if configured; overloaded never', async () => {
    const { get, state, clock, looks } = make({ unavailableMs: 3_000 })
    state.look = async () => {
      throw unavailable
    }
    assert.equal(await kindOf(get()), 'unavailable')
    await clock.advance(2_999)
    assert.equal(await kindOf(get()), 'unavailable')
    assert.equal(looks.length, 1)
    await clock.advance(1)
    state.look = async () => {
      throw new Failure('overloaded', 'too much', { source: 'ours' })
    }
    assert.equal(await kindOf(get()), 'overloaded')
    state.look = async () => ({})
    assert.equal((await get()).value, 'one')
  })

  test('definite failure → known result dropped', async () => {
    const { get, state, clock } = make({ invalidates: (error) => isFailure(error, 'not-found') })
    await get()
    await clock.advance(60_000)
    state.look = async () => {
      throw missing
    }
    assert.equal(await kindOf(get()), 'not-found')
    state.look = async () => {
      throw unavailable
    }
    await clock.advance(6_000)
    assert.equal(await kindOf(get()), 'unavailable')
  })

  test('memory bounded, least recently used dropped', async () => {
    const { get, lookups, looks } = make()
    for (const name of ['a', 'b', 'c', 'd']) await get(name)
    assert.equal(lookups.stats().kept, 3)
    await get('a')
    assert.equal(looks.length, 5)
  })
})
