// The admin address: what it says of the parts a gateway stands on, and whether one should be sent here.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdir, rm, writeFile } from 'node:fs/promises'
import { createServer, type RequestListener } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import supertest from 'supertest'
import { type AdminDeps, createAdmin } from '../../src/admin/admin.ts'
import type { Check } from '../../src/admin/dashboard/shape.ts'
import { readiness } from '../../src/admin/readiness.ts'
import { type ShownStatus, statusLines } from '../../src/cli/client/status.ts'
import { createMetrics } from '../../src/observe/metrics.ts'
import type { WaitingUpload } from '../../src/upload/api-types.ts'
import { multipart, post } from '../support/adding.ts'
import { startGateway, type TestGateway, tempFolder } from '../support/gateway.ts'

/** An address where nobody listens. */
const nobody = 'http://127.0.0.1:2' // fetch refuses port 1

describe('clients of the admin address', () => {
  const token = 'a token of the operator'.replaceAll(' ', '-')
  let at: TestGateway
  let open: TestGateway
  before(async () => {
    at = await startGateway({ config: { adminAccess: { hosts: ['admin.example'], tokens: [token] } } })
    open = await startGateway()
  })
  after(async () => {
    await at.close()
    await open.close()
  })
  /** As from another machine: what the handler reads of the connection is its address alone. */
  const elsewhere =
    (gateway: TestGateway): RequestListener =>
    (request, response) => {
      Object.defineProperty(request.socket, 'remoteAddress', { value: '192.0.2.7', configurable: true })
      gateway.gateway.admin(request, response)
    }
  for (const [name, line, host, status] of [
    ['a whole URL of another host', 'GET http://evil.example/uploads HTTP/1.1', 'localhost', '400'],
    ['a probe by a whole URL of another host', 'GET http://evil.example/readyz HTTP/1.1', 'localhost', '400'],
    ['a whole URL of its own host', 'GET http://localhost:8081/healthz HTTP/1.1', 'localhost:8081', '200'],
    ['HTTP/0.9', 'GET /healthz HTTP/0.9', 'localhost', '505'],
    ['HTTP/2.0', 'GET /healthz HTTP/2.0', 'localhost', '505'],
  ] as const)
    test(`${name}: ${status}`, async () => {
      const server = createServer(at.gateway.admin).listen(0, '127.0.0.1')
      await once(server, 'listening')
      const socket = connect((server.address() as AddressInfo).port, '127.0.0.1')
      socket.write(`${line}\r\nHost: ${host}\r\nConnection: close\r\n\r\n`)
      let text = ''
      for await (const chunk of socket) text += chunk
      server.close()
      assert.equal(text.slice(9, 12), status)
    })
  test('large body → refusal is readable, no reset', async () => {
    const server = createServer(at.gateway.admin).listen(0, '127.0.0.1')
    await once(server, 'listening')
    const { port } = server.address() as AddressInfo
    const bytes = 8_000_000
    const statusOf = (path: string, host: string) =>
      new Promise<string>((resolve) => {
        const socket = connect(port, '127.0.0.1')
        let text = ''
        socket.on('error', (error) => resolve(error.message))
        socket.on('data', (chunk) => (text += chunk))
        socket.on('close', () => resolve(text.slice(9, 12)))
        socket.write(`POST ${path} HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\nContent-Length: ${bytes}\r\n\r\n`)
        // It reads nothing before all is sent.
        socket.pause()
        socket.write(Buffer.alloc(bytes), () => socket.resume())
      })
    try {
      assert.equal(await statusOf('/add', 'evil.example'), '403')
      assert.equal(await statusOf('/nothing', 'localhost'), '404')
      assert.equal(await statusOf('/deny/nonsense', 'localhost'), '400')
    } finally {
      server.close()
    }
  })

  const rows: [
    string,
    method: 'get' | 'post' | 'delete',
    path: string,
    headers: Record<string, string>,
    status: number,
  ][] = [
    ['a name of a stranger (DNS rebinding)', 'delete', '/uploads/x/y?losing=true', { Host: 'evil.example' }, 403],
    ['the same, reading', 'get', '/uploads', { Host: 'evil.example:8081' }, 403],
    ['the same, metrics', 'get', '/metrics', { Host: 'evil.example' }, 403],
    ['by a proxy on this machine', 'get', '/uploads', { 'X-Forwarded-For': '203.0.113.9' }, 401],
    ['the same, a takedown', 'post', '/deny/bafkqaaa', { Via: '1.1 proxy' }, 401],
    ['the same, with a token', 'get', '/uploads', { 'X-Real-IP': '::1', Authorization: `Bearer ${token}` }, 200],
    ['a user before a name that is ours', 'get', '/uploads', { Host: 'evil@localhost' }, 400],
    ['a probe whose Host is none', 'get', '/readyz', { Host: 'a b' }, 400],
    ['a port that is none', 'get', '/metrics', { Host: 'localhost:99999' }, 400],
    ['a probe under any name', 'get', '/readyz', { Host: 'evil.example' }, 200],
    ['an address', 'get', '/uploads', { Host: '192.0.2.1:8081' }, 200],
    ['an address of IPv6', 'get', '/uploads', { Host: '[2001:db8::1]:8081' }, 200],
    ['localhost', 'get', '/uploads', { Host: 'localhost:8081' }, 200],
    ['a service in a cluster', 'get', '/metrics', { Host: 'cidgate.apps.svc' }, 200],
    ['a configured name', 'get', '/uploads', { Host: 'ADMIN.example.' }, 200],
    [
      'a stranger’s name with the token',
      'get',
      '/uploads',
      { Host: 'evil.example', Authorization: `Bearer ${token}` },
      200,
    ],
    [
      'a page of another origin',
      'delete',
      '/uploads/x/y',
      { Host: 'localhost:8081', Origin: 'https://evil.example' },
      403,
    ],
    [
      'the same, deleting a pin',
      'delete',
      '/pins/bafkqaaa',
      { Host: 'localhost', Origin: 'https://evil.example' },
      403,
    ],
    [
      'the same, verifying one',
      'post',
      '/pins/bafkqaaa/verify',
      { Host: 'localhost', Origin: 'https://evil.example' },
      403,
    ],
    [
      'the same, bringing one',
      'post',
      '/pins/bafkqaaa/sync',
      { Host: 'localhost', Origin: 'https://evil.example' },
      403,
    ],
    ['the same, taking down', 'post', '/deny/bafkqaaa', { Host: 'localhost', Origin: 'https://evil.example' }, 403],
    [
      'a page of another port here, taking down',
      'post',
      '/deny/bafkqaaa',
      { Host: 'localhost:8081', Origin: 'http://localhost:8080' },
      403,
    ],
    ['the same, uploading', 'post', '/add', { Host: 'localhost', Origin: 'https://evil.example' }, 403],
    [
      'a page of the public address here, uploading',
      'post',
      '/add',
      { Host: 'localhost:8081', Origin: 'http://localhost:8080' },
      403,
    ],
    ['a sandboxed page', 'get', '/uploads', { Host: 'localhost:8081', Origin: 'null' }, 403],
    ['a page that sends no Origin', 'get', '/uploads', { Host: 'localhost:8081', 'Sec-Fetch-Site': 'cross-site' }, 403],
    ['a page of its own', 'get', '/uploads', { Host: 'localhost:8081', Origin: 'http://localhost:8081' }, 200],
  ]
  for (const [name, method, path, headers, status] of rows)
    test(`${name}: ${status}`, async () => {
      assert.equal((await supertest(at.gateway.admin)[method](path).set(headers)).status, status)
    })
  test('remote client: probes without a token, everything with one', async () => {
    const far = supertest(elsewhere(at))
    for (const [path, status] of [
      ['/readyz', 200],
      ['/metrics', 401],
      ['/uploads', 401],
    ] as const)
      assert.equal((await far.get(path)).status, status, path)
    for (const path of ['/add', '/deny/bafkqaaa', '/pins/bafkqaaa/verify'])
      assert.equal((await far.post(path)).status, 401, path)
    for (const path of ['/uploads/x/y', '/pins/bafkqaaa']) assert.equal((await far.delete(path)).status, 401, path)
    for (const wrong of ['Bearer no', `Basic ${token}`])
      assert.equal((await far.get('/uploads').set({ Authorization: wrong })).status, 401)
    assert.equal((await far.get('/uploads').set({ Authorization: `Bearer ${token}` })).status, 200)
    assert.equal((await far.delete('/uploads/x/y').set({ Authorization: `Bearer ${token}` })).status, 404)
  })
  test('remote client, no token configured: metrics only, no uploads', async () => {
    const far = supertest(elsewhere(open))
    assert.equal((await far.get('/metrics')).status, 200)
    const refused = await far.get('/uploads')
    assert.equal(refused.status, 401)
    assert.match(refused.body.detail, /adminAccess\.tokens/)
  })
})

