// Clients that are told to come later and ask again at once: their connection is not read for a while.
import assert from 'node:assert/strict'
import type { RequestListener } from 'node:http'
import { createConnection } from 'node:net'
import { describe, it } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { connectionOf } from '../../src/http/wire/request.ts'
import { createThrottle } from '../../src/server/connections.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { openFront } from '../support/front.ts'
import { startServed } from '../support/served.ts'
import { type Line, openLine } from '../support/several-processes.ts'
import { closingAfterEach } from '../support/started.ts'

const closing = closingAfterEach()

async function start(around: (handle: RequestListener) => RequestListener = (handle) => handle) {
  const clock = createFakeClock()
  const throttle = createThrottle({ clock, random: () => 0.5 })
  const connections = { admit: () => true, throttle }
  const handle: RequestListener = (request, response) => {
    if (request.url === '/no') connectionOf(request)?.refused(response)
    response.statusCode = request.url === '/no' ? 503 : 200
    response.end('said')
  }
  const { url } = await closing(openFront(around(handle), { connections, clock }))
  return { clock, throttle, url, connect: () => lineTo(url) }
}

async function lineTo(url: string): Promise<Line> {
  const line = openLine(url)
  await closing({ close: async () => line.close() })
  return line
}

/** What is done behind an answer is done by then. */
async function settled(): Promise<void> {
  for (let turns = 0; turns < 20; turns++) await setImmediate()
}

describe('client that ignores Retry-After', () => {
  it('paused, doubling to a second; others are served', async () => {
    const { clock, throttle, connect } = await start()
    const [line, other] = [await connect(), await connect()]
    for (let times = 0; times < 3; times++) assert.equal((await line.get('/no')).status, 503)
    for (const ms of [100, 200, 400, 800, 1000, 1000]) {
      await settled()
      const held = throttle.paused
      let isAnswered = false
      const late = line.get('/no').then(() => {
        isAnswered = true
      })
      await clock.advance(ms - 1)
      for (let times = 0; times < 3; times++) assert.equal((await other.get('/yes')).status, 200)
      assert.equal(isAnswered, false, `before ${ms} ms`)
      await clock.advance(1)
      await late
      await settled()
      assert.equal(throttle.paused, held + 1)
    }
  })

  it('many requests at once → paused too', async () => {
    const { clock, throttle, url } = await start()
    const socket = createConnection(Number(new URL(url).port), '127.0.0.1')
    await closing({ close: async () => void socket.destroy() })
    let said = ''
    socket.on('data', (piece) => {
      said += piece.toString('latin1')
    })
    const batch = 'GET /no HTTP/1.1\r\nHost: a\r\n\r\n'.repeat(4)
    const answers = () => said.split('HTTP/1.1 503').length - 1
    for (let times = 1; times <= 3; times++) {
      socket.write(batch)
      while (answers() < 4 * times) {
        await clock.advance(1000)
        await setImmediate()
      }
      await settled()
    }
    assert.ok(throttle.paused > 0)
  })

  it('crowd → resumed gradually, each eventually', async () => {
    let inThisTurn = 0
    const { clock, throttle, connect } = await start((handle) => (request, response) => {
      inThisTurn++
      handle(request, response)
    })
    // As after a long turn of the loop: all pauses are over in the same moment.
    const pauses: (() => void)[] = []
    Object.assign(clock, { after: (_ms: number, over: () => void) => pauses.push(over) })
    const crowd = await Promise.all(Array.from({ length: 80 }, connect))
    for (let times = 0; times < 3; times++) await Promise.all(crowd.map((line) => line.get('/no')))
    await settled()
    assert.equal(throttle.paused, crowd.length)
    const answers = Promise.all(crowd.map((line) => line.get('/no')))
    let isOver = false
    inThisTurn = 0
    const maxInATurn = (async () => {
      let most = 0
      for (; !isOver; await setImmediate()) {
        most = Math.max(most, inThisTurn)
        inThisTurn = 0
      }
      return most
    })()
    // What they ask lies in their sockets by then.
    for (let times = 0; times < 3; times++) await settled()
    for (const over of pauses) over()
    await answers
    isOver = true
    const most = await maxInATurn
    assert.ok(most > 0 && most <= 32, `${most} in one turn`)
  })

  it('client waits or asks for other content → resumed at once', async () => {
    const { clock, throttle, connect } = await start()
    const line = await connect()
    for (const path of ['/no', '/no', '/yes', '/no', '/no', '/yes', '/no', '/no']) await line.get(path)
    for (let times = 0; times < 3; times++) {
      await clock.advance(1001)
      for (const path of ['/no', '/no']) await line.get(path)
    }
    // An answer that ends its connection, with the rest of a body on its way.
    for (let times = 0; times < 5; times++) await line.get('/no', { connection: 'close' })
    await settled()
    assert.equal(throttle.paused, 0)
  })

  it('counted; shared proxy connections are exempt', async () => {
    const at = await closing(startServed({ limits: { perClient: { perMinute: 1, burst: 1 } } }))
    const held = async () => (await at.counters()).get('cidgate_http_connections_paused_total')
    const line = await lineTo(at.url)
    assert.equal((await line.get('/ipfs/bafkqaaa')).status, 200)
    for (let times = 0; times < 6; times++)
      assert.equal((await line.get('/ipfs/bafkqaaa', { 'x-forwarded-for': '192.0.2.1' })).status, 429)
    assert.equal(await held(), 0)
    for (let times = 0; (await held()) === 0; times++) {
      assert.ok(times < 100, 'it is never held back')
      assert.equal((await line.get('/ipfs/bafkqaaa')).status, 429)
    }
  })
})
