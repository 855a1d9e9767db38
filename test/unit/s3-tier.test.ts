// The S3 tier against the ways in which stores differ: each row of the table is a store somebody runs.
import assert from 'node:assert/strict'
import { afterEach, test } from 'node:test'
import type { Tier } from '../../backends/tiers/contract.ts'
import { s3 } from '../../backends/tiers/s3.ts'
import { systemClock } from '../../src/core/clock.ts'
import { type FailureKind, isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { s3Signer } from '../../src/core/wire/s3.ts'
import { bytesOf, cidOf } from '../../src/testing/tier.ts'
import { type S3Faults, type S3Server, startS3Server } from '../support/s3-server.ts'
import { guarded } from '../support/scripted-tier.ts'

const bytes = bytesOf(5000)
const cid = cidOf(bytes)
const absent = cidOf(bytesOf(10, 9))
const open: (() => Promise<void>)[] = []
afterEach(async () => {
  for (const stop of open.splice(0)) await stop()
})

async function make(faults: S3Faults = {}, more: object = {}): Promise<{ tier: Tier; server: S3Server }> {
  const server = await startS3Server()
  server.faults = faults
  const { bucket, endpoint, accessKeyId, secretAccessKey } = server
  const options = s3.options.parse({ bucket, endpoint, accessKeyId, secretAccessKey, timeout: '10s', ...more })
  const tier = s3.create(options, {
    name: 's3',
    userAgent: 'cidgate/test',
    data: '',
    log: silentLog,
    clock: systemClock,
  })
  open.push(async () => {
    await tier.close()
    await server.stop()
  })
  return { tier, server }
}

async function works(tier: Tier): Promise<void> {
  await tier.put(cid, bytes)
  await tier.put(cid, bytes)
  assert.deepEqual(Buffer.from((await tier.get(cid)) ?? []), Buffer.from(bytes))
  assert.equal(await tier.has(cid), true)
  assert.equal(await tier.get(absent), undefined)
  assert.equal(await tier.has(absent), false)
  await tier.delete(cid)
  assert.equal(await tier.get(cid), undefined)
}

const stores: readonly { readonly name: string; readonly faults: S3Faults }[] = [
  { name: 'AWS', faults: {} },
  { name: 'no s3:ListBucket: 403 for what is not there', faults: { missing403: true } },
  { name: 'B2, older R2: no checksum headers', faults: { noChecksums: true } },
]
for (const { name, faults } of stores) {
  test(`${name} → works`, async () => {
    const { tier } = await make(faults)
    await works(tier)
    await tier.probe?.()
  })
}

test('403 for missing keys → detected once', async () => {
  const { tier, server } = await make({ missing403: true })
  for (let seed = 0; seed < 10; seed++) assert.equal(await tier.get(cidOf(bytesOf(10, seed))), undefined)
  assert.equal(server.requests.filter(({ method }) => method === 'PUT').length, 1)
  assert.equal(server.objects.size, 0, 'the probe left something behind')
})

test('`treat403AsMissing` → used without a probe', async () => {
  const missing = await make({ missing403: true }, { treat403AsMissing: true })
  assert.equal(await missing.tier.get(absent), undefined)
  const refused = await make({ missing403: true }, { treat403AsMissing: false })
  await assert.rejects(refused.tier.get(absent), (error) => isFailure(error, 'refused'))
  for (const { server } of [missing, refused]) assert.equal(server.asked.get('PUT'), undefined)
})

const outages: readonly {
  readonly name: string
  readonly kind: FailureKind
  readonly says: RegExp
  readonly faults?: S3Faults
  readonly options?: object
}[] = [
  {
    name: '503 SlowDown',
    kind: 'throttled',
    says: /rate limited/,
    faults: { slowDown: true },
  },
  { name: 'a wrong key', kind: 'refused', says: /keys and permissions/, options: { accessKeyId: 'somebody' } },
  {
    name: 'a wrong key where 403 means missing',
    kind: 'refused',
    says: /keys/,
    options: { accessKeyId: 'x', treat403AsMissing: true },
  },
  { name: 'a bucket that is not there', kind: 'refused', says: /create the bucket/, options: { bucket: 'other' } },
  {
    name: 'an answer that stalls half way',
    kind: 'timeout',
    says: /longer than 200 ms/,
    faults: { stallsBody: true },
    options: { timeout: '200ms' },
  },
  {
    name: 'an answer after two seconds',
    kind: 'timeout',
    says: /longer than 200 ms/,
    faults: { slowMs: 2000 },
    options: { timeout: '200ms' },
  },
]
for (const { name, kind, says, faults, options } of outages) {
  test(`${name} → outage (${kind}), without secrets`, async () => {
    const { tier, server } = await make({}, options)
    server.objects.set(`blocks/${(await import('../../src/core/cid.ts')).blockKey(cid)}`, Buffer.from(bytes))
    server.faults = faults ?? {}
    await assert.rejects(guarded(tier).get(cid), (error) => {
      assert.ok(isFailure(error, kind), `${error}`)
      assert.match(error.message, says)
      assert.ok(!error.message.includes(server.secretAccessKey))
      return true
    })
  })
}

test('object over 2 MiB → refused before reading, deleted', async () => {
  const { tier, server } = await make()
  await tier.put(cid, bytes)
  const [key] = server.objects.keys()
  server.objects.set(key ?? '', Buffer.alloc(3 << 20))
  assert.equal(await tier.get(cid), undefined)
  assert.equal(server.objects.size, 0)
})

test('truncated response → one more request', async () => {
  const { tier, server } = await make({}, { timeout: '10s' })
  await tier.put(cid, bytes)
  server.faults = { cutsBodies: 1 }
  assert.deepEqual(Buffer.from((await tier.get(cid)) ?? []), Buffer.from(bytes))
  assert.equal(server.faults.cutsBodies, 0)
})

test('write → signed with length and hash', async () => {
  const { tier, server } = await make()
  const blocks = [1, 2, 3, 1].map((seed) => bytesOf(100 * seed, seed))
  for (const block of blocks) await tier.put(cidOf(block), block)
  const writes = server.requests.filter(({ method }) => method === 'PUT').map(({ headers }) => headers)
  const told = (name: string) => writes.map((headers) => headers[name])
  assert.deepEqual(told('content-length'), ['100', '200', '300', '100'])
  assert.equal(new Set(told('x-amz-content-sha256')).size, 3)
  assert.ok(new Set(told('authorization')).size >= 3)
  assert.deepEqual(new Set(told('user-agent')), new Set(['cidgate/test']))
})

test('throttled write → one retry', async () => {
  const { tier, server } = await make({ slowDown: true })
  await assert.rejects(tier.put(cid, bytes))
  assert.equal(server.asked.get('PUT'), 2)
})

const judged: readonly { readonly name: string; readonly faults: S3Faults; readonly gets: number }[] = [
  { name: 'a miss', faults: {}, gets: 1 },
  { name: '503 SlowDown', faults: { slowDown: true }, gets: 2 },
  { name: 'a body that breaks off', faults: { cutsBodies: 5 }, gets: 2 },
]
for (const { name, faults, gets } of judged) {
  test(`${name} → ${gets} requests`, async () => {
    const { tier, server } = await make()
    await tier.put(cid, bytes)
    await tier.get(cid)
    server.asked.clear()
    server.faults = faults
    await tier.get(name === 'a miss' ? absent : cid).catch(() => {})
    assert.equal(server.asked.get('GET'), gets)
  })
}

test('block → own memory of exactly its size', async () => {
  const { tier } = await make()
  await tier.put(cid, bytes)
  const held = await tier.get(cid)
  assert.deepEqual([held?.byteLength, held?.buffer.byteLength], [bytes.byteLength, bytes.byteLength])
})

test('abandoned call → connection freed', async () => {
  const { tier, server } = await make({ slowMs: 10_000 })
  const controller = new AbortController()
  const calls = Array.from({ length: 10 }, () => tier.get(cid, controller.signal).catch(() => 'left'))
  while (server.connections < 10) await new Promise((resolve) => setTimeout(resolve, 5))
  controller.abort(new Error('left'))
  await Promise.all(calls)
  const until = performance.now() + 2000
  while (server.connections > 0 && performance.now() < until) await new Promise((resolve) => setTimeout(resolve, 5))
  assert.equal(server.connections, 0)
})

const probes: readonly { readonly name: string; readonly faults: S3Faults; readonly options?: object }[] = [
  { name: 'loses what is written', faults: { losesWrites: true } },
  { name: 'asks for fewer requests', faults: { slowDown: true } },
  { name: 'has no such bucket', faults: {}, options: { bucket: 'other' } },
  { name: 'does not know our key', faults: {}, options: { accessKeyId: 'somebody' } },
]
for (const { name, faults, options } of probes) {
  test(`store that ${name} → probe fails`, async () => {
    const { tier } = await make(faults, options)
    await assert.rejects(tier.probe?.() ?? Promise.resolve(), (error) => isFailure(error) && error.source === 'tier')
  })
}

test('one key of a pair → configuration error', () => {
  assert.throws(
    () => s3.options.parse({ bucket: 'blocks', accessKeyId: 'alone' }),
    /both accessKeyId and secretAccessKey/,
  )
})

const [accessKeyId, secretAccessKey] = ['AKIAIOSFODNN7EXAMPLE', 'wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY']
const at = new Date('2013-05-24T00:00:00Z')

test("AWS's documented example → its signature", async () => {
  const sign = await s3Signer({ bucket: 'examplebucket', region: 'us-east-1', accessKeyId, secretAccessKey })
  const { origin, path, headers } = await sign({ method: 'GET', key: 'test.txt', headers: { range: 'bytes=0-9' } }, at)
  // In the documentation the host has no region.
  assert.deepEqual([origin, path], ['https://examplebucket.s3.us-east-1.amazonaws.com', '/test.txt'])
  assert.match(headers['authorization'] ?? '', /SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, Signature=/)
  const named = await s3Signer({
    ...{ bucket: 'examplebucket', accessKeyId, secretAccessKey },
    ...{ endpoint: 'https://s3.amazonaws.com', forcePathStyle: false },
  })
  const { headers: same } = await named({ method: 'GET', key: 'test.txt', headers: { range: 'bytes=0-9' } }, at)
  assert.match(
    same['authorization'] ?? '',
    /Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41$/,
  )
})

test('endpoints of R2, MinIO, China, paths → expected addresses', async () => {
  for (const [place, url] of [
    [
      { endpoint: 'https://one.r2.cloudflarestorage.com', region: 'auto' },
      'https://one.r2.cloudflarestorage.com/a.b/k%20%27',
    ],
    [{ endpoint: 'http://127.0.0.1:9000/' }, 'http://127.0.0.1:9000/a.b/k%20%27'],
    [{ endpoint: 'https://x.example/storage/s3', forcePathStyle: true }, 'https://x.example/storage/s3/a.b/k%20%27'],
    [{ endpoint: 'https://x.example:8443', forcePathStyle: false }, 'https://a.b.x.example:8443/k%20%27'],
    [{ region: 'cn-north-1' }, 'https://s3.cn-north-1.amazonaws.com.cn/a.b/k%20%27'],
  ] as const) {
    const sign = await s3Signer({ bucket: 'a.b', accessKeyId, secretAccessKey, ...place })
    const { origin, path, headers } = await sign({ method: 'GET', key: "k '" })
    assert.equal(origin + path, url)
    assert.equal(headers['host'], new URL(url).host)
  }
})

test('no keys configured → environment keys and token', async () => {
  const before = { ...process.env }
  Object.assign(process.env, { AWS_ACCESS_KEY_ID: 'one', AWS_SECRET_ACCESS_KEY: 'two', AWS_SESSION_TOKEN: 'three' })
  try {
    const sign = await s3Signer({ bucket: 'b', region: 'eu-central-1' })
    const { headers } = await sign({ method: 'HEAD' })
    assert.match(headers['authorization'] ?? '', /Credential=one\/\d+\/eu-central-1\/s3\//)
    assert.equal(headers['x-amz-security-token'], 'three')
    delete process.env['AWS_ACCESS_KEY_ID']
    await assert.rejects(s3Signer({ bucket: 'b' }), /npm install @aws-sdk\/credential-provider-node/)
  } finally {
    for (const name of ['AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY', 'AWS_SESSION_TOKEN'])
      if (before[name] === undefined) delete process.env[name]
      else process.env[name] = before[name]
  }
})
