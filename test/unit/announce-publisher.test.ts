// The publisher against indexers in the hand of the test: who is told of which head, how often, and whether it was believed.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import * as dagCbor from '@ipld/dag-cbor'
import { CID } from 'multiformats/cid'
import type { Chain } from '../../src/announce/chain.ts'
import { createPublisher, type IndexerClient } from '../../src/announce/publisher.ts'
import { Failure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { identityOf } from '../support/identity.ts'

const identity = identityOf(Buffer.alloc(32, 7))
const heads = [
  'baguqeera5bjvwbsgfdco32fxyia53wkcis7tdcihtmdtc6jc2u4ie6rc7dva',
  'baguqeeracvmroku32xhe7crwpfpcdpnqrvx2bpvmxuddopxokpydl3lsh7ba',
]

function made() {
  const clock = createFakeClock()
  const announced: string[] = []
  const chain = { head: heads[0] as string | undefined, publishes: 0, fails: false }
  const indexer = {
    fails: false,
    last: undefined as string | undefined,
    error: undefined as string | undefined,
    asked: 0,
  }
  const over: Chain = {
    head: async () => (chain.head === undefined ? undefined : CID.parse(chain.head)),
    block: async () => undefined,
    async publish() {
      chain.publishes++
      if (chain.fails) throw new Failure('disk-error', 'the disk is full', { source: 'ours' })
      return this.head()
    },
    recheckDenylists() {},
    counts: async () => ({ advertisements: 1, contexts: 1, roots: 1 }),
  }
  const client: IndexerClient = {
    name: 'indexer',
    async announce(body) {
      const [head, places] = dagCbor.decode<[CID, Uint8Array[]]>(body)
      assert.ok(places.length === 1 && Buffer.from(places[0] as Uint8Array).includes(Buffer.from('gw.example')))
      if (indexer.fails) throw new Failure('upstream-error', 'indexer answered with 500', { source: 'upstream' })
      announced.push(head.toString())
    },
    async provider() {
      indexer.asked++
      return { last: indexer.last, error: indexer.error }
    },
    close: async () => {},
  }
  const publisher = createPublisher({
    chain: over,
    identity,
    addresses: ['/dns/gw.example/tcp/443/https', '/dns/gw.example/tcp/443/tls/http'],
    indexers: [client],
    everyMs: 60_000,
    clock,
    log: silentLog,
  })
  const pass = async (ms: number) => {
    const step = ms > 3_600_000 ? 60_000 : 1000
    for (let left = ms; left > 0; left -= step) {
      await clock.advance(Math.min(step, left))
      for (let turn = 0; turn < 5; turn++) await new Promise(setImmediate)
    }
  }
  return { announced, chain, indexer, publisher, pass }
}

test('new head → sent once, confirmed by a query', async () => {
  const { announced, indexer, publisher, pass } = made()
  await pass(3000)
  assert.deepEqual(announced, heads.slice(0, 1))
  assert.equal(publisher.state().indexers[0]?.confirmed, undefined)
  assert.ok((publisher.state().indexers[0]?.lagMs ?? 0) > 0)
  indexer.last = heads[0]
  await pass(60_000)
  const [state] = publisher.state().indexers
  assert.deepEqual([state?.confirmed, state?.lagMs, state?.lastError], [heads[0], 0, undefined])
  const { asked } = indexer
  await pass(600_000)
  assert.equal(indexer.asked, asked)
  assert.equal(announced.length, 1)
  await publisher.close()
})

test('changed head → sent with the next batch; resent daily', async () => {
  const { announced, chain, indexer, publisher, pass } = made()
  indexer.last = heads[0]
  await pass(5000)
  chain.head = heads[1]
  await pass(60_000)
  assert.deepEqual(announced, heads)
  indexer.last = heads[1]
  await pass(3_600_000)
  assert.equal(announced.length, 2)
  await pass(21 * 3_600_000)
  assert.equal(announced.length, 2)
  await pass(3 * 3_600_000)
  assert.deepEqual(announced, [...heads, heads[1]])
  await publisher.close()
})

test('failing indexer → backoff, then sent', async () => {
  const { announced, chain, indexer, publisher, pass } = made()
  indexer.fails = true
  await pass(30_000)
  assert.match(String(publisher.state().indexers[0]?.lastError), /500/)
  chain.head = heads[1]
  indexer.fails = false
  await pass(120_000)
  assert.deepEqual([...new Set(announced)], heads)
  assert.equal(publisher.state().indexers[0]?.lastError, undefined)
  indexer.error = 'no such entries'
  await pass(60_000)
  assert.equal(publisher.state().indexers[0]?.lastError, 'no such entries')
  await publisher.close()
})

test('never confirmed → announced again with backoff', async () => {
  const { announced, indexer, publisher, pass } = made()
  await pass(25_000)
  assert.equal(announced.length, 1)
  await pass(20_000)
  assert.equal(announced.length, 2)
  await pass(3_600_000)
  const { length } = announced
  assert.ok(length > 3 && length < 10, String(length))
  indexer.last = heads[0]
  await pass(3_700_000)
  const told = announced.length
  await pass(3_600_000)
  assert.equal(announced.length, told)
  await publisher.close()
})

test('disk failure → reported, retried with the next batch', async () => {
  const { announced, chain, publisher, pass } = made()
  chain.fails = true
  await pass(130_000)
  assert.ok(chain.publishes >= 2)
  assert.match(String(publisher.state().lastError), /full/)
  chain.fails = false
  await pass(61_000)
  assert.equal(publisher.state().lastError, undefined)
  assert.deepEqual(announced, heads.slice(0, 1))
  await publisher.close()
})

test('nothing stored yet → no announcement', async () => {
  const { announced, chain, publisher, pass } = made()
  chain.head = undefined
  await pass(300_000)
  assert.deepEqual(announced, [])
  await publisher.close()
})
