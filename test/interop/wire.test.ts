// What is wrong on the wire, said by tools that know nothing of this gateway: scripts of varnishtest, which send bytes as they stand
// there, and slowhttptest, which holds hundreds of connections as slow as it can.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify, stripVTControlCharacters } from 'node:util'
import { type GatewayProcess, startGateway } from '../soak/gateway-process.ts'
import { addFile, type FileFixture, noise, text } from '../support/fixtures.ts'
import { fetchAll, percentile } from '../support/gateway.ts'
import { startUpstream } from '../support/upstream.ts'
import { tempFolder } from './support/processes.ts'

const execute = promisify(execFile)
const scripts = join(import.meta.dirname, 'wire')
const closing: (() => unknown)[] = []
let gateway: GatewayProcess
let hot: FileFixture
let cold: FileFixture[]
const pathOf = ({ cid }: FileFixture): string => `/ipfs/${cid}`

before(async () => {
  const blocks = new Map<string, Uint8Array>()
  hot = await addFile(blocks, text(JSON.stringify({ some: 'x'.repeat(1000) })))
  cold = [await addFile(blocks, noise(300_000, 1)), await addFile(blocks, noise(8_000_000, 2))]
  const upstream = await startUpstream({ blocks })
  closing.push(() => upstream.close())
  const folder = await tempFolder()
  closing.push(folder.remove)
  gateway = await startGateway(folder.path, {
    listen: '127.0.0.1:0',
    admin: false,
    data: join(folder.path, 'data'),
    log: { level: 'error' },
    limits: { headers: '3s', stalled: '3s', connectionsPerClient: 10_000, perClient: 'none' },
    retrieval: { upstreams: [{ name: 'well', url: upstream.url }] },
  })
  closing.push(() => gateway.stop())
})
after(async () => {
  for (const close of closing.toReversed()) await close()
})

describe('bytes as they stand in the scripts', () => {
  for (const script of ['smuggling', 'connections', 'targets'])
    test(`${script}.vtc`, { timeout: 60_000 }, async () => {
      const [first] = cold
      assert.ok(first)
      const { headers } = await fetchAll(gateway.url + pathOf(hot))
      const values = {
        gateway: new URL(gateway.url).host.replace(':', ' '),
        hot: pathOf(hot),
        cid: hot.cid,
        size: headers['content-length'],
        cold: pathOf(first),
        coldsize: first.bytes.byteLength,
      }
      const defined = Object.entries(values).map(([name, value]) => `-D${name}=${value}`)
      await execute('varnishtest', [...defined, join(scripts, `${script}.vtc`)]).catch(
        (error: Error & { readonly stdout?: string }) => assert.fail(error.stdout || error.message),
      )
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
const mostResidentMiB = 1000

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
    test(`${what}: others are answered as before, and memory is bounded`, { timeout: 60_000 }, async () => {
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
      assert.ok(gateway.residentMiB() < mostResidentMiB, `${gateway.residentMiB()} MiB`)
    })
})
