// What goes over from one gateway to the next, and when it is closed.
import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { createKept } from '../../src/wiring/kept.ts'

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

describe('parts of a gateway', () => {
  it('go over to the next gateway where they are made of the same', () => {
    const { kept, take } = create()
    const [one, two] = [kept.lease(), kept.lease()]
    const options = { url: 'http://a', nested: { list: [1, 'x'], none: undefined } }
    const first = take(one, 'tier', ['s3', options])
    assert.equal(take(two, 'tier', ['s3', { nested: { list: [1, 'x'] }, url: 'http://a' }]), first)
    assert.notEqual(take(two, 'tier', ['s3', { ...options, url: 'http://b' }]), first)
    assert.notEqual(take(two, 'tier', ['s3', { ...options, nested: { list: [1, 'y'] } }]), first)
    assert.notEqual(take(two, 'upstream', ['s3', options]), first)
  })

  it('are told apart by what values are, and not by how they look', () => {
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

  it('that are made of parts are the same as long as those are', () => {
    const { kept, take } = create()
    const [one, two] = [kept.lease(), kept.lease()]
    const tier = take(one, 'tier', ['disk'])
    const stack = take(one, 'stack', [[tier]])
    assert.equal(take(two, 'stack', [[take(two, 'tier', ['disk'])]]), stack)
    assert.notEqual(take(two, 'stack', [[take(two, 'tier', ['disk', 2])]]), stack)
  })

  it('are closed with the last gateway that uses them, what was made last first', async () => {
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

  it('are made anew when they were closed', async () => {
    const { kept, made, take } = create()
    const one = kept.lease()
    take(one, 'tier', [])
    await one.end()
    take(kept.lease(), 'tier', [])
    assert.equal(made.length, 2)
  })

  it('leave nothing behind that could not be made', async () => {
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

  it('are all closed, also where one of them fails to be', async () => {
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

  it('are not taken for a gateway that has ended', async () => {
    const { kept, take } = create()
    const lease = kept.lease()
    await lease.end()
    assert.throws(() => take(lease, 'tier', []), /has ended/)
  })
})
