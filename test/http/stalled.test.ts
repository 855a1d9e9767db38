// A client that takes nothing of its answer is cut off after `limits.writeTimeout`, whichever answer that is.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { after, afterEach, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { onConnection, openFront } from '../support/front.ts'
import { startGateway, type TestGateway } from '../support/gateway.ts'

// More than the sockets of both sides take by themselves, so that the answer behind it waits here.
const ahead = Buffer.alloc(64 * 1024 * 1024)
const open: (() => unknown)[] = []
afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close()
})

const form = (body: string) =>
  `Content-Type: multipart/form-data; boundary=b\r\nContent-Length: ${body.length}\r\n\r\n${body}`
const part = '--b\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n\r\nhello\r\n--b--\r\n'

const requests: readonly (readonly [what: string, request: string])[] = [
  ['a file', 'GET /ipfs/bafkqablimvwgy3y HTTP/1.1\r\nHost: a\r\n\r\n'],
  ['a problem', 'GET /ipfs/nonsense HTTP/1.1\r\nHost: a\r\n\r\n'],
  ['a 404', 'GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n'],
  ['an upload', `POST /add HTTP/1.1\r\nHost: a\r\n${form(part)}`],
  ['an upload that is refused', `POST /add HTTP/1.1\r\nHost: a\r\n${form('--b--\r\n')}`],
  ['the description', 'GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n'],
  ['a command', 'POST /api/v0/version HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n'],
  ['a command that is refused', 'POST /api/v0/cat HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n'],
  ['no command', 'POST /api/v0/nothing HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n'],
]

describe('client that does not read', () => {
  let at: TestGateway
  before(async () => {
    at = await startGateway({
      config: {
        limits: { writeTimeout: '200ms' },
        upload: { kuboRpc: true },
        pinning: { providers: [{ name: 'local', use: 'embedded' }] },
      },
    })
  })
  after(() => at.close())

  for (const [what, request] of requests)
    test(`${what} → disconnected`, async () => {
      const { front, port, close } = await openFront((asked, response) => {
        response.socket?.write(ahead)
        at.gateway.handler(asked, response)
      })
      open.push(close)
      const accepted = new Promise<Socket>((resolve) => onConnection(front, resolve))
      const client = connect(port, '127.0.0.1')
      open.push(() => client.destroy())
      client.on('error', () => {})
      client.pause()
      client.write(request)
      const socket = await accepted
      const late = sleep(10_000, 'still open', { ref: false })
      assert.notEqual(await Promise.race([once(socket, 'close'), late]), 'still open')
    })
})
