// What is wrong on the wire, said by tools that know nothing of this gateway: scripts of varnishtest, which send bytes as they stand
// there, as clients and as an upstream, and slowhttptest, which holds hundreds of connections as slow as it can.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify, stripVTControlCharacters } from 'node:util'
import { blockKey, parseCid } from '../../src/core/cid.ts'
import { type GatewayProcess, startGateway } from '../soak/gateway-process.ts'
import { addFile, type FileFixture, noise, text } from '../support/fixtures.ts'
import { fetchAll, percentile } from '../support/gateway.ts'
import { type ProgrammableUpstream, startUpstream } from '../support/upstream.ts'
import { freePort, tempFolder } from './support/processes.ts'

const execute = promisify(execFile)
const scripts = join(import.meta.dirname, 'wire')
const closing: (() => unknown)[] = []
let gateway: GatewayProcess
let upstream: ProgrammableUpstream
let hot: FileFixture
let cold: FileFixture[]
/** Asked for in requests that stand in the body of others alone. */
let hidden: FileFixture
const pathOf = ({ cid }: FileFixture): string => `/ipfs/${cid}`

before(async () => {
  const blocks = new Map<string, Uint8Array>()
  hot = await addFile(blocks, text(JSON.stringify({ some: 'x'.repeat(1000) })))
  cold = [await addFile(blocks, noise(300_000, 1)), await addFile(blocks, noise(8_000_000, 2))]
  hidden = await addFile(blocks, noise(1000, 3))
  upstream = await startUpstream({ blocks })
  closing.push(() => upstream.close())
  gateway = await startBefore(upstream.url)
})
after(async () => {
  for (const close of closing.toReversed()) await close()
})

async function startBefore(url: string, retrieval: object = {}): Promise<GatewayProcess> {
  const folder = await tempFolder()
  closing.push(folder.remove)
  const started = await startGateway(folder.path, {
    listen: '127.0.0.1:0',
    admin: false,
    data: join(folder.path, 'data'),
    log: { level: 'error' },
    limits: { headersTimeout: '3s', writeTimeout: '3s', maxConnectionsPerClient: 10_000, perClient: 'none' },
    retrieval: { upstreams: [{ name: 'well', url }], ...retrieval },
  })
  closing.push(() => started.stop())
  return started
}

/** A script, with the words that it has in braces. */
async function follow(script: string, values: Readonly<Record<string, unknown>>): Promise<void> {
  const defined = Object.entries(values).map(([name, value]) => `-D${name}=${value}`)
  await execute('varnishtest', [...defined, join(scripts, `${script}.vtc`)]).catch(
    (error: Error & { readonly stdout?: string }) => assert.fail(error.stdout || error.message),
  )
}

const addressOf = ({ url }: Pick<GatewayProcess, 'url'>): string => new URL(url).host.replace(':', ' ')

/** Whether the gateway put it together from the CID of a block that the upstream has: nothing of a client's request is in it. */
function isBuilt(url: string): boolean {
  const [, text = '', query = ''] = /^\/ipfs\/([a-zA-Z0-9]+)\?([\w&=.*:%-]+)$/.exec(url) ?? []
  const cid = parseCid(text)
  const names = [...new URLSearchParams(query).keys()]
  const known = ['format', 'dag-scope', 'entity-bytes', 'car-version', 'car-order', 'car-dups']
  return cid !== undefined && upstream.blocks.has(blockKey(cid)) && names.every((name) => known.includes(name))
}

