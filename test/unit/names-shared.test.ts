// Records of names in the tiers that instances share: the newest is what stays, whoever writes and whenever.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { systemClock } from '../../src/core/clock.ts'
import { type IpnsRecord, signedRecord } from '../../src/names/ipns-record.ts'
import { createSharedRecords, type SharedRecords } from '../../src/names/shared-records.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { createKey, type TestKey } from '../support/ipns.ts'
import { createShelf, isOut, type TestShelf } from '../support/shelf.ts'

const never = new AbortController().signal

const recordOf = async (key: TestKey, sequence: number, lifetimeMs = 3_600_000): Promise<IpnsRecord> =>
  signedRecord(key.cid, await key.record('/ipfs/bafkqaaa', { sequence, lifetimeMs }))

function make(shelves: readonly TestShelf[], clock = systemClock) {
  const lines: { event: string; facts: Readonly<Record<string, unknown>> }[] = []
  const shared = createSharedRecords({
    shelves,
    clock,
    log: (_level, event, facts = {}) => void lines.push({ event, facts }),
  })
  return { shared, lines }
}

/** What a whole look-up does. */
async function lookUp(shared: SharedRecords, key: TestKey, best: IpnsRecord | undefined, isNew: boolean) {
  const brought: { sequence: bigint; tier: string }[] = []
  const looks = shared.look(key.cid, never, ({ sequence }, tier) => void brought.push({ sequence, tier }))
  await looks.done
  if (best) looks.offer(best, isNew)
  return brought
}

const sequenceOn = async (shelf: TestShelf, key: TestKey): Promise<number | undefined> => {
  const bytes = shelf.held.get(key.name)
  return bytes && Number((await signedRecord(key.cid, bytes)).sequence)
}

describe('records in shared tiers', () => {
  test('concurrent write between read and write → newest stays', async () => {
    const [key, shelf] = [createKey(), createShelf()]
    const [older, newer] = [await recordOf(key, 1), await recordOf(key, 2)]
    const { shared } = make([shelf])
    shelf.before = (call) => {
      if (call === 'replace') shelf.held.set(key.name, newer.bytes)
    }
    await lookUp(shared, key, older, true)
    await shared.close()
    assert.equal(await sequenceOn(shelf, key), 2)
    assert.deepEqual(shelf.calls, ['read', 'replace', 'read'])
  })

  test('twenty concurrent instances → newest stays', async () => {
    const [key, shelf] = [createKey(), createShelf()]
    const all = await Promise.all(Array.from({ length: 20 }, (_, index) => recordOf(key, 20 - index)))
    shelf.before = () => setImmediate()
    const instances = all.map(() => make([shelf]).shared)
    // Each tries again and again, against all the others: who is beaten three times leaves it to the next look-up.
    await Promise.all(instances.map((shared, index) => lookUp(shared, key, all[index], true)))
    await Promise.all(instances.map((shared) => shared.close()))
    const again = make([shelf]).shared
    await lookUp(again, key, all[0], false)
    await again.close()
    assert.equal(await sequenceOn(shelf, key), 20)
  })

  test('expired record → not written', async () => {
    const [key, shelf] = [createKey(), createShelf()]
    const { shared } = make([shelf])
    await lookUp(shared, key, await recordOf(key, 1, -1000), true)
    await shared.close()
    assert.deepEqual(shelf.calls, ['read'])
  })

  test('tier down → others unaffected, repaired at next lookup', async () => {
    const key = createKey()
    const [out, well] = [createShelf('out'), createShelf('well')]
    out.before = isOut
    const { shared, lines } = make([out, well])
    const record = await recordOf(key, 1)
    for (let times = 0; times < 3; times++) await lookUp(shared, key, record, times === 0)
    while (well.held.size === 0) await setImmediate()
    assert.deepEqual([out.held.size, lines.map(({ event }) => event)], [0, ['names.share-failed']])
    out.before = () => undefined
    assert.deepEqual(await lookUp(shared, key, record, false), [{ sequence: 1n, tier: 'well' }])
    await shared.close()
    assert.equal(await sequenceOn(out, key), 1)
  })

  test('bounded queue keeps newest per name; close is bounded', async () => {
    const clock = createFakeClock()
    const [key, shelf] = [createKey(), createShelf()]
    const { shared } = make([shelf], clock)
    const hung = Promise.withResolvers<void>()
    shelf.before = (call) => (call === 'replace' ? hung.promise : undefined)
    const records = await Promise.all([5, 7, 6].map((sequence) => recordOf(key, sequence)))
    const others = await Promise.all(Array.from({ length: 4 }, async () => createKey()))
    for (const other of others) await lookUp(shared, other, await recordOf(other, 1), true)
    for (const record of records) await lookUp(shared, key, record, true)
    let isClosed = false
    const closing = shared.close().then(() => {
      isClosed = true
    })
    await clock.advance(1999)
    assert.equal(isClosed, false)
    await clock.advance(1)
    await closing
    assert.deepEqual([...shelf.held.keys()], [])
  })
})
