// What is pinned here is published as a chain of advertisements, and indexers are told: over HTTP, as they read it.
import assert from 'node:assert/strict'
import { readFile, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { afterEach, beforeEach, describe, test } from 'node:test'
import { identityIn, readHead } from '../../src/announce/advertisement.ts'
import { parseConfig } from '../../src/gateway.ts'
import { fetchAll, metricsOf, startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'
import { hexOf, startIndexer, type TestIndexer } from '../support/indexer.ts'

let indexer: TestIndexer
beforeEach(async () => {
  indexer = await startIndexer()
})

const open: TestGateway[] = []
afterEach(async () => {
  for (const one of open.splice(0)) await one.close()
  await indexer.close()
})

async function announcing(more: Record<string, unknown> = {}, data?: string): Promise<TestGateway> {
  const at = await startGateway({
    ...(data !== undefined && { data }),
    config: {
      public: 'http://127.0.0.1:1',
      announce: { indexers: [{ name: 'test', url: indexer.url }], every: '100ms' },
      ...more,
    },
  })
  open.push(at)
  return at
}

async function add({ url }: TestGateway, text: string): Promise<string> {
  const body = new FormData()
  body.append('data', new Blob([text]), 'file')
  const answer = (await (await fetch(`${url}/add`, { method: 'POST', body })).json()) as { cids: string[] }
  return answer.cids[0]?.replace('/ipfs/', '') ?? assert.fail()
}

async function unpin({ gateway }: TestGateway, cid: string): Promise<void> {
  const server = createServer(gateway.admin)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const { status } = await fetch(`http://127.0.0.1:${port}/pins/${cid}`, { method: 'DELETE' })
  assert.ok(status < 300, String(status))
  server.closeAllConnections()
  server.close()
}

async function until(what: string, is: () => Promise<boolean> | boolean): Promise<void> {
  for (const end = Date.now() + 10_000; !(await is()); ) {
    assert.ok(Date.now() < end, what)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

const knows = async (at: TestGateway, cid: string) => (await indexer.walk(at.url)).known.has(hexOf(cid))

describe('announce', () => {
  test('uploaded → announced and confirmed; unpinned → removed', async () => {
    const at = await announcing()
    assert.equal((await fetchAll(`${at.url}/ipni/v1/ad/head`)).status, 204)
    const [first, second] = [await add(at, 'one'), await add(at, 'two')]
    await until('both are announced', async () => (await knows(at, first)) && (await knows(at, second)))
    await until('it is confirmed', async () =>
      /cidgate_announce_confirmed\{indexer="test"\} 1/.test(await metricsOf(at.gateway)),
    )
    await unpin(at, first)
    await until('it is removed', async () => !(await knows(at, first)))
    await until('the other is known', () => knows(at, second))
    const head = await fetchAll(`${at.url}/ipni/v1/ad/head`)
    assert.equal(head.headers['cache-control'], 'no-store')
    const { peerId } = identityIn(join(at.data, 'identity.pem'))
    assert.equal(readHead(head.body, peerId).toString(), indexer.announced.at(-1))
    const ad = await fetchAll(`${at.url}/ipni/v1/ad/${indexer.announced.at(-1)}`)
    assert.match(String(ad.headers['cache-control']), /immutable/)
    for (const none of ['x', '../head', indexer.announced[0]?.replace('a', 'b')])
      assert.equal((await fetchAll(`${at.url}/ipni/v1/ad/${none}`)).status, 404)
    assert.equal((await fetch(`${at.url}/ipni/v1/ad/head`, { method: 'PUT' })).status, 405)
  })

  test('restart → chain continues', async () => {
    const data = await tempFolder()
    const one = await announcing({}, data)
    const first = await add(one, 'before')
    await until('it is announced', () => knows(one, first))
    await open.pop()?.close()
    const two = await announcing({}, data)
    const second = await add(two, 'after')
    await until('it is announced', () => knows(two, second))
    const { known, heads } = await indexer.walk(two.url)
    assert.ok(known.has(hexOf(first)))
    assert.equal(heads.size, 2)
  })

  test('disk damaged → 503 to indexers, never 404', async () => {
    const data = await tempFolder()
    const at = await announcing({}, data)
    const cid = await add(at, 'kept on a bad disk')
    await until('it is announced', () => knows(at, cid))
    await open.pop()?.close()
    const file = join(data, 'cidgate.sqlite')
    const db = new DatabaseSync(file)
    const pages = db
      .prepare("select rootpage from sqlite_schema where tbl_name in ('announce_ad', 'announce_chunk')")
      .all() as { rootpage: number }[]
    db.close()
    const bytes = await readFile(file)
    for (const { rootpage } of pages) bytes.fill(0, (rootpage - 1) * 4096, rootpage * 4096)
    await writeFile(file, bytes)
    const again = await announcing({}, data)
    for (const name of ['head', String(indexer.announced[0])]) {
      const { status, headers } = await fetchAll(`${again.url}/ipni/v1/ad/${name}`)
      assert.equal(status, 503, name)
      assert.ok(Number(headers['retry-after']) > 0)
    }
  })

  test('client over its limit → content 429, chain 200', async () => {
    const at = await announcing({ limits: { perClient: { perMinute: 1, burst: 1 } } })
    const statuses = async (path: string) =>
      (await Promise.all(Array.from({ length: 5 }, () => fetchAll(at.url + path)))).map(({ status }) => status)
    assert.ok((await statuses('/ipfs/bafkqaaa')).includes(429))
    assert.deepEqual(await statuses('/ipni/v1/ad/head'), [204, 204, 204, 204, 204])
  })

  test('denied → removed, absent from our router', async () => {
    const data = await tempFolder()
    const list = join(data, 'list.deny')
    await writeFile(list, '')
    const at = await announcing({ denylists: [list] }, data)
    const [stays, goes] = [await add(at, 'stays'), await add(at, 'goes')]
    await until('both are announced', async () => (await knows(at, stays)) && (await knows(at, goes)))
    await writeFile(list, `/ipfs/${goes}\n`)
    await until('it is removed', async () => !(await knows(at, goes)))
    await until('the other is known', () => knows(at, stays))
  })

  test('indexer refuses → retried, nothing lost', async () => {
    indexer.refuses = 503
    const at = await announcing()
    const cid = await add(at, 'told late')
    await until('it was refused', () => at.log.some(({ event }) => event === 'announce.indexer-failed'))
    indexer.refuses = undefined
    await until('it is announced', () => knows(at, cid))
  })

  test('configuration mistakes → named', () => {
    const wrong = (input: Record<string, unknown>, what: RegExp) => assert.throws(() => parseConfig(input), what)
    wrong({ announce: {} }, /announce: others could not reach this gateway \(expected `public`/)
    wrong({ announce: {}, public: 'http://gw.example' }, /public: other nodes ask a name over https alone/)
    wrong({ announce: {}, public: 'https://gw.example/below' }, /public: .*only a scheme and a host/)
    wrong(
      { announce: {}, public: 'https://gw.example', pinning: { providers: [] } },
      /this disk stores nothing to announce/,
    )
    wrong({ announce: true, public: 'https://gw.example' }, /expected false, or a mapping/)
    assert.equal(parseConfig({ announce: {}, public: 'https://gw.example' }).announce !== false, true)
  })
})
