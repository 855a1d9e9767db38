// Requests that come by the hundred in one turn of the loop.
import assert from 'node:assert/strict'
import { EventEmitter } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { describe, it } from 'node:test'
import { silentLog } from '../../src/core/log.ts'
import { createArrivals } from '../../src/server/arrivals.ts'
import { createReload } from '../../src/server/generations.ts'

const atOnce = 512

/** Turns of a loop that is held in the hand. */
function start() {
  const handled: string[] = []
  const actions: (() => void)[] = []
  const gone = new Set<string>()
  const arrive = createArrivals(
    ({ url = '' }) => void handled.push(url),
    (action) => void actions.push(action),
  )
  const come = (url: string) =>
    arrive(
      { url, socket: { destroyed: false } } as IncomingMessage,
      {
        get destroyed() {
          return gone.has(url)
        },
      } as ServerResponse,
    )
  return {
    handled,
    gone,
    come,
    comeBy: (count: number, from = 0) => {
      for (let at = from; at < from + count; at++) come(String(at))
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

  it('are not handled where the client has left meanwhile', () => {
    const { handled, gone, come, comeBy, turn } = start()
    comeBy(atOnce)
    for (const url of ['stays', 'leaves', 'stays, too']) come(url)
    gone.add('leaves')
    turn()
    assert.deepEqual(handled.slice(atOnce), ['stays', 'stays, too'])
  })

  it('are all answered before a gateway that ends is closed', async () => {
    let answered = 0
    const answer = (_request: unknown, response: EventEmitter) => {
      answered++
      response.emit('close')
    }
    const atClose: number[] = []
    const running = {
      handler: answer,
      admin: answer,
      serves: () => false,
      drain() {},
      close: async () => void atClose.push(answered),
    }
    const gateways = createReload(running, silentLog)
    const request = { socket: { destroyed: false } } as IncomingMessage
    for (let count = 0; count < 3 * atOnce; count++)
      gateways.handler(request, new EventEmitter() as unknown as Parameters<typeof gateways.handler>[1])
    await gateways.close(60_000)
    assert.deepEqual(atClose, [3 * atOnce])
  })
})
