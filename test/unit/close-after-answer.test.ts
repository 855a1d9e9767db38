// How long a client that was answered is still read: not at all when it has sent everything, and within limits when not.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { afterEach, describe, it } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { closeAfter, type LingerLimits, lingerAfter } from '../../src/http/wire/write.ts'
import { onConnection, openFront } from '../support/front.ts'

const patient: LingerLimits = { maxBytes: 1e9, fullMs: 60_000, quietMs: 60_000, maxMs: 60_000 }
const megabyte = Buffer.alloc(1_000_000)

describe('client answered while sending', () => {
  let server: Server | undefined
  afterEach(() => {
    server?.closeAllConnections()
    server?.close()
  })

  /** Bytes that were sent until the server let the connection go. `isFull`: it is answered when much has come already. */
  async function flood(
    limits: Partial<LingerLimits>,
    bytes: Buffer,
    { everyMs, isFull = false }: { readonly everyMs?: number; readonly isFull?: boolean } = {},
  ): Promise<number> {
    server = createServer(async (request, response) => {
      while (isFull && request.readableLength < request.readableHighWaterMark) await setImmediate()
      response.shouldKeepAlive = false
      lingerAfter(request, response, { ...patient, ...limits })
      response.end('no')
    })
    const gone = new Promise<void>((resolve) =>
      server?.once('connection', (socket) => socket.once('close', () => resolve())),
    )
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    const { port } = server.address() as AddressInfo
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true })
    socket.on('error', () => {})
    socket.resume()
    let sent = 0
    const more = () => {
      if (socket.destroyed) return
      sent += bytes.byteLength
      socket.write(bytes, () => everyMs !== undefined && setTimeout(more, everyMs))
    }
    socket.write('POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000000\r\n\r\n', more)
    await gone
    socket.destroy()
    return sent
  }

  it('silent → closed', async () => {
    assert.equal(await flood({ quietMs: 50 }, Buffer.from('x')), 1)
  })

  it('still sending at the time limit → closed', async () => {
    assert.ok((await flood({ maxMs: 300 }, Buffer.from('x'), { everyMs: 20 })) > 1)
  })

  it('discard limit reached → reading stops, closed soon after', async () => {
    for (const isFull of [false, true]) {
      const sent = await flood({ maxBytes: 5_000_000, fullMs: 100, maxMs: 2000 }, megabyte, { everyMs: 0, isFull })
      assert.ok(sent >= 5_000_000 && sent < 60_000_000, `${sent} bytes`)
      server?.close()
    }
  })

  it('everything sent → closed at once', async () => {
    server = createServer((request, response) => {
      closeAfter(request, response)
      request.resume().on('end', () => response.end('done'))
    })
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    const socket = connect((server.address() as AddressInfo).port, '127.0.0.1')
    const pieces: Buffer[] = []
    socket.on('data', (bytes: Buffer) => pieces.push(bytes))
    socket.write('POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx')
    await once(socket, 'close')
    assert.match(Buffer.concat(pieces).toString(), /\r\n\r\ndone$/)
  })
})

describe('bytes after a request whose response closes the connection', () => {
  const hidden = 'GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n'
  const chunked = 'POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n'
  const rows: readonly (readonly [what: string, pieces: readonly string[]])[] = [
    ['in one piece', [`${chunked}0\r\n\r\n${hidden}`]],
    ['with the end of the body, when the answer is out', [chunked, `0\r\n\r\n${hidden}`]],
    ['behind another answer that is not out', [`GET /slow HTTP/1.1\r\nHost: a\r\n\r\n${chunked}0\r\n\r\n${hidden}`]],
  ]
  for (const [what, pieces] of rows)
    it(`${what} → not handled as a request`, async () => {
      const handled: string[] = []
      const { front, port, close } = await openFront((request, response) => {
        handled.push(request.url ?? '')
        if (request.url === '/slow') return void setTimeout(() => response.end('slow'), 50)
        closeAfter(request, response)
        response.end('no')
      })
      const gone = new Promise<void>((resolve) => onConnection(front, (one) => one.once('close', () => resolve())))
      const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true })
      const [first = '', ...others] = pieces
      socket.write(first)
      let said = ''
      socket.on('data', (chunk) => (said += chunk))
      while (!said.endsWith('no')) await once(socket, 'data')
      for (const piece of others) socket.write(piece)
      await gone
      socket.destroy()
      assert.deepEqual(handled, what.includes('another') ? ['/slow', '/first'] : ['/first'])
      await close()
    })
})
