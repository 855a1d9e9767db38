// Bytes to clients that do not read, that leave, and from sources that break their word: over real sockets.
import assert from 'node:assert/strict'
import { EventEmitter, once } from 'node:events'
import type { RequestListener, ServerResponse } from 'node:http'
import { connect, type Socket } from 'node:net'
import { text } from 'node:stream/consumers'
import { afterEach, describe, test } from 'node:test'
import { type Clock, systemClock } from '../../src/core/clock.ts'
import { isFailure } from '../../src/core/failure.ts'
import {
  closeAfter,
  createPendingResponses,
  cutWhenStalled,
  endWith,
  type PendingResponses,
  reset,
  writeAll,
} from '../../src/http/wire/write.ts'
import type { FrontOptions } from '../../src/server/front.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { type OpenFront, openFront } from '../support/front.ts'

const stalledMs = 150
// For a test that is not about time: the machine may be busy with others.
const patientMs = 60_000
const more = 40 * 1024 * 1024 // more than sockets take by themselves
const open: { close(): void }[] = []
afterEach(() => {
  for (const one of open.splice(0)) one.close()
})

async function serve(handler: RequestListener, options: FrontOptions = {}): Promise<OpenFront> {
  const opened = await openFront(handler, options)
  open.push({ close: () => void opened.close() })
  return opened
}

/** Sends one request, and reads nothing unless told to. */
function ask({ port }: OpenFront, { reads = false } = {}): Socket & { said: string } {
  const socket = Object.assign(connect(port, '127.0.0.1'), { said: '' })
  socket.on('error', () => {})
  socket.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n')
  if (reads) socket.on('data', (piece) => (socket.said += piece.toString('latin1')))
  open.push({ close: () => socket.destroy() })
  return socket
}

const closed = (response: ServerResponse) => new Promise<void>((resolve) => response.once('close', () => resolve()))
const soon = async <T>(promise: Promise<T>): Promise<T> => {
  const timer = new AbortController()
  const late = systemClock.sleep(3000, timer.signal).then(() => assert.fail('nothing happened for 3 s'))
  late.catch(() => {})
  return Promise.race([promise, late]).finally(() => timer.abort())
}

const arrived = async (socket: Socket & { said: string }, bytes: number): Promise<void> => {
  while (socket.said.length < bytes) await once(socket, 'data')
}

describe('client closes its side', () => {
  const request = 'GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n'
  const connected = (port: number) => connect({ port, host: '127.0.0.1', allowHalfOpen: true })

  test('closed right after its request → complete response', async () => {
    const { port } = await serve(async (_request, response) => {
      await systemClock.sleep(30)
      response.end(Buffer.alloc(more))
    })
    const client = connected(port)
    client.end(request)
    let bytes = 0
    for await (const piece of client) bytes += (piece as Buffer).byteLength
    assert.ok(bytes > more, `${bytes} bytes`)
  })

  test('while it waits → response given up', async () => {
    const begun = Promise.withResolvers<ServerResponse>()
    const { port } = await serve((_request, response) => begun.resolve(response))
    const client = connected(port)
    client.write(request)
    const response = await soon(begun.promise)
    await systemClock.sleep(500)
    client.end()
    await soon(closed(response))
  })
})

test('fast readers share the event loop, also within large blocks', async () => {
  const order: { reader: number; bytes: number }[] = []
  const reading = (reader: number) => {
    const write = (piece: Uint8Array) => order.push({ reader, bytes: piece.byteLength }) > 0
    const response = Object.assign(new EventEmitter(), {
      write,
      end: () => {},
      writableLength: 0,
      writableFinished: true,
    })
    return writeAll(response as never, [new Uint8Array(1024 * 1024)], { stalledMs, clock: systemClock })
  }
  await Promise.all([reading(0), reading(1)])
  let longest = 0
  let run = 0
  for (const [index, { reader, bytes }] of order.entries()) {
    run = order[index - 1]?.reader === reader ? run + bytes : bytes
    longest = Math.max(longest, run)
  }
  assert.equal(longest, 256 * 1024)
})

