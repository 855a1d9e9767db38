// Fault: an operator changes the configuration of a running gateway, and makes a mistake. No request is lost to a reload, whether it
// is good, bad, or moves the gateway to another address.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Agent, createServer, get, type IncomingMessage, type RequestListener, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseConfig } from '../../src/config/load.ts'
import { systemClock } from '../../src/core/clock.ts'
import type { Log } from '../../src/core/log.ts'
import { type Replaceable, type Serving, serve } from '../../src/server/serve.ts'

const configOf = (more: object = {}) =>
  parseConfig({ listen: '127.0.0.1:0', admin: '127.0.0.1:0', retrieval: { upstreams: [] }, ...more })

/** More than the system takes of a client that does not read. */
const large = Buffer.alloc(32 * 1024 * 1024, 'a')

type Logged = { level: string; event: string; facts: Readonly<Record<string, unknown>> | undefined }

/** A gateway that answers with its number; `/slow` waits until it is let go. It remembers what was open when it closed. */
function createStage() {
  const logged: Logged[] = []
  const log: Log = (level, event, facts) => logged.push({ level, event, facts })
  const held: ServerResponse[] = []
  const closed: number[] = []
  const misused: number[] = []
  let made = 0
  let drains = 0
  const create = async (): Promise<Replaceable> => {
    const number = ++made
    const handler: RequestListener = (request, response) => {
      if (closed.includes(number)) misused.push(number)
      if (request.url === '/slow') held.push(response)
      else if (request.url === '/large') response.end(large)
      else response.end(String(number))
    }
    return {
      handler,
      admin: (_request, response) => response.end(`admin ${number}`),
      serves: () => false,
      drain: () => void (drains += 1),
      close: async () => {
        closed.push(number)
      },
    }
  }
  return {
    log,
    logged,
    held,
    closed,
    misused,
    create,
    drained: () => drains > 0,
    letGo() {
      for (const response of held.splice(0)) response.end('slow')
    },
  }
}

async function read(url: string, agent?: Agent): Promise<string> {
  const request = get(url, { agent: agent ?? false })
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  let text = ''
  for await (const chunk of response) text += chunk
  return text
}

