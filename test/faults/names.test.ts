// Fault: upstreams that hold back the newest IPNS record, sign it with another key, replay an old one, answer with a page, never
// answer, or are all down; and a restart in the middle. Only a record that the key signed is believed, the newest that was ever
// seen, and not past its validity.
import assert from 'node:assert/strict'
import { rm } from 'node:fs/promises'
import { afterEach, before, beforeEach, describe, test } from 'node:test'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { type Fetched, fetchAll, inParallel, startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'
import { createKey, type TestKey } from '../support/ipns.ts'
import { createShiftedClock, type ShiftedClock } from '../support/shifted-clock.ts'
import { openStore } from '../support/stores.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'
import { takesLess } from '../support/work.ts'

const hour = 3_600_000

let all: Fixtures
let data: string
let clock: ShiftedClock
let key: TestKey
let gateway: TestGateway
let isOpen = false
let one: ProgrammableUpstream
let two: ProgrammableUpstream
let three: ProgrammableUpstream

before(async () => {
  all = await fixtures()
})
beforeEach(async () => {
  data = await tempFolder()
  clock = createShiftedClock()
  key = createKey()
  one = await startUpstream({ blocks: all.blocks })
  two = await startUpstream({ blocks: all.blocks })
  three = await startUpstream({ blocks: all.blocks })
  await start()
})
afterEach(async () => {
  await stop()
  await Promise.all([one, two, three].map((upstream) => upstream.close()))
  await rm(data, { recursive: true, force: true })
})

async function stop(): Promise<void> {
  if (isOpen) await gateway.close()
  isOpen = false
}
async function start(): Promise<void> {
  isOpen = true
  gateway = await startGateway({
    upstreams: Object.entries({ one, two, three }).map(([name, { url }]) => ({
      name,
      url,
      firstByteTimeout: '500ms',
      bodyTimeout: '500ms',
    })),
    data,
    clock,
    config: { cache: { tiers: [{ use: 'disk', maxBytes: '64MiB' }] }, names: { timeout: '2s' } },
  })
}
const restart = async () => {
  await stop()
  await start()
}
/** While no gateway is over the folder. */
const keptRecords = async () => {
  const store = openStore(data)
  const rows = await store.read('select name from record')
  await store.close()
  return rows
}
const get = (path = `/ipns/${key.name}`, headers: Record<string, string> = {}): Promise<Fetched> =>
  fetchAll(`${gateway.url}${path}`, headers)
const silence = () => {
  for (const upstream of [one, two, three]) upstream.fault = { kind: 'refuse' }
}
const hello = (facts = {}) => key.record(`/ipfs/${all.files.hello.cid}`, { sequence: 1, ttlMs: 60_000, ...facts })
const json = (facts = {}) => key.record(`/ipfs/${all.files.json.cid}`, { sequence: 2, ttlMs: 60_000, ...facts })
const isHello = ({ headers }: Fetched) => headers.etag === `"${all.files.hello.cid}"`
const isJson = ({ headers }: Fetched) => headers.etag === `"${all.files.json.cid}"`
const attemptsOf = ({ body }: Fetched) =>
  (JSON.parse(body.toString()) as { attempts: { upstream: string; outcome: string }[] }).attempts

describe('IPNS with wrong or failing upstreams', () => {
  test('newest record wins, whichever arrives last', async () => {
    for (const late of [one, two]) {
      key = createKey()
      one.records.set(key.name, await hello())
      two.records.set(key.name, await json())
      one.delayMs = two.delayMs = 0
      late.delayMs = 150
      assert.ok(isJson(await get()))
    }
  })

  test('forged record → refused: wrong key, bad signature, HTML page', async () => {
    const forged = await createKey().record(`/ipfs/${all.files.json.cid}`, { sequence: 99 })
    one.records.set(key.name, forged)
    two.records.set(key.name, await json())
    two.fault = ({ url }) => (url.startsWith('/ipns/') ? { kind: 'wrongBytes', block: 0 } : undefined)
    three.records.set(key.name, await hello())
    assert.ok(isHello(await get()))
    assert.ok(gateway.log.some(({ event, facts }) => event === 'names.invalid-record' && facts['upstream'] === 'one'))
    const other = createKey()
    for (const upstream of [one, two])
      upstream.fault = ({ url }) => (url.startsWith('/ipns/') ? { kind: 'html' } : undefined)
    three.records.set(other.name, await other.record(`/ipfs/${all.files.hello.cid}`))
    assert.ok(isHello(await get(`/ipns/${other.name}`)))
    assert.ok(isHello(await get(`/ipfs/${all.files.hello.cid}`)), 'for blocks they are asked as ever')
  })

  test('only forged records → 502 that says so, nothing stored', async () => {
    const forged = await createKey().record(`/ipfs/${all.files.json.cid}`)
    for (const upstream of [one, two, three]) upstream.records.set(key.name, forged)
    const answer = await get()
    assert.equal(answer.status, 502)
    assert.deepEqual(
      attemptsOf(answer).map(({ outcome }) => outcome),
      ['hash-mismatch', 'hash-mismatch', 'hash-mismatch'],
    )
    await stop()
    assert.deepEqual(await keptRecords(), [])
  })

  test('older record never replaces a newer one, even after restart', async () => {
    one.records.set(key.name, await json())
    assert.ok(isJson(await get()))
    for (const upstream of [one, two, three])
      upstream.records.set(key.name, await hello({ lifetimeMs: 300 * 24 * hour }))
    clock.shift(60_000)
    assert.ok(isJson(await get()))
    await restart()
    clock.shift(60_000)
    assert.ok(isJson(await get()))
  })

  test('newer one expired → older not served, still newer is', async () => {
    one.records.set(key.name, await json({ lifetimeMs: hour }))
    assert.ok(isJson(await get()))
    for (const upstream of [one, two, three]) upstream.records.set(key.name, await hello({ lifetimeMs: 24 * hour }))
    clock.shift(hour)
    const older = await get()
    assert.equal(older.status, 404)
    assert.deepEqual(new Set(attemptsOf(older).map(({ outcome }) => outcome)), new Set(['older']))
    await restart()
    assert.equal((await get()).status, 404)
    two.records.set(key.name, await hello({ sequence: 3, lifetimeMs: 24 * hour }))
    clock.shift(10_000)
    assert.ok(isHello(await get()))
  })

  test('expired → refused; near its end → cached no longer', async () => {
    for (const upstream of [one, two, three]) upstream.records.set(key.name, await hello({ lifetimeMs: -1000 }))
    assert.equal((await get()).status, 404)
  })

  test('upstreams down → last valid record served stale until expiry', async () => {
    one.records.set(key.name, await hello({ lifetimeMs: 2 * hour }))
    assert.ok(isHello(await get()))
    silence()
    clock.shift(hour)
    const stale = await get()
    assert.deepEqual([stale.status, isHello(stale)], [200, true])
    assert.match(stale.headers['cache-control'] ?? '', /^public, max-age=(10|9)\b/)
    clock.shift(hour - 20_000)
    assert.ok(isHello(await get()))
    clock.shift(20_000)
    const gone = await get()
    assert.equal(gone.status, 404)
    assert.equal(gone.headers['cache-control'], 'no-store')
  })

  test('stored record → verified and served after restart', async () => {
    one.records.set(key.name, await hello({ lifetimeMs: 2 * hour }))
    assert.ok(isHello(await get()))
    silence()
    await restart()
    assert.ok(isHello(await get()))
    await stop()
    const changed = openStore(data)
    const [row] = await changed.read('select name, bytes from record')
    assert.equal(row?.name, key.name)
    const bytes = Buffer.from(row?.bytes as Uint8Array)
    bytes[bytes.byteLength - 10] = (bytes[bytes.byteLength - 10] as number) ^ 1
    await changed.write([{ sql: 'update record set bytes = ?', args: [bytes] }])
    await changed.close()
    await start()
    assert.equal((await get()).status, 404)
    await stop()
    assert.deepEqual(await keptRecords(), [])
  })

  test('silent upstream → known name 1 s late, unknown at timeout', async () => {
    one.records.set(key.name, await hello())
    assert.ok(isHello(await get()))
    for (const upstream of [one, two, three]) upstream.fault = { kind: 'silent' }
    await takesLess(1_800, async () => {
      clock.shift(60_000)
      const stale = await get()
      assert.ok(isHello(stale))
      return stale.ms
    })
    const unknown = await get(`/ipns/${createKey().name}`)
    assert.equal(unknown.status, 404)
    assert.ok(unknown.ms < 10_000, `${unknown.ms} ms`)
  })

  test('300 concurrent requests for a name → one upstream request', async () => {
    one.records.set(key.name, await hello())
    one.delayMs = 50
    const answers = await inParallel(Array.from({ length: 300 }), 300, () => get())
    assert.ok(answers.every(isHello))
    assert.equal(one.asked.filter(({ url }) => url.startsWith('/ipns/')).length, 1)
  })

  test('absent names keep upstreams healthy; rate-limited ones not asked', async () => {
    one.fault = ({ url }) =>
      url.startsWith('/ipns/') ? { kind: 'status', status: 500, body: 'routing: not found' } : undefined
    two.fault = one.fault
    three.fault = ({ url }) => (url.startsWith('/ipns/') ? { kind: 'throttle', retryAfter: '900' } : undefined)
    for (let count = 0; count < 12; count++) assert.equal((await get(`/ipns/${createKey().name}`)).status, 404)
    assert.equal(three.asked.length, 1)
    assert.equal((await get(`/ipfs/${all.files.hello.cid}`)).status, 200)
    assert.deepEqual(
      gateway.log.filter(({ event }) => event === 'upstream.unhealthy'),
      [],
    )
  })
})
