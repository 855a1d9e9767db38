// What goes over from one gateway to the next, and when it is closed.
import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { createKept } from '../../src/wiring/component-registry.ts'

type Part = { readonly id: number }

function create() {
  const kept = createKept()
  const made: Part[] = []
  const closed: number[] = []
  const take = (lease: ReturnType<typeof kept.lease>, kind: string, of: readonly unknown[]): Part =>
    lease.take(
      kind,
      of,
      () => {
        const part = { id: made.length }
        made.push(part)
        return part
      },
      ({ id }) => closed.push(id),
    )
  return { kept, made, closed, take }
}

describe('parts kept across reloads', () => {
  it('same configuration → taken over', () => {
    const { kept, take } = create()
    const [one, two] = [kept.lease(), kept.lease()]
    const options = { url: 'http://a', nested: { list: [1, 'x'], none: undefined } }
    const first = take(one, 'tier', ['s3', options])
    assert.equal(take(two, 'tier', ['s3', { nested: { list: [1, 'x'] }, url: 'http://a' }]), first)
    assert.notEqual(take(two, 'tier', ['s3', { ...options, url: 'http://b' }]), first)
    assert.notEqual(take(two, 'tier', ['s3', { ...options, nested: { list: [1, 'y'] } }]), first)
    assert.notEqual(take(two, 'upstream', ['s3', options]), first)
  })

  it('compared by value', () => {
    const { kept, take } = create()
    const lease = kept.lease()
    const all = [
      1,
      '1',
      true,
      'true',
      null,
      'null',
      undefined,
      Number.POSITIVE_INFINITY,
      [],
      {},
      [[]],
      ['1,2'],
      ['1', '2'],
    ]
    const parts = all.map((value) => take(lease, 'part', [value]))
    assert.equal(new Set(parts).size, all.length)
    const things = [() => 1, () => 1, new Map(), new Map(), { look: () => 1 }, { look: () => 1 }]
    const made = things.map((value) => take(lease, 'part', [value]))
    assert.equal(new Set(made).size, things.length)
    assert.equal(take(lease, 'part', [things[2]]), made[2])
  })

  it('made of parts → same while those are', () => {
    const { kept, take } = create()
    const [one, two] = [kept.lease(), kept.lease()]
    const tier = take(one, 'tier', ['disk'])
    const stack = take(one, 'stack', [[tier]])
    assert.equal(take(two, 'stack', [[take(two, 'tier', ['disk'])]]), stack)
    assert.notEqual(take(two, 'stack', [[take(two, 'tier', ['disk', 2])]]), stack)
  })

  it('closed with their last gateway, in reverse order', async () => {
    const { kept, closed, take } = create()
    const [one, two] = [kept.lease(), kept.lease()]
    for (const kind of ['tier', 'stack', 'retrieval']) take(one, kind, [])
    take(two, 'tier', [])
    take(two, 'tier', [])
    await one.end()
    await one.end()
    assert.deepEqual(closed, [2, 1])
    await two.end()
    assert.deepEqual(closed, [2, 1, 0])
  })

  it('closed → made anew', async () => {
    const { kept, made, take } = create()
    const one = kept.lease()
    take(one, 'tier', [])
    await one.end()
    take(kept.lease(), 'tier', [])
    assert.equal(made.length, 2)
  })

  it('failed creation → nothing left', async () => {
    const { kept, closed, take } = create()
    const lease = kept.lease()
    take(lease, 'tier', [])
    const broken = () => {
      throw new Error('the bucket is not there')
    }
    assert.throws(() => lease.take('tier', ['s3'], broken), /bucket/)
    assert.equal(take(lease, 'tier', ['s3']).id, 1)
    await lease.end()
    assert.deepEqual(closed.sort(), [0, 1])
  })

  it('one fails to close → others close', async () => {
    const { kept, closed, take } = create()
    const lease = kept.lease()
    take(lease, 'tier', [])
    lease.take(
      'stack',
      [],
      () => ({}),
      () => Promise.reject(new Error('stuck')),
    )
    take(lease, 'retrieval', [])
    await assert.rejects(lease.end(), /stuck/)
    assert.deepEqual(closed, [1, 0])
  })

  it('gateway ended → cannot take parts', async () => {
    const { kept, take } = create()
    const lease = kept.lease()
    await lease.end()
    assert.throws(() => take(lease, 'tier', []), /has ended/)
  })
})