describe('byte scripts', () => {
  for (const script of ['smuggling', 'connections', 'targets'])
    test(`${script}.vtc → passes`, { timeout: 60_000 }, async () => {
      const [first] = cold
      assert.ok(first)
      const { headers } = await fetchAll(gateway.url + pathOf(hot))
      await follow(script, {
        gateway: addressOf(gateway),
        hot: pathOf(hot),
        cid: hot.cid,
        size: headers['content-length'],
        cold: pathOf(first),
        coldsize: first.bytes.byteLength,
        hidden: pathOf(hidden),
      })
      const probe = 'bafkqaaa'
      const asked = upstream.seen.map(({ url }) => url).filter((url) => !url.startsWith(`/ipfs/${probe}?`))
      assert.ok(asked.length > 0)
      assert.deepEqual(
        asked.filter((url) => !isBuilt(url) || url.includes(String(hidden.cid))),
        [],
      )
    })

  test('upstream.vtc → passes', { timeout: 60_000 }, async () => {
    const port = await freePort()
    const before = await startBefore(`http://127.0.0.1:${port}`, { probeEvery: 0, backgroundSearch: 0 })
    const blocks = new Map<string, Uint8Array>()
    const contents = ['cut', 'whole', 'next'].map((name) => [name, `what is sent as ${name}`.padEnd(24)] as const)
    const cids = contents.map(async ([name, body]) => [name, (await addFile(blocks, text(body))).cid] as const)
    const { whole: content, ...others } = Object.fromEntries(contents)
    await follow('upstream', {
      ...{ gateway: addressOf(before), listen: `127.0.0.1 ${port}`, beginning: 'what is sent', length: 24 },
      ...{ content, evil: 'what nobody asked for   ' },
      ...Object.fromEntries(Object.entries(others).map(([name, body]) => [`${name}content`, body])),
      ...Object.fromEntries(await Promise.all(cids)),
    })
  })
})

/** Until it is over: what another client got of a hot file meanwhile. */
async function readsBeside(
  work: Promise<unknown>,
): Promise<{ readonly ms: readonly number[]; readonly others: number[] }> {
  let isOver = false
  const over = () => {
    isOver = true
  }
  void work.then(over, over)
  const [ms, others]: [number[], number[]] = [[], []]
  while (!isOver) {
    const began = performance.now()
    const { status, body } = await fetchAll(gateway.url + pathOf(hot))
    if (status !== 200 || !body.equals(hot.bytes)) others.push(status)
    ms.push(performance.now() - began)
    await sleep(20)
  }
  return { ms, others }
}

const connections = 300
const seconds = 8
// A reader holds the block that it is being sent, 1 MiB here, and often the next one.
const maxResidentMiB = 1000

describe('hundreds of slow clients', () => {
  // `left`: how many of them may still be there at the end.
  for (const [what, args, path, left] of [
    ['heads that never end', ['-H', '-x', '24'], () => pathOf(hot), 0],
    [
      'uploads of a few bytes a second',
      ['-B', '-t', 'POST', '-s', '8192', '-f', 'multipart/form-data; boundary=b'],
      () => '/add',
      100,
    ],
    ['thousands of ranges in one request', ['-R', '-b', '3000'], () => pathOf(cold[1] as FileFixture), 0],
    [
      'readers of a few bytes a second',
      ['-X', '-k', '3', '-z', '32', '-w', '256', '-y', '512'],
      () => pathOf(cold[1] as FileFixture),
      connections,
    ],
  ] as const)
    test(`${what} → others unaffected, memory bounded`, { timeout: 60_000 }, async () => {
      const held = ['-c', `${connections}`, '-r', '200', '-i', '1', '-l', `${seconds}`, '-p', '5']
      const slow = execute('slowhttptest', [...held, ...args, '-u', gateway.url + path()])
      const { ms, others } = await readsBeside(slow)
      const { stdout } = await slow
      const p99 = percentile(ms, 0.99)
      const said = stripVTControlCharacters(stdout)
      assert.match(said, /service available:\s+YES/)
      const [, open] = [...said.matchAll(/connected:\s+(\d+)/g)].at(-1) ?? []
      if (!said.includes('No open connections left')) assert.ok(Number(open) <= left, `${open} are left`)
      assert.deepEqual(others, [])
      assert.ok(p99 < 1000, `${p99} ms`)
      assert.ok(gateway.residentMiB() < maxResidentMiB, `${gateway.residentMiB()} MiB`)
    })
})
