// POST /add?wrap=true: files with relative names become one directory, over HTTP.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import { CarReader } from '@ipld/car'
import { CID } from 'multiformats/cid'
import type { Provider } from '../../backends/pinning/contract.ts'
import { Failure } from '../../src/core/failure.ts'
import { type Adding, boundary, idle, multipart, type Part, post, startAdding } from '../support/adding.ts'
import { fetchAll, startGateway, type TestGateway } from '../support/gateway.ts'
import { keptIn, nothing } from '../support/kept.ts'
import { scriptedProvider } from '../support/scripted-provider.ts'

const file = (fileName: string, body: Uint8Array | string = fileName): Part => ({ fileName, body })
const cidsOf = (json: Record<string, unknown>): CID[] =>
  (json['cids'] as string[]).map((path) => CID.parse(path.slice('/ipfs/'.length)))

describe('uploaded directory', () => {
  let at: TestGateway
  before(async () => {
    at = await startGateway({ config: { pinning: { providers: [{ name: 'local', use: 'embedded' }] } } })
  })
  after(() => at?.close())

  const upload = (parts: readonly Part[], query = 'wrap=true') => post(`${at.url}/add?${query}`, multipart(parts))
  const read = async (path: string) => (await fetchAll(`${at.url}/ipfs/${path}`)).body.toString()
  type Listing = { readonly entries: readonly { readonly name: string }[] }
  const namesIn = async (path: string) => (JSON.parse(await read(path)) as Listing).entries.map(({ name }) => name)

  it('directory → its CID last, every file readable by path', async () => {
    const { status, json, body } = await upload([
      file('index.html', '<p>hello</p>'),
      { name: 'other', fileName: 'not/in/it', body: 'x' },
      file('css/site.css'),
      file('日本/ä b.txt'),
      file('.empty', ''),
    ])
    assert.equal(status, 200, body)
    const [index, css, unicode, empty, root, ...more] = cidsOf(json)
    assert.deepEqual(more, [])
    assert.deepEqual(await namesIn(String(root)), ['.empty', 'css', 'index.html', '日本'])
    assert.equal(await read(`${root}/index.html`), '<p>hello</p>')
    assert.equal(await read(`${root}/${encodeURIComponent('日本')}/${encodeURIComponent('ä b.txt')}`), '日本/ä b.txt')
    assert.deepEqual(await Promise.all([index, css, unicode, empty].map((cid) => read(String(cid)))), [
      '<p>hello</p>',
      'css/site.css',
      '日本/ä b.txt',
      '',
    ])
  })

  it('upload of what was a cached 404 → readable', async () => {
    const parts = [file('a/b', randomBytes(20).toString('hex'))]
    const told = cidsOf((await post(`${at.url}/add?wrap=true`, multipart(parts))).json)
    const again = await startGateway({ config: { pinning: { providers: [{ name: 'local', use: 'embedded' }] } } })
    try {
      const path = `${again.url}/ipfs/${told.at(-1)}/a/b`
      assert.equal((await fetchAll(path)).status, 404)
      assert.equal((await post(`${again.url}/add?wrap=true`, multipart(parts))).status, 200)
      assert.equal((await fetchAll(path)).status, 200)
    } finally {
      await again.close()
    }
  })

  it('each file keeps its name, whatever the client', async () => {
    const dispositions: readonly (readonly [disposition: string, name: string])[] = [
      ['form-data; name="data"; filename="./a.txt"', 'a.txt'],
      ['form-data; name=data; filename=a.txt', 'a.txt'],
      ['form-data; filename="a.txt"; name="data"', 'a.txt'],
      ['form-data; name="data"; filename="say %22hi%22.txt"', 'say %22hi%22.txt'],
      ['form-data; name="data"; filename="say \\"hi\\".txt"', 'say "hi".txt'],
      ['form-data; name="data"; filename="räk 日.txt"', 'räk 日.txt'],
      ['form-data; name="data"; filename*=UTF-8\'\'r%C3%A4k', 'räk'],
      ['form-data; name="data"; filename="a"; filename*=utf-8\'\'a', 'a'],
    ]
    for (const [disposition, name] of dispositions) {
      const body = `--${boundary}\r\nContent-Disposition: ${disposition}\r\n\r\nx\r\n--${boundary}--\r\n`
      const { status, json, body: said } = await post(`${at.url}/add?wrap=true`, Buffer.from(body))
      assert.equal(status, 200, said)
      assert.deepEqual(await namesIn(String(cidsOf(json).at(-1))), [name], disposition)
    }
    const form = new FormData()
    form.append('data', new File(['x'], 'dist/ä 日本.txt'))
    const answer = await fetch(`${at.url}/add?wrap`, { method: 'POST', body: form })
    const root = cidsOf((await answer.json()) as Record<string, unknown>).at(-1)
    assert.deepEqual([await namesIn(String(root)), await namesIn(`${root}/dist`)], [['dist'], ['ä 日本.txt']])
  })

  it('wrap=false → not wrapped', async () => {
    for (const query of ['wrap=false', 'wrap=0', '']) {
      const { json } = await upload([file('a/b')], query)
      assert.equal(cidsOf(json).length, 1, query)
    }
  })
})

async function cidsInCar(car: Uint8Array): Promise<string[]> {
  const reader = await CarReader.fromBytes(car)
  return (await Array.fromAsync(reader.blocks())).map(({ cid }) => cid.toString())
}