describe('configuration reload', () => {
  let serving: Serving | undefined
  afterEach(async () => {
    await serving?.close()
    serving = undefined
  })

  it('forty reloads under load → no request lost', async () => {
    const stage = createStage()
    serving = await serve({ config: configOf(), ...stage })
    const url = `http://${serving.listen}/`
    const agent = new Agent({ keepAlive: true, maxSockets: 8 })
    const seen = new Set<string>()
    let switching = true
    const readers = Array.from({ length: 8 }, async () => {
      while (switching) seen.add(await read(url, agent))
    })
    for (let count = 0; count < 40; count++) {
      assert.equal(await serving.reload(() => configOf()), true)
      await read(url)
    }
    switching = false
    await Promise.all(readers)
    agent.destroy()
    assert.ok(seen.has('1') || seen.size > 2)
    assert.equal(await read(url), '41')
    assert.deepEqual(stage.misused, [], 'a gateway that is closed is asked nothing')
    assert.equal(new Set(stage.closed).size, 40)
  })

  it('old gateway closes after its last response', async () => {
    const stage = createStage()
    serving = await serve({ config: configOf(), ...stage })
    const slow = read(`http://${serving.listen}/slow`)
    while (stage.held.length === 0) await read(`http://${serving.listen}/`)
    assert.equal(await serving.reload(() => configOf()), true)
    assert.equal(await read(`http://${serving.listen}/`), '2')
    assert.deepEqual(stage.closed, [])
    stage.letGo()
    assert.equal(await slow, 'slow')
    while (stage.closed.length === 0) await read(`http://${serving.listen}/`)
    assert.deepEqual(stage.closed, [1])
  })

  it('invalid configuration → refused with the lines of a start', async () => {
    const stage = createStage()
    serving = await serve({ config: configOf(), ...stage })
    assert.equal(await serving.reload(() => configOf({ retreival: {}, listen: 'nowhere' })), false)
    assert.deepEqual(
      stage.logged.filter(({ event }) => event === 'config.refused').map(({ facts }) => facts?.why),
      [
        'config: listen: is not valid (expected host:port such as 127.0.0.1:8080, [::1]:8080, or :8080 for every address; or unix:/path/to.sock)',
        'config: retreival: unknown key (did you mean retrieval?)',
      ],
    )
    assert.equal(await read(`http://${serving.listen}/`), '1')
    assert.deepEqual(stage.closed, [])
  })

  it('new gateway fails to start → old one stays', async () => {
    const stage = createStage()
    let fail = false
    const create = async () => {
      if (fail) throw new Error('the bucket is not there')
      return stage.create()
    }
    serving = await serve({ config: configOf(), log: stage.log, create })
    const before = serving.listen
    fail = true
    const elsewhere = await freePort()
    assert.equal(await serving.reload(() => configOf({ listen: `127.0.0.1:${elsewhere}` })), false)
    assert.equal(serving.listen, before)
    assert.equal(await read(`http://${before}/`), '1')
    await assert.rejects(read(`http://127.0.0.1:${elsewhere}/`), { code: 'ECONNREFUSED' })
    assert.match(String(stage.logged.at(-1)?.facts?.why), /the bucket is not there/)
  })

  it('stop during a move of both addresses → neither stays open', async () => {
    const stage = createStage()
    const slow = Promise.withResolvers<void>()
    let made = 0
    const create = async () => {
      if (++made > 1) await slow.promise
      return stage.create()
    }
    const one = await serve({ config: configOf(), log: stage.log, create })
    const [listen, admin] = [await freePort(), await freePort()]
    const moved = one.reload(() => configOf({ listen: `127.0.0.1:${listen}`, admin: `127.0.0.1:${admin}` }))
    const ended = one.close()
    slow.resolve()
    await moved
    const late = sleep(5000, 'it does not end', { ref: false })
    assert.equal(await Promise.race([ended, late]), undefined)
    for (const port of [listen, admin])
      await assert.rejects(read(`http://127.0.0.1:${port}/`), { code: 'ECONNREFUSED' })
    assert.deepEqual(stage.closed, [1, 2])
  })

  it('new listen address → requests at the old one finish', async () => {
    const stage = createStage()
    serving = await serve({ config: configOf(), ...stage })
    const before = serving.listen
    const slow = read(`http://${before}/slow`)
    while (stage.held.length === 0) await read(`http://${before}/`)
    const port = await freePort()
    assert.equal(await serving.reload(() => configOf({ listen: `127.0.0.1:${port}`, admin: false })), true)
    assert.equal(serving.listen, `127.0.0.1:${port}`)
    assert.equal(serving.admin, undefined)
    assert.equal(await read(`http://127.0.0.1:${port}/`), '2')
    await assert.rejects(read(`http://${before}/`), { code: 'ECONNREFUSED' })
    stage.letGo()
    assert.equal(await slow, 'slow')
  })

  it('moved and stopped at once → slow reader ends after grace', async () => {
    const stage = createStage()
    const limits = { shutdownTimeout: '300ms' }
    const own = await serve({ config: configOf({ limits }), ...stage })
    const request = get(`http://${own.listen}/large`)
    const [response] = (await once(request, 'response')) as [IncomingMessage]
    const cut = once(response, 'error')
    const listen = `127.0.0.1:${await freePort()}`
    assert.equal(await own.reload(() => configOf({ listen, limits })), true)
    await own.close()
    response.resume()
    const late = sleep(5000, 'it is still served', { ref: false })
    assert.notEqual(await Promise.race([cut, late]), 'it is still served')
  })

  it('new address in use → stays at the old one', async () => {
    const stage = createStage()
    serving = await serve({ config: configOf(), ...stage })
    const before = serving.listen
    const other = createServer().listen(0, '127.0.0.1')
    await once(other, 'listening')
    const taken = `127.0.0.1:${(other.address() as AddressInfo).port}`
    assert.equal(await serving.reload(() => configOf({ listen: taken })), false)
    assert.match(String(stage.logged.at(-1)?.facts?.why), /listen: 127\.0\.0\.1:\d+ cannot be listened on: EADDRINUSE/)
    assert.equal(await read(`http://${before}/`), '1')
    other.close()
  })

  it('stop → running requests finish, no new ones', async () => {
    const stage = createStage()
    const own = await serve({ config: configOf(), ...stage })
    const slow = read(`http://${own.listen}/slow`)
    while (stage.held.length === 0) await read(`http://${own.listen}/`)
    const address = own.listen
    const stopped = own.close()
    await assert.rejects(read(`http://${address}/`), { code: 'ECONNREFUSED' })
    assert.deepEqual(stage.closed, [])
    stage.letGo()
    assert.equal(await slow, 'slow')
    await stopped
    assert.deepEqual(stage.closed, [1])
  })

  for (const [what, end] of [
    ['stops', (own: Serving) => own.close()],
    [
      'moves to another address',
      (own: Serving, port: number) => own.reload(() => configOf({ listen: `127.0.0.1:${port}` })),
    ],
  ] as const)
    it(`response ended before the stop ${what} → slow reader gets all`, async () => {
      const stage = createStage()
      const own = await serve({ config: configOf(), ...stage })
      const port = await freePort()
      try {
        const request = get(`http://${own.listen}/large`, { agent: new Agent({ keepAlive: true }) })
        const [response] = (await once(request, 'response')) as [IncomingMessage]
        const { socket } = response
        const ended = end(own, port)
        // Idle connections are closed in this turn.
        await new Promise((resolve) => setImmediate(resolve))
        let bytes = 0
        for await (const piece of response) bytes += (piece as Buffer).byteLength
        assert.equal(bytes, large.byteLength)
        // The client would keep it.
        if (!socket.destroyed) await once(socket, 'close', { signal: AbortSignal.timeout(5000) })
        await ended
      } finally {
        await own.close()
      }
    })

  it('limits.shutdownDelay → connections served once, then refused', async () => {
    const stage = createStage()
    const over = Promise.withResolvers<void>()
    const clock = { ...systemClock, sleep: () => over.promise }
    const own = await serve({ config: configOf({ limits: { shutdownDelay: '1h' } }), ...stage, clock })
    const address = own.listen
    const agent = new Agent({ keepAlive: true })
    const kept = () => read(`http://${address}/`, agent)
    assert.equal(await kept(), '1')
    const stopped = own.close()
    assert.equal(stage.drained(), true)
    assert.equal(await kept(), '1', 'on a connection that was open before')
    assert.equal(await read(`http://${address}/`), '1', 'on a new one')
    assert.deepEqual(Object.keys(agent.freeSockets), [], 'an answer ends its connection')
    over.resolve()
    await stopped
    await assert.rejects(read(`http://${address}/`), { code: 'ECONNREFUSED' })
    agent.destroy()
  })

  it('unfinished requests → cut off after the grace period', async () => {
    const stage = createStage()
    const own = await serve({ config: configOf({ limits: { shutdownTimeout: '50ms' } }), ...stage })
    const slow = read(`http://${own.listen}/slow`)
    const cut = assert.rejects(slow, { code: 'ECONNRESET' })
    while (stage.held.length === 0) await read(`http://${own.listen}/`)
    await own.close()
    await cut
    assert.deepEqual(stage.closed, [1])
  })

  it('admin handler at the admin address only', async () => {
    const stage = createStage()
    serving = await serve({ config: configOf(), ...stage })
    assert.equal(await read(`http://${serving.admin}/`), 'admin 1')
    assert.equal(await read(`http://${serving.listen}/`), '1')
  })
})

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  return port
}
