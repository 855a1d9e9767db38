// What uploads owe a shared tier: brought there when it is back, without crowding it, and never more than fits.
import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import type { CID } from 'multiformats/cid'
import { Failure } from '../../src/core/failure.ts'
import { createOwed, type Debt } from '../../src/upload/confirm/owed.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { addFile, type BlockMap } from '../support/fixtures.ts'

const { cid } = await addFile(new Map() as BlockMap, new Uint8Array([1]), 'v1')

function stage({ most = 100, mostBytes = 1000 } = {}) {
  const clock = createFakeClock()
  const closing = new AbortController()
  const logged: string[] = []
  const over: string[] = []
  const asked: number[] = []
  const tier = { isDown: false, retryAfterMs: 100_000, hangs: false, atOnce: 0, most: 0, has: 0 }
  const held: (() => void)[] = []
  const names = ['s3']
  const owed = createOwed({
    retrieval: {
      sharedTiers: names,
      async bring(_tier: string, _cid: CID) {
        asked.push(clock.now())
        tier.most = Math.max(tier.most, ++tier.atOnce)
        try {
          await clock.sleep(1)
          if (tier.hangs) await new Promise<void>((resolve) => held.push(resolve))
          const { retryAfterMs } = tier
          if (tier.isDown) throw new Failure('unavailable', 'it is away', { source: 'tier', retryAfterMs })
          tier.has++
        } finally {
          tier.atOnce--
        }
      },
    },
    clock,
    log: (_level, event) => void logged.push(event),
    random: () => 0.5,
    closing: closing.signal,
    track: (work) => work,
    most,
    mostBytes,
  })
  const debt = (id: string, more: Partial<Debt> = {}): Debt => ({
    cid: id,
    bytes: 10,
    async *blocks() {
      yield { cid, bytes: new Uint8Array([1]) }
    },
    onOver: () => void over.push(id),
    ...more,
  })
  return { clock, closing, logged, over, asked, tier, held, names, owed, debt }
}

describe('what is owed to a shared tier', () => {
  it('a tier that is away is tried alone, every 15 s at most; one that is back, several at once', async () => {
    const { clock, over, asked, tier, owed, debt } = stage()
    tier.isDown = true
    owed.add('first', 's3', debt('first'))
    await clock.advance(1)
    for (let index = 0; index < 20; index++) owed.add(`${index}`, 's3', debt(`${index}`))
    await clock.advance(120_000)
    assert.equal(tier.most, 1)
    const gaps = asked.slice(1).map((at, index) => at - (asked[index] ?? 0))
    assert.ok(Math.max(...gaps) <= 15_001 && gaps.length < 20, `${gaps}`)
    assert.deepEqual([over, owed.size], [[], 21])
    tier.isDown = false
    await clock.advance(15_100)
    assert.deepEqual([over.length, owed.size, tier.has], [21, 0, 21])
    assert.ok(tier.most > 1 && tier.most <= 4)
    assert.equal(over[0], 'first')
  })

  it('several that fail at once are one outage: the tier rests a second, not eight', async () => {
    const { clock, asked, tier, owed, debt } = stage()
    tier.isDown = true
    tier.retryAfterMs = 0
    for (let index = 0; index < 4; index++) owed.add(`${index}`, 's3', debt(`${index}`))
    await clock.advance(1500)
    assert.equal(asked.length, 5)
  })

  it('is no more than may wait, by number and by bytes: the oldest is given up', async () => {
    for (const [limits, count] of [
      [{ most: 3 }, 3],
      [{ mostBytes: 45 }, 4],
    ] as const) {
      const { over, tier, owed, debt, logged } = stage(limits)
      tier.hangs = true
      for (let index = 0; index < 6; index++) owed.add(`${index}`, 's3', debt(`${index}`))
      assert.equal(owed.size, count)
      assert.deepEqual(over, ['0', '1', '2'].slice(0, 6 - count))
      assert.ok(logged.every((event) => event === 'upload.tier-given-up'))
    }
  })

  it('is let go where it can be read no more, and where there is no such tier any more', async () => {
    const { clock, over, tier, names, owed, debt, logged } = stage()
    const lost = debt('lost', {
      blocks() {
        throw new Error('it rotted')
      },
    })
    owed.add('lost', 's3', lost)
    owed.add('whole', 's3', debt('whole'))
    await clock.advance(1)
    assert.deepEqual(over.sort(), ['lost', 'whole'])
    assert.deepEqual([logged, tier.has], [['upload.tier-lost'], 1])
    tier.isDown = true
    names.splice(0)
    owed.add('gone', 's3', debt('gone'))
    await clock.advance(1)
    assert.deepEqual([over.includes('gone'), owed.size, clock.timers], [true, 0, 0])
  })

  it('is asked for once, and not any more when it was dropped or the gateway stops', async () => {
    const { clock, closing, over, asked, tier, held, owed, debt } = stage()
    tier.hangs = true
    owed.add('one', 's3', debt('one'))
    owed.add('one', 's3', debt('one'))
    await clock.advance(1)
    assert.equal(asked.length, 1)
    owed.drop('one', 's3')
    for (const letGo of held.splice(0)) letGo()
    await clock.advance(1)
    assert.deepEqual([over, owed.size], [[], 0])
    tier.hangs = false
    tier.isDown = true
    owed.add('two', 's3', debt('two'))
    await clock.advance(1)
    closing.abort(new Error('it stops'))
    assert.equal(clock.timers, 0)
    await clock.advance(60_000)
    assert.equal(asked.length, 2)
  })
})
