// Connections are bounded: idle ones make room, the greedy client's first, and busy ones are never ended.
import assert from 'node:assert/strict'
import { EventEmitter, once } from 'node:events'
import { get, type ServerResponse } from 'node:http'
import { connect, type Socket } from 'node:net'
import { test } from 'node:test'
import {
  type Admitted,
  type ConnectionLimits,
  connectionsWithin,
  createConnections,
  descriptorsLeft,
} from '../../src/server/connections.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { onConnection, openFront } from '../support/front.ts'

type Made = Admitted & { isBusy: boolean; gone: boolean; said: string; destroy(): void }

/** One that was answered before, unless `isNew`. */
function madeConnection(remoteAddress: string, isBusy = false, isNew = false): Made {
  const made = { isBusy, isAnswered: !isNew, gone: false, said: '' }
  const destroy = () => {
    made.gone = true
    socket.emit('close')
  }
  const socket = Object.assign(new EventEmitter(), { remoteAddress, destroy })
  return Object.assign(made, {
    socket: socket as unknown as Socket,
    destroy,
    end: (answer: string) => {
      made.said = answer
    },
  })
}

const limitsOf = (max: number, perClient = max): ConnectionLimits => ({
  max,
  perClient,
  clientOf: (address) => (address === 'proxy' ? undefined : address),
})
const connectionsOf = (limits: ConnectionLimits) => createConnections(limits, { clock: createFakeClock() })

test('thousands of idle connections of one client → others unaffected', () => {
  const connections = connectionsOf(limitsOf(1000))
  const honest = Array.from({ length: 20 }, (_, at) => madeConnection(`10.0.0.${at}`))
  for (const socket of honest) assert.ok(connections.admit(socket))
  for (let count = 0; count < 5000; count++) assert.ok(connections.admit(madeConnection('attacker')))
  for (let at = 0; at < 200; at++) assert.ok(connections.admit(madeConnection(`10.0.1.${at}`)))
  assert.equal(connections.size, 1000)
  assert.deepEqual([honest.filter(({ gone }) => gone).length, connections.tally.maxConnections.refused], [0, 0])
})

test('all connections busy → next refused until one closes', () => {
  const connections = connectionsOf(limitsOf(100))
  const busy = Array.from({ length: 100 }, (_, at) => madeConnection(`10.0.0.${at % 7}`, true))
  for (const socket of busy) assert.ok(connections.admit(socket))
  assert.equal(connections.admit(madeConnection('late')), false)
  assert.equal(connections.size, 100)
  assert.deepEqual(connections.tally.maxConnections, { ended: 0, refused: 1 })
  busy[3]?.destroy()
  assert.ok(connections.admit(madeConnection('late')))
  // Idle ones behind many that are busy are found after some looks.
  for (const one of busy.slice(90)) one.isBusy = false
  let isIn = false
  for (let tries = 0; tries < 3 && !isIn; tries++) isIn = connections.admit(madeConnection('later', true))
  assert.ok(isIn)
  assert.equal(busy.slice(0, 90).filter(({ gone, isBusy }) => gone && isBusy).length, 1, 'the one that the test closed')
})

test('limit per client is configurable; trusted proxies are exempt', () => {
  const connections = connectionsOf(limitsOf(10, 2))
  const first = madeConnection('a')
  assert.ok(
    connections.admit(first) && connections.admit(madeConnection('a')) && connections.admit(madeConnection('a')),
  )
  assert.deepEqual([connections.size, first.gone], [2, true], 'the oldest makes room')
  assert.deepEqual(connections.tally.maxConnectionsPerClient, { ended: 1, refused: 0 })
  for (let count = 0; count < 6; count++) assert.ok(connections.admit(madeConnection('proxy', true)))
  assert.equal(connections.size, 8)
  connections.set(limitsOf(10, 4))
  assert.ok(connections.admit(madeConnection('a')) && connections.admit(madeConnection('a')))
  assert.equal(connections.size, 10)
  for (let count = 0; count < 100; count++) assert.ok(connections.admit(madeConnection('b')))
  assert.equal(connections.size, 10)
})

