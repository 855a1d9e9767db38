// A gateway behind unix sockets, as a proxy on the same machine asks it: who may open the file, what a killed process
// leaves behind, and which client a request is of.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, rmdirSync, statSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { Agent, get, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PassThrough, Readable } from 'node:stream'
import { after, before, describe, test } from 'node:test'
import { notesOnTrust, unusableSockets } from '../../src/cli/check.ts'
import { run } from '../../src/cli/run.ts'
import { parseConfig } from '../../src/config/load.ts'
import { listenOnUnix } from '../../src/server/unix-socket.ts'
import { type Served, startServed } from '../support/served.ts'

let folder = ''
let at: Served
let paths: { readonly listen: string; readonly admin: string }
const config = (more: object = {}) => ({
  listen: `unix:${paths.listen}`,
  admin: `unix:${paths.admin}`,
  upload: { auth: 'open' },
  trustedProxies: ['unix'],
  limits: { perClient: { perMinute: 1, burst: 2 }, maxConnectionsPerClient: 1 },
  ...more,
})

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'cidgate-unix-'))
  paths = { listen: join(folder, 'public.sock'), admin: join(folder, 'admin.sock') }
  at = await startServed(config())
})
after(async () => {
  await at.close()
  await rm(folder, { recursive: true })
})

type Asked = { readonly status: number; readonly body: string }

const ask = (socketPath: string, path: string, headers: Record<string, string> = {}, agent = false as Agent | false) =>
  new Promise<Asked>((resolve, reject) => {
    get({ socketPath, path, agent, headers: { host: 'localhost', ...headers } }, (response) => {
      let body = ''
      response.setEncoding('utf8').on('data', (chunk) => {
        body += chunk
      })
      response.once('end', () => resolve({ status: response.statusCode ?? 0, body }))
    }).once('error', reject)
  })

const empty = '/ipfs/bafkqaaa'
const modeOf = (path: string) => (statSync(path).mode & 0o777).toString(8)

/** A socket that no process listens at, as a killed one leaves it. */
function leaveSocket(path: string): void {
  const program = `require('node:net').createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, 'SIGKILL'))`
  assert.throws(() => execFileSync(process.execPath, ['-e', program]))
  assert.ok(statSync(path).isSocket())
}

describe('unix sockets', () => {
  test('serve, and are reported by path', async () => {
    assert.deepEqual([at.serving.listen, at.serving.admin], [`unix:${paths.listen}`, `unix:${paths.admin}`])
    assert.equal((await ask(paths.listen, empty, { 'x-forwarded-for': '192.0.2.1' })).status, 200)
  })

  test('owner and group; admin: owner only; reload changes the mode', async () => {
    assert.deepEqual([modeOf(paths.listen), modeOf(paths.admin)], ['660', '600'])
    assert.ok(await at.reload(config({ listen: `unix:${paths.listen},mode=0666` })))
    assert.deepEqual([modeOf(paths.listen), modeOf(paths.admin)], ['666', '600'])
    assert.ok(await at.reload(config()))
    assert.equal(modeOf(paths.listen), '660')
  })

  test('umask of other files is unaffected', () => {
    const path = join(folder, 'beside')
    const server = { listening: false, listen: () => mkdirSync(path) } as unknown as Server
    for (const kind of ['listen', 'admin'] as const) {
      listenOnUnix(server, { path: join(folder, 'never.sock') }, kind, 1)
      assert.equal(statSync(path).mode & 0o700, 0o700, kind)
      rmdirSync(path)
    }
  })

  test('reload moves the socket and removes the old one', async () => {
    const moved = join(folder, 'moved.sock')
    assert.ok(await at.reload(config({ listen: `unix:${moved}` })))
    assert.deepEqual([existsSync(moved), existsSync(paths.listen)], [true, false])
    assert.ok(await at.reload(config()))
    assert.deepEqual([existsSync(moved), existsSync(paths.listen)], [false, true])
  })
})

describe('socket at start', () => {
  const other = async (path: string, more: object = {}) => {
    const own = await startServed({ ...config(more), listen: `unix:${path}`, admin: false })
    await own.close()
    return existsSync(path)
  }

  test('stale socket → replaced; stop removes its own', async () => {
    const path = join(folder, 'left.sock')
    leaveSocket(path)
    assert.equal(await other(path), false)
  })

  test('socket in use → refused, other process unaffected', async () => {
    await assert.rejects(
      other(paths.listen),
      /listen: unix:.*public\.sock cannot be listened on: another process answers/,
    )
    assert.equal((await ask(paths.listen, empty, { 'x-forwarded-for': '192.0.2.2' })).status, 200)
  })

  test('path is not a socket → refused, file kept', async () => {
    const path = join(folder, 'notes.txt')
    await writeFile(path, 'mine')
    await assert.rejects(other(path), /a file that is not a socket exists there: remove it/)
    assert.ok(existsSync(path))
    await assert.rejects(other(join(folder, 'none', 'a.sock')), /cannot be listened on: E(?:ACCES|NOENT)/)
  })

  test("path at the system's length limit → accepted", async () => {
    const long = join(folder, 'a'.repeat(107 - Buffer.byteLength(folder) - 1))
    assert.equal(await other(long), false)
  })
})

