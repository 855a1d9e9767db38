// The front against `node:http`: the same bytes, in any cutting, to a server with it and to one without get the same answers.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type RequestListener, type Server, type ServerResponse } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import type { Duplex } from 'node:stream'
import { text } from 'node:stream/consumers'
import { after, before, describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import fc from 'fast-check'
import { type Fixtures, fixtures } from '../support/fixtures.ts'
import { type OpenFront, openFront } from '../support/front.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { runs } from '../support/property.ts'
import { startUpstream } from '../support/upstream.ts'

let all: Fixtures
let at: TestGateway
let front: OpenFront
let plain: Server
const closing: (() => unknown)[] = []

before(async () => {
  all = await fixtures()
  const upstream = await startUpstream({ blocks: all.blocks })
  at = await startGateway({ upstreams: [{ name: 'one', url: upstream.url }] })
  front = await openFront(handle, { served: { hot: at.gateway.hot } })
  plain = createServer({ requireHostHeader: false }, handle)
  plain.on('checkContinue', handle)
  plain.on('checkExpectation', handle)
  // By itself it would cut the answers that are not out.
  plain.on('clientError', function refuse(_error: Error, socket: Duplex) {
    if (socket.destroyed || socket.writableEnded) return
    const answer = Reflect.get(socket, '_httpMessage') as ServerResponse | null
    if (answer?.req.complete) return void setTimeout(refuse, 2, _error, socket)
    if (answer?.headersSent) return void socket.destroy()
    socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n')
  })
  await once(plain.listen(0, '127.0.0.1'), 'listening')
  closing.push(
    () => upstream.close(),
    () => at.close(),
    () => front.close(),
    () => plain.close(),
    () => plain.closeAllConnections(),
  )
  // In memory, and in each form: what is answered first is answered otherwise.
  for (const path of pathsOf())
    for (const coding of ['identity', 'gzip'])
      for (let times = 0; times < 3; times++) await fetchAll(front.url + path, { 'Accept-Encoding': coding })
})
after(async () => {
  for (const close of closing.reverse()) await close()
})

/** A connection goes on behind a body that was read. */
const handle: RequestListener = (request, response) => {
  if (!request.url?.startsWith('/echo')) return at.gateway.handler(request, response)
  text(request).then(
    (body) => response.end(`${request.method} ${JSON.stringify(body)}`),
    () => response.destroy(),
  )
}

const pathsOf = (): string[] => [
  `/ipfs/${all.files.hello.cid}`,
  `/ipfs/${all.directory}/policy.json`,
  `/ipfs/${all.files.hello.cid}?x`,
  '/elsewhere',
  '/ipfs/nonsense',
]

/** Each answer, without what no two have alike. */
const answersIn = (said: string): string[] =>
  said
    .split(/(?=HTTP\/1\.1 \d{3} )/)
    .filter((one) => one !== '')
    .map((one) =>
      one
        .replace(/\r\n(?:Date|X-Request-Id|Connection|Keep-Alive): [^\r]*/gi, '')
        .replace(/"requestId":"[^"]*"/, '')
        .replace(/\r\nContent-Length: \d+(?=[\s\S]*urn:problem-type)/, ''),
    )

type Said = { readonly text: string; readonly isEnded: boolean }

/** What a server says to these pieces until it closes, or says nothing more for a while. */
async function ask(port: number, pieces: readonly Buffer[], silenceMs: number): Promise<Said> {
  const socket = connect({ port, host: '127.0.0.1', noDelay: true })
  socket.on('error', () => {})
  let said = ''
  let isEnded = true
  socket.setTimeout(silenceMs, () => {
    isEnded = false
    socket.destroy()
  })
  socket.on('data', (piece) => (said += piece.toString('latin1')))
  const closed = new Promise((resolve) => socket.once('close', resolve))
  for (const [index, piece] of pieces.entries()) {
    if (index > 0) await sleep(1)
    if (!socket.writable) break
    socket.write(piece)
  }
  await closed
  return { text: said, isEnded }
}

const isRefusal = (answer: string | undefined): boolean => /^HTTP\/1\.1 (?:400|413|431) /.test(answer ?? '')

/** Undefined: alike. */
function difference({ text: withFront, isEnded }: Said, { text: without }: Said, mayEnd: boolean): string | undefined {
  const [own, node] = [answersIn(withFront), answersIn(without)]
  const end = node.findIndex(isRefusal)
  const most = end < 0 ? node.length : end
  for (let index = 0; index < most; index++) {
    if (own[index] === node[index]) continue
    // Where `node:http` alone can tell where a request ends, the answer to it is the last one.
    if (own[index] === undefined && isEnded && index > 0 && mayEnd) return undefined
    // Of a request whose body is malformed, which is the last: the answer may be out when that is read.
    if (isRefusal(own[index]) && index === own.length - 1 && index >= most - 1) return undefined
    return `answer ${index}\n${own[index]}\nand by node:http\n${node[index]}`
  }
  const rest = own.slice(most)
  if (end < 0) return rest.every(isRefusal) ? undefined : `more: ${rest}`
  return rest.length === 0 && !isEnded ? 'no refusal' : undefined
}

const oneOf = <Value>(...values: readonly Value[]): fc.Arbitrary<Value> => fc.constantFrom(...values)
const mostly = <Value>(usual: Value, ...others: readonly Value[]) =>
  fc.oneof({ weight: 8, arbitrary: fc.constant(usual) }, { weight: 1, arbitrary: oneOf(...others) })

const path = fc.nat(4)
const field = fc.oneof(
  oneOf('If-None-Match: *', 'Accept-Encoding: gzip', 'Accept-Encoding: identity', 'User-Agent: x', 'X-Request-Id: a.b'),
  oneOf(
    'Accept: */*',
    'Accept: application/vnd.ipld.raw',
    'Range: bytes=0-3',
    'Cache-Control: no-cache',
    'Cookie: é=ü',
  ),
  oneOf(
    'Connection: keep-alive',
    'Connection: close',
    'connection:Keep-Alive',
    'Connection: keep-alive, x',
    'X:',
    'X: \t ',
  ),
  oneOf('Content-Length: 5', 'Content-Length: 0', 'content-length:5 ', 'Content-Length: +5', 'Content-Length: 5, 5'),
  oneOf('Content-Length: 05', 'Content-Length: 0x5', 'Content-Length:\t5', 'Content-Length : 5', 'Content_Length: 5'),
  oneOf('Transfer-Encoding: chunked', 'Transfer-Encoding: x', 'Transfer-Encoding: chunked, chunked', 'TE: trailers'),
  oneOf('transfer-encoding:\tCHUNKED', 'Transfer-Encoding: chunked\r\n x', ' folded', 'Transfer-Encoding : chunked'),
  oneOf('Host: b', 'X-Forwarded-For: 1.2.3.4', 'no colon', ': no name', 'X: \u000b', 'X: a\rb', 'X: a\nX: b'),
  oneOf('Expect: 100-continue', 'Expect: x', 'Service-Worker: script', 'Upgrade: x', 'Trailer: x'),
)
const request = fc
  .record({
    method: mostly('GET', 'HEAD', 'POST', 'OPTIONS', 'get', 'PURGE', ' GET', 'GET\t'),
    path,
    form: mostly('origin', 'absolute', 'absolute elsewhere', 'fragment', 'space'),
    version: mostly('HTTP/1.1', 'HTTP/1.0', 'HTTP/2.0', 'HTTP/1.2', 'http/1.1', 'HTTP/1.1 '),
    host: mostly('Host: a\r\n', '', 'host:a\r\n', 'Host: a b\r\n', 'Host: a\n'),
    fields: fc.array(field, { maxLength: 3 }),
    line: mostly('\r\n', '\n', '\r'),
    end: mostly('\r\n', '\n', '\r\n\r\n'),
    body: mostly(
      '',
      'hello',
      '5\r\nhello\r\n0\r\n\r\n',
      '5;a=b\r\nhello\r\n0\r\n\r\n',
      '0\r\nX: y\r\n\r\n',
      '0\r\n\r\n',
      '5\nhello\n0\n\n',
    ),
  })
  .map(({ method, path, form, version, host, fields, line, end, body }) => {
    const target = pathsOf()[path] ?? ''
    const before = form === 'absolute' ? 'http://a' : form === 'absolute elsewhere' ? 'http://b' : ''
    const behind = form === 'fragment' ? '#x' : form === 'space' ? ' x' : ''
    const lines = fields.map((one) => `${one}\r\n`).join('')
    return `${method} ${before}${target}${behind} ${version}${line}${host}${lines}${end}${body}`
  })
/** A body, mostly as its head says. */
const upload = fc
  .record({
    body: oneOf('', 'hello', 'GET / HTTP/1.1\r\n\r\n', '\r\n', 'x'.repeat(300)),
    how: oneOf('length', 'chunked', 'chunks', 'trailer', 'extension'),
    off: mostly(0, 1, -1, 5),
    more: mostly(
      '',
      'Expect: 100-continue\r\n',
      'Content-Length: 3\r\n',
      'Transfer-Encoding: chunked\r\n',
      'Upgrade: x\r\n',
    ),
  })
  .map(({ body, how, off, more }) => {
    const head = `POST /echo HTTP/1.1\r\nHost: a\r\n${more}`
    if (how === 'length') return `${head}Content-Length: ${Math.max(0, body.length + off)}\r\n\r\n${body}`
    const size = Math.max(1, body.length + off).toString(16)
    const half = body.length >> 1
    const chunk = (part: string) => (part === '' ? '' : `${part.length.toString(16).toUpperCase()}\r\n${part}\r\n`)
    const chunks =
      how === 'chunks'
        ? chunk(body.slice(0, half)) + chunk(body.slice(half))
        : body === ''
          ? ''
          : `${size}${how === 'extension' ? ';a=b' : ''}\r\n${body}\r\n`
    return `${head}Transfer-Encoding: chunked\r\n\r\n${chunks}0\r\n${how === 'trailer' ? 'X: y\r\n' : ''}\r\n`
  })
const cuts = fc.oneof(fc.constant([]), fc.array(fc.nat(600), { maxLength: 4 }))
const last = () => `GET ${pathsOf()[0]} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n`

async function isAlike(
  bytes: string,
  at: readonly number[],
  ports: readonly [number, number],
  mayEnd = true,
): Promise<void> {
  const whole = Buffer.from(bytes, 'latin1')
  const ends = [...new Set(at)].filter((end) => end > 0 && end < whole.length).sort((one, other) => one - other)
  const pieces = [...ends, whole.length].map((end, index) => whole.subarray(ends[index - 1] ?? 0, end))
  // A busy machine may be silent for long.
  for (const silenceMs of [150, 600, 2500]) {
    const [withFront, without] = await Promise.all(ports.map((port) => ask(port, pieces, silenceMs)))
    const found = difference(withFront as Said, without as Said, mayEnd)
    if (found === undefined) return
    if (silenceMs === 2500) assert.fail(`${JSON.stringify(bytes)}\n${found}`)
  }
}

describe('front and node:http', () => {
  const ports = (): [number, number] => [front.port, (plain.address() as AddressInfo).port]

  it('same bytes, any segmentation → same responses', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.oneof(request, upload), { minLength: 1, maxLength: 4 }), cuts, (requests, at) =>
        isAlike(requests.join('') + last(), at, ports()),
      ),
      runs(200),
    )
  })

  it('plain requests, any segmentation → same responses', async () => {
    const usual = fc.record({ path, end: oneOf('', 'If-None-Match: *\r\n', 'Accept-Encoding: gzip\r\n') })
    await fc.assert(
      fc.asyncProperty(fc.array(usual, { minLength: 1, maxLength: 6 }), cuts, (requests, at) => {
        const bytes = requests
          .map(({ path, end }) => `GET ${pathsOf()[path]} HTTP/1.1\r\nHost: a\r\n${end}\r\n`)
          .join('')
        return isAlike(bytes + last(), at, ports(), false)
      }),
      runs(100),
    )
  })
})