test('new connections are not evicted as idle; next gets 503', () => {
  const clock = createFakeClock()
  const connections = createConnections(limitsOf(20, 10), { clock })
  const made = (address: string) => madeConnection(address, false, true)
  const told = (all: readonly Made[]) => all.filter(({ said }) => said.startsWith('HTTP/1.1 503 '))
  const first = Array.from({ length: 10 }, () => made('many'))
  for (const one of first) assert.ok(connections.admit(one))
  const late = made('many')
  assert.equal(connections.admit(late), false)
  assert.match(late.said, /limits\.maxConnectionsPerClient/)
  assert.equal(told(first).length, 0)

  // One client alone cannot keep others out: the room is shared until each has as much.
  for (let count = 0; count < 10; count++) assert.ok(connections.admit(made('other')))
  const third = Array.from({ length: 8 }, () => made('third'))
  assert.equal(third.filter((one) => connections.admit(one)).length, 6)
  assert.equal(told(third).length, 2, 'those that were refused')
  assert.deepEqual([connections.size, connections.tally.maxConnections], [20, { ended: 6, refused: 2 }])

  clock.spend(1000)
  const before = told(first).length
  assert.ok(connections.admit(made('many')))
  assert.equal(told(first).length, before + 1, 'what asked nothing in a second makes room, and is told so')
})

test('refused connections linger a second, few at once', async () => {
  const clock = createFakeClock()
  const connections = createConnections(limitsOf(32), { clock })
  for (let count = 0; count < 32; count++) connections.admit(madeConnection('a', true))
  const refused = Array.from({ length: 3 }, () => madeConnection('a'))
  for (const one of refused) assert.equal(connections.admit(one), false)
  const gone = () => refused.map((one) => one.gone)
  assert.deepEqual(gone(), [true, false, false])
  await clock.advance(999)
  assert.deepEqual(gone(), [true, false, false])
  await clock.advance(1)
  assert.deepEqual(gone(), [true, true, true])
  assert.equal(clock.timers, 0)
})

test('files and stores keep a quarter of the descriptors', () => {
  assert.deepEqual(
    [connectionsWithin(8192, 1024), connectionsWithin(500, 1024), connectionsWithin(9, Infinity)],
    [768, 500, 9],
  )
  assert.ok(connectionsWithin(1_000_000_000, descriptorsLeft()) > 0)
})

test('HTTP: burst of clients → each gets a response or 503', async (t) => {
  const connections = createConnections(limitsOf(8), { clock: createFakeClock() })
  const { port, close } = await openFront((_request, response) => response.end('here'), { connections })
  t.after(close)
  const client = () =>
    new Promise<string>((resolve) => {
      let text = ''
      const socket = connect(port, '127.0.0.1', () =>
        socket.write('GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'),
      )
      socket.on('data', (chunk) => (text += chunk))
      socket.on('error', (error) => (text += error.message))
      socket.on('close', () => resolve(text.slice(9, 12)))
    })
  const statuses = await Promise.all(Array.from({ length: 40 }, client))
  assert.deepEqual(
    statuses.filter((status) => status !== '200' && status !== '503'),
    [],
  )
  assert.ok(statuses.includes('200'))
})

test('HTTP: idle connection evicted; all busy → 503', async (t) => {
  const held: ServerResponse[] = []
  const clock = createFakeClock()
  const connections = createConnections(limitsOf(2), { clock })
  const asked = new EventEmitter()
  const { front, port, close } = await openFront(
    (_request, response) => {
      held.push(response)
      asked.emit('request')
    },
    { connections },
  )
  t.after(close)
  const accepted = new Promise((resolve) => onConnection(front, resolve))
  const idle = connect(port, '127.0.0.1').resume()
  t.after(() => idle.destroy())
  await accepted
  clock.spend(1000)
  const ask = () => get({ port, host: '127.0.0.1', agent: false })
  const answers = [once(ask(), 'response'), once(ask(), 'response')]
  await once(idle, 'close')
  while (held.length < 2) await once(asked, 'request')
  const [refused] = await once(ask(), 'response')
  assert.deepEqual([refused.statusCode, refused.headers['retry-after']], [503, '1'])
  refused.resume()
  for (const response of held) response.end('here')
  for (const [answer] of await Promise.all(answers)) {
    assert.equal(answer.statusCode, 200)
    answer.resume()
  }
  assert.equal(connections.tally.maxConnectionsPerClient.ended, 1)
})
