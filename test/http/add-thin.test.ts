// Thin mode: the body goes on as it arrives, to a service like this one or to a Kubo, and what it answers is checked.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import {
  createServer,
  request as httpRequest,
  type IncomingMessage,
  type RequestListener,
  type Server,
} from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { after, afterEach, before, describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import express from 'express'
import { CID } from 'multiformats/cid'
import { sha256 } from 'multiformats/hashes/sha2'
import type { Provider } from '../../backends/pinning/contract.ts'
import { providerKinds } from '../../backends/pinning/index.ts'
import { blockKey } from '../../src/core/cid.ts'
import { systemClock } from '../../src/core/clock.ts'
import { Failure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { processFolders } from '../../src/data-folder/folder.ts'
import { createAddRoute } from '../../src/http/add/add.ts'
import { createTokens } from '../../src/http/add/upload-auth.ts'
import { createRespond } from '../../src/http/wire/problem.ts'
import { readContext } from '../../src/http/wire/request.ts'
import { createSchemaChecks } from '../../src/schemas/checks.ts'
import { createThin, type ThinOptions, type ThinUploads } from '../../src/upload/thin.ts'
import { type Adding, boundary, idle, multipart, type Part, post, raw, startAdding } from '../support/adding.ts'
import { directoryRows, partsOf } from '../support/directory-shapes.ts'
import { keptIn } from '../support/kept.ts'

type Thin = {
  readonly url: string
  readonly target: string
  readonly port: number
  readonly tiers: Map<string, Uint8Array>
  close(): Promise<void>
}

async function listen(handler: RequestListener): Promise<{ server: Server; port: number }> {
  const server = createServer(handler)
  server.on('checkContinue', handler)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return { server, port: (server.address() as AddressInfo).port }
}

async function startThin(
  url: string,
  options: { authorization?: string; answerMs?: number; storeMs?: number; admit?: ThinOptions['admit'] } = {},
): Promise<Thin> {
  const tiers = new Map<string, Uint8Array>()
  const thin: ThinUploads = createThin({
    target: { url, authorization: options.authorization },
    profile: 'unixfs-v1-2025',
    limits: { maxBytes: 5_000_000, idleMs: 2000, minRate: 0, graceMs: 1000 },
    concurrency: 8,
    answerMs: options.answerMs ?? 1000,
    ...(options.admit && { admit: options.admit }),
    userAgent: 'cidgate/test',
    retrieval: {
      async store(cid: CID, bytes: Uint8Array) {
        await sleep(options.storeMs ?? 0)
        tiers.set(blockKey(cid), bytes)
        return []
      },
      forget() {},
    },
    clock: systemClock,
  })
  const app = express()
  const schemas = createSchemaChecks({ maxBytes: 1_000_000 })
  const route = createAddRoute({
    uploads: thin,
    tokens: createTokens({ tokens: ['ours'] }),
    reach: { isForThisMachine: false, addressOf: () => '' },
    schemas,
    clientOf: () => '',
    respond: createRespond({ mode: 'api', stalledMs: 60_000, onError: assert.ifError }),
  })
  app.all(route.at, (request, response, next) => route.answer(readContext(request, response), next))
  const { server, port } = await listen(app)
  return {
    url: `http://127.0.0.1:${port}`,
    target: url,
    port,
    tiers,
    async close() {
      server.closeAllConnections()
      server.close()
      await thin.close()
    },
  }
}

const ours = { Authorization: 'Bearer ours', Cookie: 'a=b', Origin: 'https://a.example' }

describe('upload loops', () => {
  let back: Provider | undefined
  afterEach(() => back?.close())

  const forwardTo = (url: string): Provider => {
    const kind = providerKinds['forward']
    assert.ok(kind)
    const context = {
      name: 'back',
      userAgent: 'test',
      data: '',
      folders: processFolders,
      log: silentLog,
      clock: systemClock,
    }
    return kind.create(kind.options.parse({ url: `${url}/add` }), context)
  }
  /** A provider that can be named only later. */
  const later = (find: () => Provider): Provider => ({
    name: 'back',
    traits: { takesBytes: true, local: false },
    pin: (upload, signal) => find().pin(upload, signal),
    unpin: (cid, signal) => find().unpin(cid, signal),
    status: (cid, signal) => find().status(cid, signal),
    probe: (signal) => find().probe(signal),
    close: async () => {},
  })

  it('two gateways that forward to each other → refused at once', async () => {
    const one = await startAdding({ confirm: 2, others: [later(() => back as Provider)] })
    const toOne = forwardTo(one.url)
    const two = await startAdding({ confirm: 2, others: [toOne] })
    back = forwardTo(two.url)
    try {
      const began = performance.now()
      const answer = await post(`${one.url}/add`, multipart([{ body: 'hello world\n' }]))
      assert.equal(answer.status, 502)
      assert.match(JSON.stringify(two.log), /508: .*CDN-Loop/)
      assert.ok(performance.now() - began < 5000)
    } finally {
      await toOne.close()
      await two.close()
      await one.close()
    }
  })

  it('thin mode: loop → 502 at once; chain → accepted', async () => {
    const end = await startAdding()
    let target = ''
    // The whole body first: a refusal that comes before it would close the connection under it.
    const door = await listen(async (request, response) => {
      const body = await buffer(request)
      const headers = { ...request.headers, host: 'x' }
      const onward = httpRequest(target, { method: 'POST', headers }, (answer) => {
        response.writeHead(answer.statusCode ?? 0, answer.headers)
        answer.pipe(response)
      })
      onward.end(body)
    })
    const first = await startThin(`http://127.0.0.1:${door.port}/add`, { authorization: 'Bearer ours' })
    const second = await startThin(`${end.url}/add`)
    try {
      target = `${second.url}/add`
      assert.equal((await post(`${first.url}/add`, multipart([{ body: 'a' }]), ours)).status, 200)
      target = `${first.url}/add`
      const looped = await post(`${first.url}/add`, multipart([{ body: 'a' }]), ours)
      assert.equal(looped.status, 502)
      assert.match(looped.body, /508/)
    } finally {
      await first.close()
      await second.close()
      door.server.close()
      await end.close()
    }
  })
})

describe('thin mode to another cidgate', () => {
  let there: Adding
  let thin: Thin
  before(async () => {
    there = await startAdding({ maxBytes: 10_000_000, tokens: ['theirs'] })
    // A busy machine may take seconds to sync what it keeps.
    thin = await startThin(`${there.url}/add`, { authorization: 'Bearer theirs', answerMs: 60_000 })
  })
  after(async () => {
    await thin.close()
    await there.close()
  })

  it('returns its CIDs; blocks are in the local tiers', async () => {
    const big = randomBytes(3_000_000)
    const { status, json, body } = await post(
      `${thin.url}/add`,
      multipart([{ fileName: 'a', body: big }, { body: 'text' }]),
      ours,
    )
    assert.equal(status, 200, body)
    assert.equal((json['cids'] as string[]).length, 2)
    await idle(there)
    for (const key of there.tiers.keys()) assert.ok(thin.tiers.has(key))
    assert.equal(thin.tiers.size, 5)
  })

  it('only-hash → CIDs; service gets no request', async () => {
    const state = async () => [await keptIn(there.data), there.log.length, thin.tiers.size]
    await idle(there)
    for (const query of ['', '&wrap=true']) {
      const parts = ['a', 'b'].map((fileName) => ({ fileName, body: randomBytes(2_000_000) }))
      const before = await state()
      const { status, json, body } = await post(`${thin.url}/add?only-hash=true${query}`, multipart(parts), ours)
      assert.equal(status, 200, body)
      assert.equal(there.uploads.admission.uploads, 0)
      assert.deepEqual(await state(), before)
      const own = await post(`${there.url}/add?${query}`, multipart(parts), { Authorization: 'Bearer theirs' })
      assert.deepEqual(json, own.json)
      await idle(there)
    }
    assert.equal((await post(`${thin.url}/add?only-hash=true`, multipart([{ body: 'x' }]))).status, 401)
  })

  it('own limits and tokens apply before forwarding', async () => {
    await idle(there)
    const before = await keptIn(there.data)
    const cases: readonly (readonly [number, Buffer, Record<string, string>])[] = [
      [401, multipart([{ body: 'x' }]), {}],
      [413, multipart([{ fileName: 'a', body: randomBytes(5_000_001) }]), ours],
      [400, multipart([{ name: 'file', body: 'x' }]), ours],
      [400, multipart([{ body: 'good' }, { body: '' }]), ours],
      [400, multipart([{ body: 'x' }]).subarray(0, -6), ours],
    ]
    for (const [status, body, headers] of cases) {
      const answer = await post(`${thin.url}/add`, body, headers)
      assert.equal(answer.status, status, answer.body)
      await idle(there)
      assert.deepEqual(await keptIn(there.data), before)
    }
  })

  it('folder → same directory there, blocks in the local tiers', async () => {
    const shown = ['names in no order', 'names of other scripts, spaces and marks', 'directories in directories']
    const rows = directoryRows.filter(({ what }) => [...shown, 'an empty file and an empty directory'].includes(what))
    assert.equal(rows.length, 4)
    for (const { what, files, cids } of rows) {
      const parts = [...partsOf(files())]
      const { status, json, body } = await post(`${thin.url}/add?wrap=true`, multipart(parts), ours)
      assert.equal(status, 200, `${what}: ${body}`)
      const told = json['cids'] as string[]
      const sent = parts.filter(({ type }) => type !== 'application/x-directory')
      assert.deepEqual([told.length, told.at(-1)], [sent.length + 1, `/ipfs/${cids['unixfs-v1-2025']}`], what)
    }
    await idle(there)
    for (const key of there.tiers.keys()) assert.ok(thin.tiers.has(key))
  })

  it('name of an upload → name of its pins there', async () => {
    const name = 'Bericht & 100 %'
    for (const wrap of ['', '&wrap=true']) {
      const parts = multipart([{ fileName: 'a', body: `named${wrap}` }])
      const { json } = await post(`${thin.url}/add?name=${encodeURIComponent(name)}${wrap}`, parts, ours)
      const cid = (json['cids'] as string[]).at(-1)?.slice('/ipfs/'.length) ?? ''
      assert.equal((await there.uploads.pins.find(CID.parse(cid)))?.name, name)
    }
  })

  it('file names in folders → unchanged, including quotes', async () => {
    const parts = ['say \\"a\\"', 'b c', 'ä/ö'].map((fileName) => ({ fileName, body: fileName }))
    const own = await post(`${there.url}/add?wrap=true`, multipart(parts), { Authorization: 'Bearer theirs' })
    const { status, json, body } = await post(`${thin.url}/add?wrap=true`, multipart(parts), ours)
    assert.equal(status, 200, body)
    assert.deepEqual(json, own.json)
  })

  const files = (...names: string[]): Part[] => names.map((fileName) => ({ fileName, body: fileName }))
  const refused: readonly (readonly [what: string, body: Buffer, says: RegExp, query?: string])[] = [
    ['a path that leads out of it', multipart(files('good', '../bad')), /it has \.\. in it/],
    ['two files of one path', multipart(files('a', 'a')), /the same path/],
    ['a directory with content', multipart([{ fileName: 'a', type: 'application/x-directory', body: 'x' }]), /content/],
    ['a body that is cut', multipart(files('a', 'b')).subarray(0, -6), /cut/],
    ['a CAR', multipart(files('a')), /send the CAR to the service itself/, 'format=car'],
  ]
  for (const [what, body, says, query = 'wrap=true'] of refused)
    it(`${what} → refused, nothing at the service`, async () => {
      await idle(there)
      const before = await keptIn(there.data)
      const cached = thin.tiers.size
      const answer = await post(`${thin.url}/add?${query}`, body, ours)
      assert.equal(answer.status, 400, answer.body)
      assert.match(String(answer.json['detail']), says)
      await idle(there)
      assert.deepEqual(await keptIn(there.data), before)
      assert.deepEqual(thin.tiers.size, cached)
    })

  it('client leaves during upload → nothing stored anywhere', async () => {
    await idle(there)
    const before = await keptIn(there.data)
    const body = multipart([{ fileName: 'a', body: randomBytes(2_000_000) }])
    await raw(thin.port, (socket) => {
      socket.write(
        `POST /add HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ours\r\nContent-Type: multipart/form-data; boundary=${boundary}\r\nContent-Length: ${body.byteLength}\r\n\r\n`,
      )
      socket.write(body.subarray(0, 1_900_000), () => setTimeout(() => socket.resetAndDestroy(), 50))
    })
    // At once, and not when the service gives up waiting.
    await idle(there, 500)
    assert.deepEqual(await keptIn(there.data), before)
  })
})

describe('thin mode to another service', () => {
  const open: (() => unknown)[] = []
  afterEach(async () => {
    for (const close of open.splice(0)) await close()
  })

  async function thinTo(
    handler: RequestListener,
    path = '/api/v0',
    options: Parameters<typeof startThin>[1] = {},
  ): Promise<Thin> {
    const { server, port } = await listen(handler)
    const thin = await startThin(`http://127.0.0.1:${port}${path}`, options)
    open.push(
      () => thin.close(),
      () => server.closeAllConnections(),
      () => server.close(),
    )
    return thin
  }

  const read = async (request: IncomingMessage): Promise<string> => {
    const pieces: Buffer[] = []
    for await (const piece of request) pieces.push(piece as Buffer)
    return Buffer.concat(pieces).toString('latin1')
  }
  const hello = 'bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4'
  const add = (thin: Thin) => post(`${thin.url}/add?schema_=x`, multipart([{ body: 'hello world\n' }]), ours)

  it('Kubo → gets our profile, nothing about the client', async () => {
    let seen: IncomingMessage | undefined
    let said = ''
    const thin = await thinTo(async (request, response) => {
      seen = request
      said = await read(request)
      response.end(`{"Name":"a","Bytes":12}\n{"Name":"a","Hash":"${hello}","Size":"12"}\n`)
    })
    const { status, json, body } = await add(thin)
    assert.equal(status, 200, body)
    assert.deepEqual(json, { cids: [`/ipfs/${hello}`] })
    assert.match(
      seen?.url ?? '',
      /^\/api\/v0\/add\?cid-version=1&raw-leaves=true&chunker=size-1048576&max-file-links=1024&/,
    )
    assert.match(said, /^--(cidgate-\S+)\r\nContent-[^\r]+\r\nContent-[^\r]+\r\n\r\nhello world\n\r\n--\1--\r\n$/)
    for (const name of ['authorization', 'cookie', 'origin', 'referer']) assert.equal(seen?.headers[name], undefined)
    assert.equal(seen?.headers['user-agent'], 'cidgate/test')
  })

  it('first bytes are forwarded before the last arrive', async () => {
    const first = Promise.withResolvers<void>()
    const thin = await thinTo(async (request, response) => {
      request.once('data', () => first.resolve())
      await read(request)
      response.end(`{"cids":["ipfs://${hello}"]}`)
    }, '/add')
    async function* body() {
      const whole = multipart([{ body: 'hello world\n' }])
      const at = whole.indexOf('hello') + 2
      yield whole.subarray(0, at - 20)
      yield whole.subarray(at - 20, at)
      await first.promise
      yield whole.subarray(at)
    }
    assert.equal((await post(`${thin.url}/add`, body(), ours)).status, 200)
  })

  type Seen = { text: string; isCut: boolean; delimiters(): number }

  /** A Kubo, and what it saw of each upload. */
  const thinAndSeen = async (options: Parameters<typeof startThin>[1] = {}) => {
    const bodies: Promise<Seen>[] = []
    const first = Promise.withResolvers<void>()
    const look = async (request: IncomingMessage): Promise<Seen> => {
      const mark = `--${/boundary=(.*)/.exec(request.headers['content-type'] ?? '')?.[1]}`
      const seen: Seen = { text: '', isCut: false, delimiters: () => seen.text.split(mark).length - 1 }
      const cut = () => {
        seen.isCut = true
      }
      request.on('data', (piece: Buffer) => {
        seen.text += piece.toString('latin1')
        first.resolve()
      })
      await once(request, 'end').catch(cut)
      return seen
    }
    const handler: RequestListener = async (request, response) => {
      const body = look(request)
      bodies.push(body)
      const { text } = await body
      response.end(Array.from(text.matchAll(/hello world\n/g), () => JSON.stringify({ Hash: hello })).join('\n'))
    }
    return { thin: await thinTo(handler, '/api/v0', options), bodies, first: first.promise }
  }

  it('Kubo, which stores every part → gets data parts only', async () => {
    const { thin, bodies } = await thinAndSeen()
    const parts = [
      { name: 'other', fileName: 'x', body: 'unchecked' },
      { fileName: 'a/b', type: 'application/symlink', body: 'hello world\n' },
      { name: 'text', body: 'unchecked' },
      { body: 'hello world\n' },
    ]
    const whole = Buffer.concat([Buffer.from('unchecked\r\n'), multipart(parts), Buffer.from('unchecked')])
    const { status, json, body } = await post(`${thin.url}/add`, whole, ours)
    assert.equal(status, 200, body)
    assert.deepEqual(json, { cids: [`/ipfs/${hello}`, `/ipfs/${hello}`] })
    const said = (await bodies[0])?.text ?? ''
    assert.doesNotMatch(said, /unchecked|other|text|symlink|a\/b/)
    assert.deepEqual(said.match(/filename="[^"]*"/g), ['filename="data-1"', 'filename="data-2"'])
  })

  const folder = 'bafybeigpk3zulymwmoqdajj72zyq77zdwayprjtlbcgbnkut3g27eftu6y'

  it('Kubo, folder → gets its paths and wrap option', async () => {
    let seen: IncomingMessage | undefined
    let said = ''
    const thin = await thinTo(async (request, response) => {
      seen = request
      said = await read(request)
      response.end(`{"Name":"a b/c","Hash":"${hello}","Size":"12"}\n{"Name":"","Hash":"${folder}","Size":"99"}\n`)
    })
    const parts = [
      { fileName: 'a b/ä"c'.replace('"', '\\"'), body: 'hello world\n' },
      { fileName: 'empty', type: 'application/x-directory', body: '' },
    ]
    const { status, body } = await post(`${thin.url}/add?wrap=true`, multipart(parts), ours)
    assert.match(seen?.url ?? '', /&wrap-with-directory=true&/)
    assert.deepEqual(said.match(/filename="[^"]*"\r\nContent-Type: \S+/g), [
      'filename="a%20b/%C3%A4%22c"\r\nContent-Type: application/octet-stream',
      'filename="empty"\r\nContent-Type: application/x-directory',
    ])
    assert.equal(status, 200, body)
  })

  it('service ignores the folder → its answer is not trusted', async () => {
    const thin = await thinTo(async (request, response) => {
      assert.match(request.url ?? '', /^\/add\?wrap=true$/)
      await read(request)
      response.end(`{"cids":["ipfs://${hello}"]}`)
    }, '/add')
    const parts = [{ fileName: 'a', body: 'hello world\n' }]
    const { status, body } = await post(`${thin.url}/add?wrap=true`, multipart(parts), ours)
    assert.equal(status, 502)
    assert.match(
      body,
      /did not say that it holds bafybei\w+, which the upload is; does it have the same profile, and take folders/,
    )
  })

  it('refused folder → body is never completed', async () => {
    const admit = (cid: CID) => {
      if (cid.code === 0x70) throw new Failure('denied', 'it is on a denylist', { source: 'ours' })
    }
    const { thin, bodies } = await thinAndSeen({ admit })
    const parts = [{ fileName: 'a', body: 'hello world\n' }]
    const { status, body: text } = await post(`${thin.url}/add?wrap=true`, multipart(parts), ours)
    assert.equal(status, 410, text)
    for (const seen of await Promise.all(bodies)) assert.deepEqual([seen.isCut, seen.delimiters()], [true, 1])
  })

  it('invalid part → body never completed', async () => {
    const { thin, bodies, first } = await thinAndSeen()
    async function* body() {
      const whole = multipart([{ body: 'hello world\n' }])
      const at = whole.indexOf('hello') + 2
      yield whole.subarray(0, at - 20)
      yield whole.subarray(at - 20, at)
      await first
      yield whole.subarray(at)
      for (let pieces = 0; pieces < 60; pieces++) yield Buffer.alloc(100_000, 'z')
    }
    assert.equal((await post(`${thin.url}/add`, body(), ours)).status, 413)
    const [seen] = await Promise.all(bodies)
    assert.deepEqual([seen?.isCut, seen?.delimiters()], [true, 1])
  })

  it('refused part → never completed, even before others', async () => {
    const admit = (cid: CID) => {
      if (cid.toString() === hello) throw new Failure('denied', 'it is on a denylist', { source: 'ours' })
    }
    const { thin, bodies, first } = await thinAndSeen({ admit, storeMs: 50 })
    async function* body() {
      const whole = multipart([{ body: 'hello world\n' }, { fileName: 'a', body: randomBytes(1_000_000) }])
      const at = whole.indexOf('hello') + 2
      yield whole.subarray(0, at - 20)
      yield whole.subarray(at - 20, at)
      await first
      yield whole.subarray(at)
    }
    const { status, body: text } = await post(`${thin.url}/add`, body(), ours)
    assert.equal(status, 410, text)
    const [seen] = await Promise.all(bodies)
    assert.deepEqual([seen?.isCut, seen?.delimiters()], [true, 1])
  })

  it('file with a denied block → never completed', async () => {
    const leaf = randomBytes(1024 * 1024)
    const denied = CID.createV1(0x55, await sha256.digest(leaf)).toString()
    const admit = (cid: CID) => {
      if (cid.toString() === denied) throw new Failure('denied', 'it is on a denylist', { source: 'ours' })
    }
    const { thin, bodies } = await thinAndSeen({ admit, storeMs: 50 })
    const whole = multipart([{ fileName: 'a', body: Buffer.concat([leaf, randomBytes(500)]) }])
    const { status, body: text } = await post(`${thin.url}/add`, whole, ours)
    assert.equal(status, 410, text)
    for (const seen of await Promise.all(bodies)) assert.deepEqual([seen.isCut, seen.delimiters()], [true, 1])
  })

  it("client may pause longer than the service's timeout", async () => {
    const { thin } = await thinAndSeen({ answerMs: 100 })
    async function* body() {
      const whole = multipart([{ body: 'hello world\n' }])
      const at = whole.indexOf('hello') + 2
      yield whole.subarray(0, at)
      await sleep(300)
      yield whole.subarray(at)
    }
    const { status, body: text } = await post(`${thin.url}/add`, body(), ours)
    assert.equal(status, 200, text)
  })

  it("Kubo's response timeout starts at the end of the body", async () => {
    const begun = Promise.withResolvers<void>()
    const thin = await thinTo(
      async (request, response) => {
        request.once('data', () => {
          response.write(`{"Name":"data-1","Hash":"${hello}","Size":"12"}\n`, () => begun.resolve())
        })
        await read(request)
        response.end(`{"Name":"data-2","Hash":"${hello}","Size":"12"}\n`)
      },
      '/api/v0',
      { answerMs: 150 },
    )
    async function* body() {
      const whole = multipart([{ body: 'hello world\n' }, { body: 'hello world\n' }])
      const at = whole.lastIndexOf('hello') + 2
      yield whole.subarray(0, at)
      await begun.promise
      await sleep(400)
      yield whole.subarray(at)
    }
    const { status, body: text } = await post(`${thin.url}/add`, body(), ours)
    assert.equal(status, 200, text)
  })

  it('endless response → error says that it began', async () => {
    for (const [begins, words] of [
      [true, 'its answer did not end within 100 ms'],
      [false, 'no answer within 100 ms'],
    ] as const) {
      const handler: RequestListener = (request, response) => {
        request.resume()
        if (begins) response.write(`{"Hash":"${hello}"}\n`)
      }
      const thin = await thinTo(handler, '/api/v0', { answerMs: 100 })
      const { status, json } = await add(thin)
      assert.equal(status, 502)
      assert.equal((json['outcomes'] as { detail: string }[])[0]?.detail, words)
    }
  })

  const bad: readonly (readonly [name: string, outcome: string, handler: RequestListener])[] = [
    [
      'another CID',
      'content',
      async (request, response) => {
        await read(request)
        response.end('{"Hash":"QmT78zSuBmuS4z925WZfrqQ1qHaJ56DQaTfyMUF7F8ff5o"}')
      },
    ],
    [
      'no CID',
      'content',
      async (request, response) => {
        await read(request)
        response.end('')
      },
    ],
    [
      'HTML',
      'content',
      async (request, response) => {
        await read(request)
        response.end('<html>')
      },
    ],
    [
      'an endless answer',
      'content',
      async (request, response) => {
        await read(request)
        response.write('x'.repeat(2_000_000))
      },
    ],
    [
      '500',
      'transient',
      async (request, response) => {
        await read(request)
        response.writeHead(500).end()
      },
    ],
    [
      '402',
      'quota',
      async (request, response) => {
        await read(request)
        response.writeHead(402).end()
      },
    ],
    [
      'a redirect',
      'transient',
      async (request, response) => {
        await read(request)
        response.writeHead(302, { Location: 'http://127.0.0.1:1/' }).end()
      },
    ],
    [
      'an early refusal',
      'auth',
      (_request, response) => {
        response.writeHead(403).end()
      },
    ],
    ['nothing', 'transient', () => {}],
    [
      'a cut',
      'transient',
      (request) => {
        request.socket.destroy()
      },
    ],
    [
      'a cut answer',
      'transient',
      async (request, response) => {
        await read(request)
        response.writeHead(200, { 'Content-Length': '500' })
        response.write('{')
        setTimeout(() => request.socket.destroy(), 20)
      },
    ],
    [
      'an error behind its answer',
      'transient',
      async (request, response) => {
        await read(request)
        response.writeHead(200, { Trailer: 'X-Stream-Error' })
        response.write(`{"Hash":"${hello}"}\n`)
        response.addTrailers({ 'X-Stream-Error': 'no' })
        response.end()
      },
    ],
  ]
  for (const [name, outcome, handler] of bad) {
    it(`${name} → 502`, async () => {
      const thin = await thinTo(handler)
      const { status, json, body } = await add(thin)
      assert.equal(status, 502, body)
      const outcomes = json['outcomes'] as { outcome: string }[]
      assert.deepEqual(
        outcomes.map((one) => one.outcome),
        [outcome],
      )
    })
  }

  /** How a service says no: when all was read, or at once, and then the connection is gone. */
  const refusing = (status: number, headers: Record<string, string>, isEarly: boolean): RequestListener =>
    async function refuse(request, response) {
      if (!isEarly) await read(request)
      response.writeHead(status, { ...headers, 'Content-Type': 'text/plain' })
      // As some do: the header that they refuse, word for word.
      response.end(`no: ${request.headers.authorization}`)
    }

  const handedOn: readonly (readonly [status: number, title: string, sent: Record<string, string>, retry?: string])[] =
    [
      [401, 'Not allowed', { 'WWW-Authenticate': 'Basic realm="upstairs"' }],
      [413, 'Too large', {}],
      [413, 'Too large', { 'Retry-After': '90' }, '90'],
      [429, 'Too many requests', { 'Retry-After': '17' }, '17'],
      [429, 'Too many requests', { 'Retry-After': new Date(Date.now() + 3_600_000).toUTCString() }, '3600'],
    ]
  for (const path of ['/add', '/api/v0'])
    for (const isEarly of [false, true])
      for (const [status, title, sent, retry] of handedOn)
        it(`${path}: ${status} ${JSON.stringify(sent)}${isEarly ? ' early' : ''} → forwarded`, async () => {
          const thin = await thinTo(refusing(status, sent, isEarly), path, {
            authorization: 'Bearer theirs-and-secret',
          })
          const upload = multipart([{ fileName: 'a', body: randomBytes(isEarly ? 4_000_000 : 100) }])
          const answer = await post(`${thin.url}/add`, upload, ours)
          assert.equal(answer.status, status, answer.body)
          assert.match(String(answer.headers['content-type']), /^application\/problem\+json/)
          const { host } = new URL(thin.target)
          assert.equal(answer.json['title'], title)
          assert.match(
            String(answer.json['detail']),
            new RegExp(`^${host} does not hold the upload: it answered ${status}`),
          )
          assert.deepEqual(
            (answer.json['outcomes'] as { provider: string }[]).map(({ provider }) => provider),
            [host],
          )
          if (retry === '3600') assert.ok(Number(answer.headers['retry-after']) > 3500)
          else if (retry !== undefined) assert.equal(answer.headers['retry-after'], retry)
          else assert.equal(answer.headers['retry-after'], undefined)
          assert.equal(answer.headers['www-authenticate'], status === 401 ? `Bearer realm="${host}"` : undefined)
          const told = JSON.stringify([answer.headers, answer.body])
          assert.doesNotMatch(told, /theirs-and-secret|upstairs/)
          assert.equal(thin.tiers.size, 0)
        })

  it('service down → 502', async () => {
    const { server, port } = await listen(() => {})
    server.close()
    const thin = await startThin(`http://127.0.0.1:${port}/add`)
    open.push(() => thin.close())
    assert.equal((await add(thin)).status, 502)
  })
})
