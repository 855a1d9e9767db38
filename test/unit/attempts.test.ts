// The attempts that a client is told of: complete in bytes, bounded in number.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Attempts } from '../../src/retrieval/upstreams/attempts.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { addBlock, text } from '../support/fixtures.ts'
import { membersOf } from '../support/members.ts'
import { scriptedUpstream } from '../support/scripted-upstream.ts'

test('a hundred questions → all bytes, few attempts', () => {
  const clock = createFakeClock()
  const members = membersOf([scriptedUpstream('one', new Map()), scriptedUpstream('two', new Map())], clock)
  const attempts = new Attempts(clock, 4_000)
  for (let count = 0; count < 100; count++) {
    const cid = addBlock(new Map(), 0x55, text(`block ${count}`))
    for (const member of members) {
      const question = attempts.ask(member, 'block', cid, { begun() {}, refused() {} })
      question.brought(10, 0, clock.monotonic())
      question.end('enough', clock.monotonic())
    }
  }
  assert.deepEqual(
    attempts.list().map(({ upstream, bytes }) => [upstream, bytes]),
    [
      ['one', 1000],
      ['two', 1000],
    ],
  )
})
