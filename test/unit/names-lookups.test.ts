// What is kept of a look-up, for how long, and who waits for whom.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { createLookups, type LookupContext, type LookupOptions, type LookupResult } from '../../src/names/lookups.ts'
import { createAccount } from '../../src/observe/request-record.ts'
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
    takesBack: () => false,
    late: () => new Failure('timeout', 'too late', { source: 'upstream' }),
    deadlineMs: 5_000,
    notFoundMs: 5_000,
    most: 3,
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
  test('fresh from memory with remaining TTL; then looked up again', async () => {
    const { get, clock, looks } = make()
    assert.deepEqual(await get(), { value: 'one', freshMs: 60_000, via: 'u' })
    await clock.advance(59_000)
    assert.deepEqual(await get(), { value: 'one', freshMs: 1_000, via: 'memory' })
    assert.equal(looks.length, 1)
    await clock.advance(1_000)
    assert.equal((await get()).via, 'u')
    assert.equal(looks.length, 2)
  })

  test('never fresh past its end', async () => {
    const { get, clock, state } = make()
    state.look = async () => ({ endsAt: clock.now() + 7_000 })
    assert.equal((await get()).freshMs, 7_000)
  })

  test('concurrent clients share a lookup, each with its account', async () => {
    const { get, lookups, looks } = make()
    const account = createAccount()
    const all = await Promise.all([
      get(),
      get(),
      lookups.get('n', 'n', { signal: new AbortController().signal, account }),
    ])
    assert.equal(new Set(all.map(({ value }) => value)).size, 1)
    assert.equal(looks.length, 1)
    assert.deepEqual(account.attempts, [{ upstream: 'u', outcome: 'record', ms: 1 }])
    assert.deepEqual(account.brought, [{ upstream: 'u', bytes: 0 }])
    assert.equal(lookups.stats().flights, 0)
  })

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

  test('no caller waits past the deadline', async () => {
    const { get, state, clock, signals } = make()
    state.look = () => new Promise(() => {})
    const asked = kindOf(get())
    await clock.advance(5_000)
    assert.equal(await asked, 'timeout')
    assert.equal(signals[0]?.aborted, true)
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
    const { get, state, clock } = make({ takesBack: (error) => isFailure(error, 'not-found') })
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

  test('no-cache → looked up, unless younger than a second', async () => {
    const { get, clock, looks } = make()
    await get()
    await get('n', { noCache: true })
    assert.equal(looks.length, 1)
    await clock.advance(1_000)
    await get('n', { noCache: true })
    assert.equal(looks.length, 2)
  })

  test('only-if-cached → no source asked', async () => {
    const { get, clock, looks } = make()
    const refused = await get('n', { onlyIfCached: true }).catch((error: Failure) => error)
    assert.ok(isFailure(refused, 'not-found'))
    assert.equal(refused.facts['onlyIfCached'], true)
    await get()
    await clock.advance(90_000)
    assert.equal((await get('n', { onlyIfCached: true })).via, 'stale')
    assert.equal(looks.length, 1)
  })

  test('servers down → result of an earlier process served', async () => {
    const clock = createFakeClock()
    const old = { value: 'old', endsAt: clock.now() + 30_000, via: 'disk' }
    const { get, state, looks } = make({ clock, restore: async () => old })
    const seen: (string | undefined)[] = []
    state.look = async (known) => {
      seen.push(known)
      throw unavailable
    }
    assert.deepEqual(await get(), { value: 'old', freshMs: 10_000, via: 'stale' })
    assert.deepEqual([seen, looks.length], [['old'], 1])
    await clock.advance(30_000)
    assert.equal(await kindOf(get()), 'unavailable')
  })

  test('shared result → served after 1 s, lookup continues', async () => {
    const { get, clock, state, looks } = make()
    const newer = Promise.withResolvers<Partial<LookupResult<string>>>()
    state.look = async (_known, recalled) => {
      recalled({ value: 'shared', endsAt: clock.now() + 30_000, via: 'redis' })
      return newer.promise
    }
    const first = get()
    await clock.advance(999)
    assert.equal(await Promise.race([first, Promise.resolve('waits')]), 'waits')
    await clock.advance(1)
    assert.deepEqual(await first, { value: 'shared', freshMs: 10_000, via: 'stale' })
    newer.resolve({ value: 'newer' })
    await newer.promise
    await clock.advance(0)
    assert.deepEqual([(await get()).value, looks.length], ['newer', 1])
  })

  test('shared result → no client waits over 1 s', async () => {
    const { get, clock, state } = make()
    const comes = Promise.withResolvers<void>()
    state.look = async (_known, recalled) => {
      await comes.promise
      recalled({ value: 'shared', endsAt: clock.now() + 30_000, via: 's3' })
      return new Promise(() => {})
    }
    const first = get()
    await clock.advance(1_500)
    comes.resolve()
    assert.equal((await first).value, 'shared')
  })

  test('only-if-cached → reads shared tiers, no upstream', async () => {
    const clock = createFakeClock()
    const recall = async () => ({ value: 'shared', endsAt: clock.now() + 30_000, via: 'redis' })
    const { get, looks } = make({ clock, recall })
    assert.deepEqual(await get('n', { onlyIfCached: true }), { value: 'shared', freshMs: 10_000, via: 'stale' })
    assert.equal(looks.length, 0)
  })

  test('memory bounded, least recently used dropped', async () => {
    const { get, lookups, looks } = make()
    for (const name of ['a', 'b', 'c', 'd']) await get(name)
    assert.equal(lookups.stats().kept, 3)
    await get('a')
    assert.equal(looks.length, 5)
  })
})
