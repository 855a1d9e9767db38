// A client gets to read every refusal, whatever it still has to send: closed at once, the connection would be reset by what
// is on its way, and the answer would be gone with it. The client here is the least patient one there is: it reads nothing
// before it has sent everything, and gives up at the first write that fails.
import assert from 'node:assert/strict'
import { connect } from 'node:net'
import { after, before, describe, it } from 'node:test'
import { boundary } from '../support/adding.ts'
import { startGateway, type TestGateway } from '../support/gateway.ts'

/** More than the buffers of both sockets hold, so that a client that is not read gets stuck. */
const megabytes = 16
const piece = Buffer.alloc(1_000_000, 'x')

type Heard = { readonly answer: string; readonly trouble: string | undefined; readonly sent: number }

/** `most`: pieces to send. `reads`: from the beginning on, and it goes on sending whatever it reads. */
function send(
  url: string,
  path: string,
  options: { readonly headers?: string; readonly head?: string; readonly most?: number; readonly reads?: boolean } = {},
): Promise<Heard> {
  const { headers = '', head = '', most = megabytes, reads = false } = options
  return new Promise((resolve) => {
    const pieces: Buffer[] = []
    let sent = 0
    let trouble: string | undefined
    const socket = connect({ port: Number(new URL(url).port), host: '127.0.0.1', allowHalfOpen: true }, () => {
      const bytes = head.length + most * piece.byteLength
      socket.write(`POST ${path} HTTP/1.1\r\nHost: a\r\n${headers}Content-Length: ${bytes}\r\n\r\n${head}`)
      more()
    })
    const read = () => socket.on('data', (bytes: Buffer) => pieces.push(bytes))
    const more = () => {
      while (sent < most && !socket.destroyed) {
        sent++
        if (!socket.write(piece)) return void socket.once('drain', more)
      }
      if (!reads) read()
    }
    if (reads) read()
    socket.on('error', (error: NodeJS.ErrnoException) => {
      trouble = error.code
    })
    const done = () => resolve({ answer: Buffer.concat(pieces).toString('latin1'), trouble, sent })
    if (!reads)
      socket.on('end', () => {
        done()
        socket.destroy()
      })
    socket.on('close', done)
  })
}

const type = `Content-Type: multipart/form-data; boundary=${boundary}\r\n`
const part = (disposition: string, more = '') =>
  `--${boundary}\r\nContent-Disposition: form-data; ${disposition}\r\n${more}\r\n`
const file = part('name="data"; filename="a"')

describe('refusals are readable', () => {
  let open: TestGateway
  let guarded: TestGateway
  let crowded: TestGateway
  const start = (upload: Record<string, unknown>, more: Record<string, unknown> = {}) =>
    startGateway({
      config: {
        upload: { kuboRpc: true, maxBytes: '1MiB', ...upload },
        pinning: { providers: [{ name: 'local', use: 'embedded' }] },
        ...more,
      },
    })
  before(async () => {
    open = await start({})
    guarded = await start({ auth: { tokens: ['a-token-that-is-long-enough'] } })
    crowded = await start({}, { limits: { perClient: { perMinute: 1, burst: 1 } } })
  })
  after(async () => {
    for (const at of [open, guarded, crowded]) await at?.close()
  })

  const refusals: readonly (readonly [
    what: string,
    at: () => TestGateway,
    path: string,
    status: number,
    headers: string,
    head: string,
  ])[] = [
    ['too large, by Content-Length', () => open, '/add', 413, type, file],
    ['too large, for Kubo', () => open, '/api/v0/add', 413, type, file],
    ['no multipart', () => open, '/add', 400, 'Content-Type: text/plain\r\n', ''],
    ['no token', () => guarded, '/add', 401, type, file],
    ['no token, for Kubo', () => guarded, '/api/v0/add', 403, type, file],
    ['nothing there', () => open, '/elsewhere', 404, type, file],
    ['not a method', () => open, '/ipfs/bafkqaaa', 405, type, file],
  ]
  for (const [what, at, path, status, headers, head] of refusals)
    it(`${status} at ${path}: ${what}`, async () => {
      const { answer, trouble } = await send(at().url, path, { headers, head })
      assert.equal(trouble, undefined)
      assert.match(answer, new RegExp(`^HTTP/1.1 ${status} .*\r\n\r\n.*\n$`, 's'))
    })

  it('429: client over its rate', async () => {
    await fetch(`${crowded.url}/ipfs/bafkqaaa`)
    const { answer, trouble } = await send(crowded.url, '/add', { headers: type, head: file })
    assert.equal(trouble, undefined)
    assert.match(answer, /^HTTP\/1.1 429 .*\}\n$/s)
  })

  it('400: error within the stream', async () => {
    const wide = await start({ maxBytes: '100MiB', maxPendingBytes: '200MiB' })
    try {
      const directory = part('name="file"; filename="a"', 'Content-Type: application/x-directory\r\n')
      for (const [path, head] of [
        ['/api/v0/add', `${directory}\r\n${file}`],
        ['/api/v0/add?trickle=true', file],
        ['/add', part('name="data"; name="data"')],
      ] as const) {
        const { answer, trouble } = await send(wide.url, path, { headers: type, head })
        assert.equal(trouble, undefined, path)
        assert.match(answer, /^HTTP\/1.1 400 .*\}\n$/s)
      }
    } finally {
      await wide.close()
    }
  })

  it('client that sends forever → closed', async () => {
    const never = 2_000
    const paths = [
      '/add',
      '/api/v0/add',
      '/api/v0/version',
      '/api/v0/cat?arg=bafkqaaa',
      '/api/v0/cat?arg=no',
      '/api/v0/pin/ls',
      '/api/v0/id',
      '/other',
    ]
    const told = await Promise.all(paths.map((path) => send(open.url, path, { most: never, reads: true })))
    for (const [index, { answer, sent }] of told.entries()) {
      assert.match(answer, /^HTTP\/1.1 [24]\d\d .*\r\nConnection: close\r\n/is, paths[index])
      assert.ok(sent < 200, `${paths[index]}: ${sent} MB were taken`)
    }
  })
})