describe('slow clients', () => {
  const mib = 1024 * 1024
  const slow = (clock: Clock, pendingResponses: PendingResponses, piece: Uint8Array): Promise<unknown> => {
    const response = Object.assign(new EventEmitter(), { write: () => false, end: () => {}, writableLength: 1 })
    return writeAll(response as never, [piece], { stalledMs: 60_000, clock, pendingResponses }).then(
      () => 'written',
      (error: Error) => error.message,
    )
  }

  test('memory limit reached → longest-waiting client disconnected', async () => {
    const clock = createFakeClock()
    const pendingResponses = createPendingResponses(2 * mib)
    const first = slow(clock, pendingResponses, new Uint8Array(mib))
    await clock.advance(100)
    const others = [
      slow(clock, pendingResponses, new Uint8Array(mib)),
      slow(clock, pendingResponses, new Uint8Array(mib)),
    ]
    await clock.advance(249)
    assert.deepEqual([pendingResponses.bytes, pendingResponses.cut], [mib, 0])
    await clock.advance(1)
    assert.match(String(await first), /others need the memory/)
    assert.deepEqual([pendingResponses.bytes, pendingResponses.cut], [2 * mib, 1])
    await clock.advance(60_000)
    for (const other of others) assert.match(String(await other), /read nothing for 60000 ms/)
    assert.deepEqual([pendingResponses.bytes, pendingResponses.cut], [0, 1])
  })
  test('shared block counts once', async () => {
    const clock = createFakeClock()
    const pendingResponses = createPendingResponses(2 * mib)
    const piece = new Uint8Array(mib)
    const all = Array.from({ length: 20 }, () => slow(clock, pendingResponses, piece))
    await clock.advance(1000)
    assert.deepEqual([pendingResponses.bytes, pendingResponses.cut], [mib, 0])
    await clock.advance(60_000)
    await Promise.all(all)
    assert.equal(pendingResponses.bytes, 0)
  })
})

test('small body of any bytes → one write with the head', async () => {
  const bytes = Uint8Array.from({ length: 256 }, (_, index) => index)
  let isCopied = false
  const { url } = await serve((_request, response) => {
    response.writeHead(200, ['Content-Type', 'a/b', 'Content-Length', '256'])
    isCopied = endWith(response, bytes)
  })
  const answer = await fetch(url)
  assert.deepEqual(new Uint8Array(await answer.arrayBuffer()), bytes)
  assert.ok(isCopied)
})

/** What writeAll makes of a source, and whether the client saw a whole answer. */
async function writing(
  pieces: (response: ServerResponse) => AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  {
    size,
    reads = true,
    isPatient = false,
  }: { readonly size?: number; readonly reads?: boolean; readonly isPatient?: boolean } = {},
) {
  let done: (outcome: unknown) => void = () => {}
  const outcome = new Promise<unknown>((resolve) => {
    done = resolve
  })
  const server = await serve((_request, response) => {
    response.writeHead(200, size === undefined ? {} : { 'content-length': size })
    const patience = isPatient ? patientMs : stalledMs
    writeAll(response, pieces(response), { stalledMs: patience, clock: systemClock, size }).then(
      done,
      (error: unknown) => {
        reset(response)
        done(error)
      },
    )
  })
  const socket = ask(server, { reads })
  return { outcome: isPatient ? outcome : soon(outcome), socket, server }
}

describe('writeAll', () => {
  test('pieces of any size → all bytes', async () => {
    const { outcome, socket } = await writing(() => [Buffer.alloc(300_000, 97), Buffer.alloc(0), Buffer.from('end')], {
      size: 300_003,
    })
    assert.equal(await outcome, 300_003)
    socket.write('GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n') // and the connection is good for another
    await soon(new Promise((resolve) => socket.once('close', resolve)))
    assert.equal(socket.said.split('aend').length, 3)
  })

  const senders: [name: string, pieces: Uint8Array[], size: number][] = [
    ['too little', [Buffer.from('abc')], 4],
    ['too much', [Buffer.from('abc'), Buffer.from('de')], 4],
    ['nothing', [], 1],
  ]
  for (const [name, pieces, size] of senders) {
    test(`${name} → connection reset, never looks complete`, async () => {
      const { outcome, socket } = await writing(() => pieces, { size })
      const failed = await outcome
      assert.ok(isFailure(failed, 'internal'), String(failed))
      await soon(new Promise((resolve) => socket.once('close', resolve)))
      const body = socket.said.split('\r\n\r\n')[1] ?? ''
      assert.ok(body.length < size, body)
    })
  }

  test("piece's memory is unused once the next is requested", async () => {
    const piece = Buffer.alloc(3_000_000)
    const { outcome, socket } = await writing(
      function* () {
        for (let value = 1; value <= 4; value++) {
          piece.fill(value)
          yield piece
        }
      },
      { size: 12_000_000, isPatient: true },
    )
    assert.equal(await outcome, 12_000_000)
    await arrived(socket, 12_000_000)
    const body = Buffer.from(socket.said.slice(-12_000_000), 'latin1')
    const wrong = [1, 2, 3, 4].filter((value, index) => {
      const part = body.subarray(index * 3_000_000, (index + 1) * 3_000_000)
      return !part.equals(Buffer.alloc(3_000_000, value))
    })
    assert.deepEqual(wrong, [])
  })

  test('client reads nothing → source stops, disconnected', async () => {
    let given = 0
    const { outcome } = await writing(
      function* () {
        for (; given < more; given += 1_000_000) yield Buffer.alloc(1_000_000)
      },
      { reads: false },
    )
    assert.ok(isFailure(await outcome, 'timeout'))
    assert.ok(given < more, `${given} bytes were taken from the source`)
  })

  test('client leaves → source ends', async () => {
    let ended = false
    const { outcome, socket } = await writing(
      async function* () {
        try {
          for (;;) {
            yield Buffer.alloc(100_000)
            await new Promise((resolve) => setImmediate(resolve))
          }
        } finally {
          ended = true
        }
      },
      { reads: true },
    )
    socket.once('data', () => socket.destroy())
    assert.ok(isFailure(await outcome, 'cancelled'))
    assert.equal(ended, true)
  })
})