describe('client identity over a socket', () => {
  test('trusted proxy → client from header, separate limits', async () => {
    const from = (client: string) => ask(paths.listen, empty, { 'x-forwarded-for': client })
    const statuses = []
    for (const client of ['192.0.2.8', '192.0.2.8', '192.0.2.8', '192.0.2.9'])
      statuses.push((await from(client)).status)
    assert.deepEqual(statuses, [200, 200, 429, 200])
  })

  test('untrusted proxy → one client for all', async () => {
    const path = join(folder, 'distrusted.sock')
    const own = await startServed({
      ...config({ trustedProxies: ['127.0.0.1'] }),
      listen: `unix:${path}`,
      admin: false,
    })
    const statuses = []
    for (const client of ['192.0.2.8', '192.0.2.9', '192.0.2.10'])
      statuses.push((await ask(path, empty, { 'x-forwarded-for': client })).status)
    await own.close()
    assert.deepEqual(statuses, [200, 200, 429])
  })

  test('connections of the proxy are not limited', async () => {
    const agents = [1, 2, 3].map(() => new Agent({ keepAlive: true, maxSockets: 1 }))
    for (const [index, agent] of agents.entries())
      assert.equal((await ask(paths.listen, empty, { 'x-forwarded-for': `192.0.2.2${index}` }, agent)).status, 200)
    const open = agents.map(({ freeSockets }) => Object.values(freeSockets).flat().length)
    for (const agent of agents) agent.destroy()
    assert.deepEqual(open, [1, 1, 1])
  })
})

describe('admin socket', () => {
  const rows: [string, headers: Record<string, string>, status: number][] = [
    ['needs no token of a program that may open it', {}, 200],
    ['wants a token for what a proxy passes on', { 'x-forwarded-for': '192.0.2.1' }, 401],
    ['checks the name that it is asked by', { host: 'evil.example' }, 403],
  ]
  for (const [title, headers, status] of rows)
    test(title, async () => assert.equal((await ask(paths.admin, '/status', headers)).status, status))
})

describe('command line over sockets', () => {
  async function cidgate(...args: string[]) {
    const [stdout, stderr] = [new PassThrough(), new PassThrough()]
    const said = { out: '', err: '' }
    stdout.on('data', (chunk) => {
      said.out += chunk
    })
    stderr.on('data', (chunk) => {
      said.err += chunk
    })
    const code = await run(args, { stdin: Readable.from([]), stdout, stderr, environment: {} })
    await new Promise((resolve) => setImmediate(resolve))
    return { code, ...said }
  }

  test('both addresses → by option or configuration', async () => {
    const file = join(folder, 'cidgate.yaml')
    const { listen, admin } = config()
    await writeFile(file, JSON.stringify({ listen, admin, upload: { auth: 'open' }, retrieval: { upstreams: [] } }))
    for (const args of [
      ['--config', file],
      ['--admin', admin],
    ]) {
      const { code, out } = await cidgate('status', ...args)
      assert.deepEqual([code, out.split('; ', 1)[0]], [0, `${admin}: ready`])
    }
    const found = await cidgate('get', 'bafkqaaa', '--gateway', listen)
    assert.deepEqual(found, { code: 0, out: '', err: '' })
    const absent = await cidgate('get', 'bafkqaaa', '--gateway', `unix:${folder}/none.sock`)
    assert.match(absent.err, /no answer from unix:.*none\.sock/)
  })
})

test('check, doctor: unusable path or untrusted proxy → reported', () => {
  const told = (more: object) => {
    const parsed = parseConfig({ ...config(more), limits: {} })
    return [unusableSockets(parsed).length, notesOnTrust(parsed).length]
  }
  assert.deepEqual(told({}), [0, 0])
  assert.deepEqual(told({ trustedProxies: ['127.0.0.1'] }), [0, 1])
  assert.deepEqual(told({ listen: `unix:${folder}/none/a.sock`, admin: `unix:${folder}` }), [2, 0])
})