describe('directory upload', () => {
  let adding: Adding
  let accepts = true
  const asked: { readonly cid: string; readonly car: Promise<string[]> }[] = []
  /** It takes CARs, as most remote providers do. */
  const remote: Provider = {
    ...scriptedProvider('remote'),
    async pin(upload, signal) {
      const car = await Array.fromAsync(upload.car(signal))
      assert.equal(Buffer.concat(car).byteLength, upload.carBytes)
      asked.push({ cid: `${upload.cid}`, car: cidsInCar(Buffer.concat(car)) })
      return upload.cid
    },
  }
  before(async () => {
    adding = await startAdding({
      maxBytes: 100_000,
      others: [remote],
      confirm: 2,
      admit: () => {
        if (!accepts) throw new Failure('denied', 'this is denied', { source: 'content' })
      },
    })
  })
  after(() => adding?.close())

  const upload = (parts: readonly Part[], query = 'wrap=true') => post(`${adding.url}/add?${query}`, multipart(parts))

  it('each provider gets one upload with all blocks', async () => {
    const { status, json, body } = await upload([file('a', randomBytes(500)), file('b/c', randomBytes(500))])
    assert.equal(status, 200, body)
    const cids = cidsOf(json)
    const root = cids.at(-1) as CID
    assert.deepEqual(
      asked.map(({ cid }) => cid),
      [root.toString()],
    )
    const sent = await asked[0]?.car
    assert.equal(sent?.[0], root.toString())
    // Two files, the directory and the one below.
    assert.equal(sent?.length, 4)
    for (const cid of cids) {
      assert.ok(await adding.embedded.store.get(cid), `${cid} is in the store`)
      assert.ok(await adding.store.blocks.has(cid), `${cid} is kept`)
    }
    const signal = new AbortController().signal
    assert.equal(await adding.embedded.status(root, signal), 'pinned')
    assert.equal(await adding.embedded.status(cids[0] as CID, signal), 'missing')
  })

  const broken = (disposition: string) =>
    Buffer.from(`--${boundary}\r\nContent-Disposition: ${disposition}\r\n\r\nx\r\n--${boundary}--\r\n`)
  const refused: readonly (readonly [what: string, status: number, body: Buffer, says: RegExp, query?: string])[] = [
    ['a path out of it', 400, multipart([file('a'), file('../b')]), /has \.\. in it/],
    ['the same path twice', 400, multipart([file('a'), file('a')]), /the same path/],
    ['a file that is a directory as well', 400, multipart([file('a/b'), file('a')]), /the same path/],
    ['a part without a file name', 400, multipart([file('a'), { body: 'x' }]), /file name/],
    ['a name that parsers read in two ways', 400, broken('form-data; name="data"; filename="a"b"'), /in one way only/],
    [
      'two names that are different',
      400,
      broken('form-data; name="data"; filename="a"; filename*=utf-8\'\'b'),
      /in one way only/,
    ],
    [
      'a name that is not UTF-8',
      400,
      Buffer.from(broken('form-data; name="data"; filename="\u00e9"').toString(), 'latin1'),
      /in one way only/,
    ],
    ['a directory with content', 400, multipart([{ ...file('a'), type: 'application/x-directory' }]), /has content/],
    ['too many bytes', 413, multipart([file('a', randomBytes(60_000)), file('b', randomBytes(60_000))]), /larger/],
    ['a schema', 400, multipart([file('a', '{}')]), /leave out schema/, 'wrap=true&schema=evidence'],
    ['wrap=maybe', 400, multipart([file('a')]), /wrap=maybe is not true or false/, 'wrap=maybe'],
    ['wrap said twice', 400, multipart([file('a')]), /given twice/, 'wrap=true&wrap=false'],
    ['no part', 400, multipart([{ name: 'other', fileName: 'a', body: 'x' }]), /no part named `data`/],
  ]
  for (const [what, status, body, says, query = 'wrap=true'] of refused)
    it(`${what} → ${status}, nothing stored`, async () => {
      await idle(adding)
      const before = await keptIn(adding.data)
      const answer = await post(`${adding.url}/add?${query}`, body)
      assert.equal(answer.status, status, answer.body)
      assert.match(String(answer.json['detail']), says)
      await idle(adding)
      assert.deepEqual(await keptIn(adding.data), before)
    })

  it('one denied file → refused', async () => {
    await idle(adding)
    const before = await keptIn(adding.data)
    accepts = false
    try {
      assert.equal((await upload([file('a'), file('b')])).status, 410)
    } finally {
      accepts = true
    }
    await idle(adding)
    assert.deepEqual(await keptIn(adding.data), before)
  })

  it('more files than the parts limit of other forms → accepted', async () => {
    const parts = Array.from({ length: 140 }, (_, index) => file(`${index}`))
    const { status, json, body } = await upload(parts)
    assert.equal(status, 200, body)
    assert.equal(cidsOf(json).length, 141)
    assert.equal((await upload(parts, '')).status, 400)
  })

  it('one of two providers fails → held at neither', async () => {
    const adding = await startAdding({ others: [scriptedProvider('remote', 'dead')], confirm: 2 })
    try {
      const { status, json } = await post(`${adding.url}/add?wrap=true`, multipart([file('a'), file('b/c')]))
      assert.equal(status, 502)
      assert.equal((json['outcomes'] as unknown[]).length, 2)
      await idle(adding)
      assert.deepEqual(await keptIn(adding.data), nothing)
    } finally {
      await adding.close()
    }
  })
})