describe('response written at once', () => {
  const serveAll = (limitMs: number, onAnswer: (response: ServerResponse) => void = () => {}) =>
    serve((_request, response) => {
      onAnswer(response)
      response.writeHead(200, { 'content-length': more }).end(Buffer.alloc(more))
      cutWhenStalled(response, limitMs)
    })

  test('client does not read → disconnected', async () => {
    const gone = new Promise<void>((resolve) => {
      void serveAll(stalledMs, (response) => void closed(response).then(resolve)).then(ask)
    })
    await soon(gone)
  })

  test('client reads → not disconnected', async () => {
    const isWhole = async (limitMs: number) => {
      const reader = ask(await serveAll(limitMs), { reads: true })
      return new Promise<boolean>((resolve) => {
        reader.on('data', () => reader.said.length > more && resolve(true))
        reader.on('close', () => resolve(false))
      })
    }
    // A busy machine may give this process no time for as long as the shorter limits.
    assert.ok((await isWhole(stalledMs)) || (await isWhole(10 * stalledMs)) || (await isWhole(patientMs)))
  })
})

describe('response while the client is sending', () => {
  test('takes its time; then the client has five seconds', {
    timeout: 5000,
  }, async (context) => {
    const answers: ServerResponse[] = []
    let gone: Promise<unknown> = Promise.resolve()
    const server = await serve((request, response) => {
      closeAfter(request, response)
      response.write('the begin')
      answers.push(response)
      gone = once(request.socket, 'close')
    })
    context.mock.timers.enable({ apis: ['setTimeout'] })
    const { port } = server
    const socket = Object.assign(connect({ port, host: '127.0.0.1', allowHalfOpen: true }), { said: '' })
    open.push({ close: () => socket.destroy() })
    socket.on('error', () => {})
    socket.on('data', (piece) => (socket.said += piece.toString('latin1')))
    socket.write('POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nbegun')
    await once(socket, 'data')
    context.mock.timers.tick(60_000)
    answers[0]?.end('the end')
    await soon(once(socket, 'end'))
    assert.match(socket.said, /the begin\r\n.*\r\nthe end/)
    context.mock.timers.tick(5000)
    await soon(gone)
  })
})

describe('malformed HTTP', () => {
  test('idle preconnect → 408, not counted as a request', async () => {
    const refused: number[] = []
    const server = await serve(() => {}, { served: { refused: ({ status }) => refused.push(status) } })
    for (const [sent, counted] of [
      ['', []],
      ['GET / HTT', [408]],
    ] as const) {
      server.front.setTimeouts({ headersTimeout: 50, keepAliveTimeout: 0 })
      const client = connect(server.port, '127.0.0.1')
      const closed = text(client)
      client.write(sent)
      assert.match(await soon(closed), /^HTTP\/1.1 408 /)
      assert.deepEqual(refused, counted)
    }
  })
  for (const [what, requests, heads] of [
    ['an answer that is', ['GET / HTTP/1.1\r\nHost: a\r\n\r\n'], [200, 400]],
    ['answers that are', Array<string>(3).fill('GET / HTTP/1.1\r\nHost: a\r\n\r\n'), [200, 200, 200, 400]],
    ['an answer that ends the connection and is', ['GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n'], [200]],
  ] as const)
    test(`after ${what} still being written → answered in order`, async () => {
      const refused: number[] = []
      const server = await serve(
        (_request, response) => {
          response.writeHead(200, { 'content-length': 11 }).write('begun')
          setTimeout(() => response.end(' ended'), 20)
        },
        { served: { refused: ({ status }) => refused.push(status) } },
      )
      const client = connect(server.port, '127.0.0.1')
      const said = text(client)
      client.write(`${requests.join('')}noise\r\n\r\n`)
      const all = await soon(said)
      assert.deepEqual(
        [...all.matchAll(/HTTP\/1.1 (\d+)/g)].map(([, status]) => Number(status)),
        heads,
      )
      assert.equal(all.split('begun ended').length, 1 + requests.length)
      assert.deepEqual(refused, heads.slice(requests.length))
    })
  test('in the body of an answered request → no second response', async () => {
    const server = await serve(
      (_request, response) => void response.writeHead(200, { 'content-length': 100 }).write('begun'),
    )
    const client = connect(server.port, '127.0.0.1')
    client.on('error', () => {})
    const answered = once(client, 'data')
    client.write('POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n')
    const [begun] = (await soon(answered)) as [Buffer]
    const rest = text(client)
    client.write('noise\r\n\r\n')
    assert.doesNotMatch(begun + (await soon(rest)), /HTTP[\s\S]*HTTP/)
  })
})
