// `cidgate reach`: what keeps others from content here is named, the first thing last.
import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { after, before, test } from 'node:test'
import { stringify } from 'yaml'
import { reachCommand } from '../../src/cli/client/reach.ts'
import { startGateway, type TestGateway } from '../support/gateway.ts'
import { startIndexer, type TestIndexer } from '../support/indexer.ts'

let at: TestGateway
let indexer: TestIndexer
let config: Record<string, unknown>
let cid: string
before(async () => {
  const free = createServer().listen(0, '127.0.0.1')
  await new Promise((resolve) => free.once('listening', resolve))
  const { port } = free.address() as AddressInfo
  await new Promise((resolve) => free.close(resolve))
  indexer = await startIndexer()
  const indexers = [{ name: 'test', url: indexer.url }]
  config = { public: `http://127.0.0.1:${port}`, provider: true, announce: { indexers, every: '100ms' } }
  at = await startGateway({ port, config })
  const body = new FormData()
  body.append('data', new Blob(['within reach']), 'x')
  const { cids } = (await (await fetch(`${at.url}/add`, { method: 'POST', body })).json()) as { cids: string[] }
  cid = cids[0]?.slice('/ipfs/'.length) ?? ''
  while (indexer.announced.length === 0) await new Promise((resolve) => setTimeout(resolve, 50))
})
after(async () => {
  await at.close()
  await indexer.close()
})

async function reach(of: string, more: Record<string, unknown> = {}): Promise<{ code: number; lines: string[] }> {
  const file = join(at.data, 'my.yaml')
  await writeFile(file, stringify({ ...config, retrieval: { upstreams: [], routers: [] }, ...more }))
  const stdout = new PassThrough()
  const io = { stdin: process.stdin, stdout, stderr: process.stderr, environment: {} }
  const code = await reachCommand({ values: { config: file }, positionals: [of], io }, of)
  return { code, lines: String(stdout.read()).trim().split('\n') }
}

test('held, announced, and an indexer that does not name it → said last', async () => {
  const { code, lines } = await reach(cid)
  assert.equal(code, 1)
  for (const name of ['public', 'router', 'block', 'headers', 'miss', 'head'])
    assert.ok(
      lines.some((line) => line.startsWith(`ok   ${name}: `)),
      `${name}\n${lines.join('\n')}`,
    )
  assert.match(String(lines.at(-1)), /^first to mend: indexer test: it does not name this gateway/)
})

test('not pinned here → the router names nobody, before anything else', async () => {
  const { code, lines } = await reach('bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e')
  assert.equal(code, 1)
  assert.match(String(lines.at(-1)), /^first to mend: router: .*names nobody for it/)
})

test('no `public`, plain HTTP to a name, nobody there → named', async () => {
  const last = async (more: Record<string, unknown>) => String((await reach(cid, more)).lines.at(-1))
  assert.match(await last({ public: undefined, announce: false }), /^first to mend: public: it is not set/)
  assert.match(await last({ public: 'http://localhost:1', announce: false }), /^first to mend: public: .*plain HTTP/)
  assert.match(await last({ public: 'https://127.0.0.1:1', announce: false }), /^first to mend: router: .*ECONNREFUSED/)
})
