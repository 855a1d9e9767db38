import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AggregateError as AllFailed } from 'p-any'
import { Failure, isFailure } from '../../src/core/failure.ts'
import { lost, race } from '../../src/retrieval/fetch/race.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const gone = () => new Failure('not-found', 'not here', { source: 'upstream' })

type Script = { readonly answerAfterMs?: number; readonly failAfterMs?: number }

/** Runs a race of scripted upstreams and tells who started when and who was aborted with what. */
function run(
  scripts: Record<string, Script>,
  options: { patienceMs?: number; mayHedge?: () => boolean; signal?: AbortSignal } = {},
) {
  const clock = createFakeClock()
  const startedAt: Record<string, number> = {}
  const aborted: Record<string, unknown> = {}
  const begin = clock.monotonic()
  const result = race({
    steps: Object.keys(scripts).map((who) => ({ who, patienceMs: options.patienceMs ?? 100 })),
    mayHedge: options.mayHedge ?? (() => true),
    signal: options.signal ?? new AbortController().signal,
    clock,
    async attempt(who, signal) {
      startedAt[who] = clock.monotonic() - begin
      signal.addEventListener('abort', () => {
        aborted[who] = signal.reason
      })
      const { answerAfterMs, failAfterMs } = scripts[who] as Script
      await clock.sleep(answerAfterMs ?? failAfterMs ?? 1e9, signal)
      if (failAfterMs !== undefined) throw gone()
      return who
    },
  })
  result.catch(() => {})
  return { clock, startedAt, aborted, result }
}

test('the best alone is asked while it is quick', async () => {
  const { clock, startedAt, result } = run({ one: { answerAfterMs: 80 }, two: { answerAfterMs: 1 } })
  await clock.advance(500)
  assert.equal(await result, 'one')
  assert.deepEqual(startedAt, { one: 0 })
})

test('impatience starts the next; the loser is aborted as lost', async () => {
  const { clock, startedAt, aborted, result } = run({ one: {}, two: { answerAfterMs: 30 }, three: {} })
  await clock.advance(500)
  assert.equal(await result, 'two')
  assert.deepEqual(startedAt, { one: 0, two: 100 })
  assert.equal(aborted['one'], lost)
})

test('a failure starts the next at once, without drawing on the hedges', async () => {
  const { clock, startedAt, result } = run(
    { one: { failAfterMs: 10 }, two: { answerAfterMs: 5 } },
    { mayHedge: () => false },
  )
  await clock.advance(500)
  assert.equal(await result, 'two')
  assert.equal(startedAt['two'], 10)
})

test('without a hedge to spend the race waits, and asks for one again', async () => {
  let budget = 0
  const { clock, startedAt, result } = run({ one: {}, two: { answerAfterMs: 5 } }, { mayHedge: () => budget > 0 })
  await clock.advance(450)
  assert.equal(startedAt['two'], undefined)
  budget = 1
  await clock.advance(100)
  assert.equal(await result, 'two')
})

test('when all fail, every failure is told', async () => {
  const { clock, result } = run({ one: { failAfterMs: 10 }, two: { failAfterMs: 10 } })
  await clock.advance(500)
  const error: unknown = await result.then(
    () => assert.fail('won'),
    (reason: unknown) => reason,
  )
  assert.ok(error instanceof AllFailed)
  assert.equal(error.errors.length, 2)
  assert.ok(error.errors.every((failure) => isFailure(failure, 'not-found')))
})

test('an abort from outside stops all of them, and leaves no timer', async () => {
  const controller = new AbortController()
  const { clock, aborted, startedAt, result } = run({ one: {}, two: {}, three: {} }, { signal: controller.signal })
  await clock.advance(150)
  assert.deepEqual(Object.keys(startedAt), ['one', 'two'])
  controller.abort(new Failure('cancelled', 'the client left', { source: 'client' }))
  await assert.rejects(result, (error) => isFailure(error, 'cancelled'))
  await clock.advance(5000)
  assert.deepEqual(Object.keys(startedAt), ['one', 'two'])
  assert.ok(isFailure(aborted['one'], 'cancelled') && isFailure(aborted['two'], 'cancelled'))
  assert.equal(clock.timers, 0)
})

test('no upstream is a failure, not an endless race', async () => {
  const { result } = run({})
  await assert.rejects(result, (error) => isFailure(error, 'unavailable'))
})
