// The event loop is shared: walks over blocks in memory give way to other requests, by the clock and not by their length.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  beginsEachTurn,
  createLoopScheduler,
  type LoopScheduler,
  shortSliceMs,
  sliceMs,
} from '../../src/retrieval/loop-scheduler.ts'
import { createFakeClock } from '../support/fake-clock.ts'

/** Turns of a loop that a test moves on by hand. */
function madeTurns() {
  const clock = createFakeClock()
  const due: (() => void)[] = []
  const turns = createLoopScheduler(clock, (action) => due.push(action))
  async function next(): Promise<void> {
    for (const action of due.splice(0)) {
      action()
      for (let step = 0; step < 10; step++) await Promise.resolve()
    }
  }
  return { clock, turns, next, due: () => due.length }
}

test('traversal: runs in its slice, then yields', async () => {
  const { clock, turns, next, due } = madeTurns()
  assert.equal(turns.yieldIfDue(), undefined)
  clock.spend(sliceMs - 1)
  assert.equal(turns.yieldIfDue(), undefined)
  clock.spend(1)
  let went = false
  const waiting = turns.yieldIfDue()?.then(() => (went = true))
  assert.ok(waiting)
  await Promise.resolve()
  assert.equal(went, false)
  await next()
  assert.equal(went, false, 'the sockets come before it')
  await next()
  assert.equal(went, true)
  for (let turn = 0; turn < 3; turn++) await next()
  assert.equal(due(), 0, 'where no walk waits, nothing runs in each turn')
})

test('many traversals share a slice, first come, first served', async () => {
  const { clock, turns, next } = madeTurns()
  void turns.yieldIfDue()
  clock.spend(sliceMs)
  const went: number[] = []
  for (let walk = 0; walk < 30; walk++) {
    void turns.yieldIfDue()?.then(() => {
      went.push(walk)
      clock.spend(sliceMs / 5)
    })
  }
  await next()
  for (let turn = 1; turn <= 6; turn++) {
    await next()
    assert.deepEqual(
      went,
      Array.from({ length: turn * 5 }, (_, walk) => walk),
    )
  }
})

test('first iteration after idle → full slice', async () => {
  const { clock, turns, next } = madeTurns()
  void turns.yieldIfDue()
  await next()
  clock.spend(1000)
  assert.equal(turns.yieldIfDue(), undefined)
})

/** Notes the requests in the order in which they begin. */
function noting(turns: LoopScheduler) {
  const began: string[] = []
  const ask = (client: string, request: number) => {
    const turn = turns.begin(client)
    const note = () => began.push(`${client}${request}`)
    if (turn === undefined) note()
    else void turn.then(note)
  }
  return { began, ask }
}

test('many requests → eight start per iteration, in order', async () => {
  const { turns, next, due } = madeTurns()
  const { began, ask } = noting(turns)
  for (let request = 0; request < 2 * beginsEachTurn + 5; request++) ask('a', request)
  const counts = [began.length]
  await next()
  assert.equal(turns.toBegin, 5)
  await next()
  counts.push(began.length)
  // The last five are let go on, and have not begun: who comes now stands behind them.
  for (let request = 0; request < 3; request++) ask('a', 2 * beginsEachTurn + 5 + request)
  for (let turn = 0; turn < 2; turn++) {
    await next()
    counts.push(began.length)
  }
  assert.deepEqual(counts, [8, 16, 21, 24])
  assert.deepEqual(
    began,
    Array.from({ length: 24 }, (_, request) => `a${request}`),
  )
  for (let turn = 0; turn < 2; turn++) await next()
  assert.equal(due(), 0, 'where none waits, nothing runs in each turn')
  assert.equal(turns.begin('a'), undefined)
})

test('clients are admitted round-robin', async () => {
  const { turns, next } = madeTurns()
  const { began, ask } = noting(turns)
  for (let request = 0; request < 10 * beginsEachTurn; request++) ask('many', request)
  ask('one', 0)
  await next()
  await next()
  assert.ok(began.includes('one0'), `${began}`)
})

test('queued requests → traversals yield earlier, but progress', async () => {
  const { clock, turns, next } = madeTurns()
  let steps = 0
  async function walk(): Promise<void> {
    for (;;) {
      const turn = turns.yieldIfDue()
      if (turn !== undefined) await turn
      clock.spend(1)
      steps++
    }
  }
  for (let request = 0; request < 5 * beginsEachTurn; request++) void turns.begin('a')?.then(() => clock.spend(1))
  void walk()
  const before = []
  for (let turn = 0; turn < 5; turn++) {
    await next()
    before.push(steps)
    steps = 0
  }
  assert.deepEqual(before, [shortSliceMs, shortSliceMs, shortSliceMs, sliceMs, sliceMs])
})
