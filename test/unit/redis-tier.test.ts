// The Redis tier: what is on the wire and in the server, and what an operator is told when it fails.
import assert from 'node:assert/strict'
import { afterEach, test } from 'node:test'
import type { Tier } from '../../backends/tiers/contract.ts'
import { redis } from '../../backends/tiers/redis.ts'
import { blockKey } from '../../src/core/cid.ts'
import { type Clock, systemClock } from '../../src/core/clock.ts'
import { type FailureKind, isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { bytesOf, cidOf, eventually } from '../../src/testing/tier.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { type RedisFaults, type RedisServer, startRedisServer } from '../support/redis-server.ts'

const bytes = bytesOf(5000)
const cid = cidOf(bytes)
const open: (() => Promise<void>)[] = []
afterEach(async () => {
  for (const stop of open.splice(0)) await stop()
})

async function make(
  faults: RedisFaults = {},
  more: object = {},
  login = '',
  clock: Clock = systemClock,
): Promise<{ tier: Tier; server: RedisServer }> {
  const server = await startRedisServer()
  server.faults = faults
  const options = redis.options.parse({ url: server.url.replace('://', `://${login}`), timeout: '10s', ...more })
  const tier = redis.create(options, {
    name: 'redis',
    userAgent: 'cidgate/test',
    data: '',
    log: silentLog,
    clock,
  })
  open.push(async () => {
    await tier.close()
    await server.stop()
  })
  return { tier, server }
}

test('server stores plain bytes under the block key', async () => {
  const { tier, server } = await make({}, { prefix: 'here:' })
  await tier.put(cid, bytes)
  assert.deepEqual([...server.values.keys()], [`here:${blockKey(cid)}`])
  assert.deepEqual(server.values.get(`here:${blockKey(cid)}`)?.value, Buffer.from(bytes))
})

test('ttl → server expires keys; without → none set', async () => {
  const short = await make({}, { ttl: '1h' })
  await short.tier.put(cid, bytes)
  const [kept] = short.server.values.values()
  assert.ok(kept?.expires && Math.abs(kept.expires - Date.now() - 3_600_000) < 5000)
  const long = await make()
  await long.tier.put(cid, bytes)
  assert.equal([...long.server.values.values()][0]?.expires, undefined)
})

const outages: readonly {
  readonly name: string
  readonly faults: RedisFaults
  readonly login?: string
  readonly timeout?: string
  readonly kind: FailureKind
  readonly says: RegExp
}[] = [
  {
    name: 'out of memory',
    faults: { error: "OOM command not allowed when used memory > 'maxmemory'." },
    kind: 'upstream-error',
    says: /OOM/,
  },
  {
    name: 'still loading',
    faults: { error: 'LOADING Redis is loading the dataset in memory' },
    kind: 'upstream-error',
    says: /LOADING/,
  },
  { name: 'asking for a password', faults: { password: 'right' }, kind: 'refused', says: /NOAUTH.*user and password/ },
  {
    name: 'refusing the password',
    faults: { password: 'right' },
    login: ':wrong-secret@',
    timeout: '1s', // the client is told at its first try, and then tries for so long
    kind: 'refused',
    says: /WRONGPASS.*password/,
  },
]
for (const { name, faults, login, timeout = '10s', kind, says } of outages) {
  test(`server that is ${name} → explained outage, no password`, async () => {
    const { tier } = await make(faults, { timeout }, login)
    await tier.get(cid).catch(() => {}) // it may still be connecting
    for (const call of [() => tier.get(cid), () => tier.put(cid, bytes), () => tier.has(cid)]) {
      await assert.rejects(call(), (error) => {
        assert.ok(isFailure(error, kind), `${error}`)
        assert.match(error.message, says)
        assert.ok(!error.message.includes('wrong-secret'))
        return true
      })
    }
  })
}

test('correct password → used', async () => {
  const { tier } = await make({ password: 'right' }, {}, ':right@')
  await tier.put(cid, bytes)
  assert.ok(await tier.get(cid))
  await tier.probe?.()
})

test('server down → calls fail at once, used again after recovery', async () => {
  const { tier, server } = await make()
  await tier.put(cid, bytes)
  await server.refuse()
  await eventually('the client knows', () =>
    tier.get(cid).then(
      () => false,
      () => true,
    ),
  )
  const began = performance.now()
  for (let turn = 0; turn < 20; turn++)
    await assert.rejects(tier.get(cid), (error) => isFailure(error, 'upstream-error'))
  assert.ok(performance.now() - began < 2000) // each of them would wait for half a second
  await server.heal()
  await eventually('it is back', () => tier.get(cid).then(Boolean, () => false))
})

test('half-open connection → replaced, although writes succeed', async () => {
  const clock = createFakeClock()
  const { tier, server } = await make({}, {}, '', clock)
  await tier.put(cid, bytes)
  server.strand()
  const lost = assert.rejects(tier.get(cid), (error) => isFailure(error, 'upstream-error'))
  await clock.advance(3000)
  await lost
  assert.deepEqual(await tier.get(cid), Buffer.from(bytes))
  await eventually('the old one is closed', () => server.connections === 1)
})

test('slow server → connection kept', async () => {
  const clock = createFakeClock()
  const { tier, server } = await make({}, {}, '', clock)
  await tier.put(cid, bytes)
  const saidOnce = server.clients.length
  server.faults = { slowMs: 100 }
  const late = tier.get(cid)
  await clock.advance(1000)
  await eventually('it is asked whether it is there', () => server.waiting === 2)
  server.faults = { slowMs: 5000 }
  await clock.advance(2000)
  await eventually('a second one is opened', () => server.connections === 2)
  assert.deepEqual(await late, Buffer.from(bytes))
  await eventually('the second one is closed', () => server.connections === 1)
  // The second one ends its attempts a moment later.
  server.faults = { slowMs: 10 }
  for (let reads = 0; reads < 20; reads++) assert.deepEqual(await tier.get(cid), Buffer.from(bytes))
  assert.equal(server.clients.length, saidOnce)
})

test('probe detects lost writes', async () => {
  const { tier } = await make({ losesWrites: true })
  await assert.rejects(tier.probe?.() ?? Promise.resolve(), /lost a value that was just written/)
})

test('Redis never responds → calls time out, close is clean', async () => {
  const { tier, server } = await make({}, { timeout: '200ms' })
  await server.refuse()
  const began = performance.now()
  await assert.rejects(tier.get(cid), (error) => isFailure(error) && error.source === 'tier')
  assert.ok(performance.now() - began < 3000)
  await tier.close()
  await assert.rejects(tier.get(cid), (error) => isFailure(error, 'unavailable'))
})