test('unknown or undecodable path → JSON error', async () => {
  const at = await startGateway()
  try {
    const nothing = await supertest(at.gateway.admin).get('/nothing-is-here')
    assert.equal(nothing.status, 404)
    assert.match((nothing.body as { detail: string }).detail, /dashboard is at \//)
    const garbled = await supertest(at.gateway.admin).delete('/uploads/%zz/local')
    assert.equal(garbled.status, 400)
    assert.match((garbled.body as { detail: string }).detail, /decoded/)
  } finally {
    await at.close()
  }
})

test('bug → 500 without sources; details in the log', async () => {
  const lines: string[] = []
  const admin = createAdmin({
    requestId: () => 'an-id',
    leaveBody: () => {},
    log: (level, event, facts) => lines.push(`${level} ${event} ${JSON.stringify(facts)}`),
    access: { hosts: [], tokens: [] },
    metrics: createMetrics(),
    ...({} as Pick<AdminDeps, 'status' | 'why' | 'blocks' | 'takedown'>),
    ready: () => {
      throw new Error('a bug')
    },
  })
  const { status, text, headers } = await supertest(admin).get('/readyz')
  assert.equal(status, 500)
  assert.doesNotMatch(text, /a bug|admin\.ts/)
  assert.equal(headers['x-request-id'], 'an-id')
  assert.match(lines.join(), /^error request\.error .*an-id.*\/readyz.*a bug/)
})

type State = { ready: boolean; draining: boolean; uploads?: boolean; checks: Check[] }

describe('/uploads', () => {
  test('lists open uploads until confirmed or abandoned', async () => {
    const gone = nobody
    const at = await startGateway({
      config: {
        pinning: {
          providers: [
            { name: 'local', use: 'embedded' },
            { name: 'gone', use: 'kubo', url: gone },
          ],
        },
      },
    })
    const ask = supertest(at.gateway.admin)
    const listed = async () => (await ask.get('/uploads')).body as { open: number; uploads: WaitingUpload[] }
    try {
      assert.deepEqual(await listed(), { open: 0, uploads: [] })
      const { json } = await post(`${at.url}/add`, multipart([{ body: 'on its way' }]))
      const cid = String((json['cids'] as string[])[0]).slice('/ipfs/'.length)
      let entry: WaitingUpload | undefined
      while (entry?.providers['gone']?.why === undefined) {
        entry = (await listed()).uploads[0]
        await sleep(5)
      }
      assert.equal(entry.cid, cid)
      assert.equal(entry.providers['local']?.state, 'pinned')
      assert.match(entry.providers['gone'].why, /ECONNREFUSED/)
      assert.equal((await ask.delete(`/uploads/${cid}/nobody`)).status, 404)
      assert.equal((await ask.delete('/uploads/nonsense/gone')).status, 404)
      assert.equal((await ask.delete(`/uploads/${cid}/gone`)).status, 204)
      while ((await listed()).open > 0) await sleep(5)
      assert.equal((await fetch(`${at.url}/uploads`)).status, 404, 'not on the public address')
    } finally {
      await at.close()
    }
  })
})

test('abandoning the last copy requires an explicit option', async () => {
  const pinning = { acceptWhileUnavailable: true, providers: [{ name: 'gone', use: 'kubo', url: nobody }] }
  const at = await startGateway({ config: { pinning } })
  const ask = supertest(at.gateway.admin)
  try {
    const { json } = await post(`${at.url}/add`, multipart([{ body: 'on its way' }]))
    const path = String((json['cids'] as string[])[0])
    const here = async () => (await fetch(at.url + path)).status
    const address = `/uploads/${path.slice('/ipfs/'.length)}/gone`
    const refused = await ask.delete(address)
    assert.equal(refused.status, 409)
    assert.match((refused.body as { detail: string }).detail, /losing=true/)
    assert.equal(await here(), 200)
    assert.equal((await ask.delete(`${address}?losing=true`)).status, 204)
    assert.deepEqual((await ask.get('/uploads')).body, { open: 0, uploads: [] })
  } finally {
    await at.close()
  }
})

describe('/readyz', () => {
  let at: TestGateway
  before(async () => {
    at = await startGateway({
      config: {
        pinning: {
          minConfirmations: 2,
          probeEvery: '1h',
          providers: [
            { name: 'local', use: 'embedded' },
            { name: 'gone', use: 'kubo', url: nobody },
          ],
        },
      },
    })
  })
  after(() => at.close())

  const ask = (query = '') => supertest(at.gateway.admin).get(`/readyz${query}`)

  async function looked(): Promise<State> {
    for (;;) {
      const { body } = (await ask()) as { body: State }
      if (body.checks.filter(({ name }) => name.startsWith('provider')).length === 2) return body
      await sleep(5)
    }
  }

  test('shows the last check of providers; stays ready for reads', async () => {
    const { ready, uploads, checks } = await looked()
    assert.equal(ready, true)
    assert.equal(uploads, false)
    const [local, gone] = ['provider local', 'provider gone'].map((name) => checks.find((one) => one.name === name))
    assert.equal(local?.ok, true)
    assert.equal(gone?.ok, false)
    assert.match(gone?.why ?? '', /ECONNREFUSED/)
    assert.equal((await ask()).status, 200)
  })

  test('?for=uploads → 503 if uploads cannot be confirmed', async () => {
    await looked()
    assert.equal((await ask('?for=uploads')).status, 503)
  })

  test('shutdown → not ready', async () => {
    at.gateway.drain()
    const { status, body } = (await ask()) as { status: number; body: State }
    assert.equal(status, 503)
    assert.equal(body.draining, true)
  })
})

describe('damaged data folder', () => {
  test('reported by /readyz and status, which stay healthy', async () => {
    const data = await tempFolder()
    try {
      await mkdir(join(data, 'denylists'), { recursive: true })
      await writeFile(
        join(data, 'denylists', 'takedowns.deny'),
        'version: 1\n---\n/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy/*\n/ipfs/bafkreigh2ak',
      )
      const at = await startGateway({ data, config: { pinning: { providers: [{ name: 'local', use: 'embedded' }] } } })
      try {
        const { status, body } = (await supertest(at.gateway.admin).get('/readyz?for=uploads')) as {
          status: number
          body: State & ShownStatus
        }
        assert.equal(status, 200)
        const why = (name: string) => body.checks.find((one) => one.name === name)?.why ?? ''
        assert.match(why('takedowns'), /^1 invalid line in denylists\/takedowns\.deny .* line 4 /)
        assert.ok(statusLines('here', body, 0).some((line) => /BAD takedowns: 1 invalid line/.test(line)))
      } finally {
        await at.close()
      }
    } finally {
      await rm(data, { recursive: true, force: true })
    }
  })
})

describe('/readyz in thin mode', () => {
  async function uploadsOf(through: string): Promise<[boolean | undefined, Check | undefined]> {
    const at = await startGateway({ config: { upload: { forwardTo: through }, pinning: { providers: [] } } })
    try {
      for (;;) {
        const { body } = (await supertest(at.gateway.admin).get('/readyz')) as { body: State }
        const check = body.checks.find(({ name }) => name.startsWith('through '))
        if (check) return [body.uploads, check]
        await sleep(5)
      }
    } finally {
      await at.close()
    }
  }

  test('service reachable → uploads can be confirmed', async () => {
    const there = await startGateway()
    try {
      assert.equal((await uploadsOf(`${there.url}/add`))[0], true)
      const [uploads, check] = await uploadsOf(`${there.url}/nothing-is-here`)
      assert.equal(uploads, false)
      assert.match(check?.why ?? '', /answers 404/)
    } finally {
      await there.close()
    }
    const [uploads, check] = await uploadsOf(`${nobody}/add`)
    assert.equal(uploads, false)
    assert.match(check?.why ?? '', /ECONNREFUSED.+upload\.forwardTo/)
  })
})

describe('readiness for uploads', () => {
  const check = (name: string, ok: boolean): Check => ({ name, ok })
  const rows: [what: string, seen: Check[], confirm: number | 'all', queue: boolean, uploads: boolean | undefined][] = [
    ['not looked at yet', [], 1, false, undefined],
    ['one of two is enough', [check('a', true)], 1, false, true],
    ['the first is bad, the second not seen', [check('a', false)], 1, false, undefined],
    ['the first is bad, and all are wanted', [check('a', false)], 'all', false, false],
    ['all bad', [check('a', false), check('b', false)], 1, false, false],
    ['all bad, but uploads may wait here', [check('a', false), check('b', false)], 1, true, true],
  ]
  for (const [what, seen, confirm, queue, uploads] of rows)
    test(what, () => {
      const checks = { list: () => seen, close: () => {} }
      const parts = { tiers: [], upstreams: [], damage: [] }
      const said = readiness({ draining: false, providers: 2, confirm, queue, checks, ...parts })
      assert.equal(said.uploads, uploads)
      assert.equal(said.ready, true)
    })
})
