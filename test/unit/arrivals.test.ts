// Requests that come by the hundred in one turn of the loop.
import assert from 'node:assert/strict'
import { EventEmitter, once } from 'node:events'
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { describe, it } from 'node:test'
import { setImmediate as turnOfTheLoop } from 'node:timers/promises'
import { silentLog } from '../../src/core/log.ts'
import { closeAfter } from '../../src/http/wire/close-after-answer.ts'
import { createArrivals } from '../../src/server/arrivals.ts'
import { createReload } from '../../src/server/generations.ts'
import { createHttpServer } from '../../src/server/http-server.ts'

const atOnce = 512

/** Turns of a loop that is held in the hand. */
function start() {
  const handled: string[] = []
  const actions: (() => void)[] = []
  const arrive = createArrivals(
    ({ url = '' }) => void handled.push(url),
    (action) => void actions.push(action),
  )
  return {
    handled,
    comeBy: (count: number, from = 0) => {
      for (let at = from; at < from + count; at++) arrive({ url: String(at) } as IncomingMessage, {} as ServerResponse)
    },
    /** False: nothing was to be done. */
    turn() {
      const now = actions.splice(0)
      for (const action of now) action()
      return now.length > 0
    },
  }
}

const numbers = (count: number): string[] => Array.from({ length: count }, (_, at) => String(at))

describe('requests that come in one turn', () => {
  it('are handled as they come, and from some hundred on in later turns, each in its place', () => {
    const { handled, comeBy, turn } = start()
    comeBy(3 * atOnce)
    assert.equal(handled.length, atOnce)
    turn()
    assert.equal(handled.length, 2 * atOnce)
    comeBy(10, 3 * atOnce)
    turn()
    turn()
    assert.deepEqual(handled, numbers(3 * atOnce + 10))
    assert.equal(turn(), false)
    comeBy(1, 3 * atOnce + 10)
    assert.equal(handled.length, 3 * atOnce + 11, 'and then as they come again')
  })

  it('are all answered before a gateway that ends is closed', async () => {
    let answered = 0
    const atClose: number[] = []
    const gateways = startGateway(
      (_request, response) => {
        answered++
        response.emit('close')
      },
      () => void atClose.push(answered),
    )
    crowd(gateways)
    crowd(gateways)
    crowd(gateways)
    await gateways.close(60_000)
    assert.deepEqual(atClose, [3 * atOnce])
  })
})

describe('requests that wait for their turn', () => {
  const chunked = 'POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n'
  const hidden = 'GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n'
  const rows: readonly (readonly [what: string, behind: string, handled: readonly string[]])[] = [
    ['behind one whose answer ends the connection', `${chunked}0\r\n\r\n${hidden}${hidden}`, ['/full', '/first']],
    ['with a body that is not well-formed', `${chunked}no\r\n\r\n`, ['/full']],
    ['in a connection that goes on', `${hidden}${hidden}`, ['/full', '/hidden', '/hidden']],
  ]
  for (const [what, behind, expected] of rows)
    it(`are handled where they would be at once: ${what}`, async () => {
      const handled: string[] = []
      const gateways = startGateway((request, response) => {
        const { url = '' } = request
        if (url === '') return void response.emit('close')
        handled.push(url)
        if (url === '/full') crowd(gateways)
        if (url === '/first') closeAfter(request, response)
        response.end('said')
      })
      const server = createHttpServer(gateways.handler)
      await once(server.listen(0, '127.0.0.1'), 'listening')
      const socket = connect((server.address() as AddressInfo).port, '127.0.0.1')
      socket.resume()
      socket.write(`GET /full HTTP/1.1\r\nHost: a\r\n\r\n${behind}${what.includes('goes on') ? last : ''}`)
      await once(socket, 'close')
      assert.deepEqual(
        handled.filter((url) => url !== '/last'),
        expected,
      )
      server.close()
      let isClosed = false
      void gateways.close(60_000).then(() => (isClosed = true))
      for (let turns = 0; turns < 10; turns++) await turnOfTheLoop()
      assert.ok(isClosed, 'none of them counts as under way for ever')
    })
})

const last = 'GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n'

function startGateway(handler: RequestListener, close = () => {}) {
  const running = { handler, admin: handler, serves: () => false, drain() {}, close: async () => close() }
  return createReload(running, silentLog)
}

/** As many as are handled as they come. */
function crowd({ handler }: { readonly handler: RequestListener }): void {
  const request = { socket: { destroyed: false } } as IncomingMessage
  for (let count = 0; count < atOnce; count++) handler(request, new EventEmitter() as ServerResponse)
}
