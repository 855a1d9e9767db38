// The S3 store as a storage adapter of a Keyv that knows nothing of blocks: what Keyv promises to those who use it.
import assert from 'node:assert/strict'
import { afterEach, describe, test } from 'node:test'
import Keyv, { type KeyvOptions } from 'keyv'
import { S3Store, type S3StoreOptions } from '../../backends/tiers/s3-store.ts'
import { type S3Faults, type S3Server, startS3Server } from '../support/s3-server.ts'

const open: (() => Promise<void>)[] = []
afterEach(async () => {
  for (const stop of open.splice(0).reverse()) await stop()
})

async function startServer(faults: S3Faults = {}): Promise<S3Server> {
  const server = await startS3Server()
  server.faults = faults
  open.push(() => server.stop())
  return server
}

function storeAt(server: S3Server, more: Partial<S3StoreOptions> = {}): S3Store {
  const { bucket, endpoint, accessKeyId, secretAccessKey } = server
  const store = new S3Store({ bucket, endpoint, accessKeyId, secretAccessKey, forcePathStyle: true, ...more })
  open.push(() => store.disconnect())
  return store
}

const keyvAt = (server: S3Server, options: Omit<KeyvOptions, 'store'> = {}, more: Partial<S3StoreOptions> = {}): Keyv =>
  new Keyv({ store: storeAt(server, { prefix: 'app/', ...more }), throwOnErrors: true, ...options })

const values: readonly unknown[] = [
  'bar',
  '',
  '"',
  "''",
  0,
  false,
  null,
  { fizz: 'buzz' },
  [1, 'two', null],
  Buffer.from('bar'),
  { buff: Buffer.from('buzz') },
  'x'.repeat(3 << 20),
]

describe('Keyv over S3', () => {
  test('set, then get → equal value', async () => {
    const keyv = keyvAt(await startServer())
    for (const [index, value] of values.entries()) {
      assert.equal(await keyv.set(`key ${index} '"<&`, value), true)
      assert.deepEqual(await keyv.get(`key ${index} '"<&`), value)
    }
    assert.equal(await keyv.get('never set'), undefined)
    assert.deepEqual(await keyv.get(['key 0 \'"<&', 'never set']), ['bar', undefined])
  })

  test('set twice → last value', async () => {
    for (const conditional of ['honoured', 'ignored', 'not-implemented'] as const) {
      const keyv = keyvAt(await startServer({ conditional }))
      await keyv.set('foo', 'first')
      await keyv.set('foo', 'second')
      assert.equal(await keyv.get('foo'), 'second', conditional)
    }
  })

  test('expiry → value gone', async () => {
    const keyv = keyvAt(await startServer())
    await keyv.set('soon', 'over', 1)
    await keyv.set('later', 'there', 60_000)
    await new Promise((resolve) => setTimeout(resolve, 10))
    assert.deepEqual([await keyv.get('soon'), await keyv.get('later')], [undefined, 'there'])
  })

  test('delete → true only if the key existed', async () => {
    for (const missing403 of [false, true]) {
      const keyv = keyvAt(await startServer({ missing403 }))
      await keyv.set('foo', 'bar')
      await keyv.set('foo2', 'bar')
      assert.equal(await keyv.delete('foo'), true)
      assert.equal(await keyv.get('foo'), undefined)
      assert.equal(await keyv.delete('foo'), false)
      assert.equal(await keyv.delete(['foo', 'fizz']), false)
      assert.equal(await keyv.delete(['foo2']), true)
      assert.deepEqual([await keyv.has('foo2'), await keyv.has('foo')], [false, false])
    }
  })

  test('namespaces → separate, also for delete and clear', async () => {
    const server = await startServer({ pageSize: 2 })
    const one = keyvAt(server, { namespace: 'one' })
    const other = keyvAt(server, { namespace: 'one-other' })
    const keys = ['a', 'b', 'c', 'd', 'e', '<&>']
    for (const key of keys) {
      await one.set(key, 'one')
      await other.set(key, 'other')
    }
    server.objects.set('elsewhere/one:a', Buffer.from('not of this store'))
    assert.equal(await one.get('a'), 'one')
    assert.equal(await one.delete('a'), true)
    assert.equal(await other.get('a'), 'other')
    assert.equal(await one.clear(), undefined)
    for (const key of keys) assert.deepEqual([await one.get(key), await other.get(key)], [undefined, 'other'])
    assert.equal(server.objects.size, keys.length + 1)
  })

  test('clear without a namespace → the prefix only', async () => {
    const server = await startServer({ pageSize: 2 })
    const keyv = new Keyv(storeAt(server, { prefix: 'app/' }))
    keyv.namespace = undefined
    for (const key of ['a', 'b', 'c', 'd', 'e']) await keyv.set(key, key)
    server.objects.set('application', Buffer.from('not of this store'))
    await keyv.clear()
    assert.deepEqual([...server.objects.keys()], ['application'])
    await keyv.clear()
  })

  test('clear of an entire bucket → refused', async () => {
    const server = await startServer()
    const store = storeAt(server)
    server.objects.set('of others', Buffer.from('x'))
    await assert.rejects(store.clear(), /a prefix or a namespace/)
    assert.equal(server.objects.size, 1)
  })

  test('outage → error, never a missing value', async () => {
    const server = await startServer()
    const keyv = keyvAt(server, {}, { requestMs: 2000 })
    keyv.on('error', () => {})
    await keyv.set('foo', 'bar')
    server.faults = { slowDown: true }
    await assert.rejects(keyv.get('foo'))
    await assert.rejects(keyv.set('foo', 'baz'))
    await assert.rejects(keyv.delete('foo'))
    server.faults = {}
    assert.equal(await keyv.get('foo'), 'bar')
  })
})
