// `ls` and `get` of Kubo's door, and what becomes of an answer that fails after its first byte. What a real Kubo answers is
// compared in the interop suite.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { request } from 'node:http'
import { after, before, describe, it } from 'node:test'
import { gunzipSync } from 'node:zlib'
import { UnixFS } from 'ipfs-unixfs'
import { CID } from 'multiformats/cid'
import { sha256 } from 'multiformats/hashes/sha2'
import { gzipped } from '../../src/http/kubo/read.ts'
import { addCbor, addFile, addNode, addSymlink, type BlockMap, noise, text } from '../support/fixtures.ts'
import { type KuboDoor, startKuboDoor } from '../support/kubo-door.ts'

type Answer = {
  readonly status: number | undefined
  readonly headers: Readonly<Record<string, unknown>>
  readonly body: Buffer
  readonly late: string | undefined
}

const plain = { Target: '', Mode: 0, ModTime: '0001-01-01T00:00:00Z' }

describe('Kubo RPC: reads', () => {
  let door: KuboDoor
  const blocks: BlockMap = new Map()
  const many: CID[] = []
  let root: CID
  let large: CID

  before(async () => {
    door = await startKuboDoor()
    const old = await addFile(blocks, noise(600_000), 'v0')
    large = old.cid
    const small = await addFile(blocks, text('small'))
    const dated = addNode(blocks, {
      Data: new UnixFS({
        type: 'file',
        data: text('dated'),
        mode: 0o4600,
        mtime: { secs: 1_700_000_000n, nsecs: 5_000 },
      }).marshal(),
      Links: [],
    })
    for (let index = 0; index < 40; index++)
      many.push(addNode(blocks, { Data: new UnixFS({ type: 'file', data: text(`${index}`) }).marshal(), Links: [] }))
    root = directory({
      big: large,
      dated,
      document: addCbor(blocks, { a: 1 }),
      link: addSymlink(blocks, 'big'),
      small: small.cid,
    })
    await keep(blocks)
  })
  after(() => door.close())

  function directory(entries: Readonly<Record<string, CID>>, into = blocks): CID {
    const Links = Object.entries(entries).map(([Name, Hash]) => ({ Name, Hash, Tsize: 5 }))
    return addNode(into, { Data: new UnixFS({ type: 'directory' }).marshal(), Links })
  }

  /** Where `gone` is left out. */
  async function keep(some: BlockMap, gone: readonly CID[] = []): Promise<void> {
    for (const bytes of some.values()) {
      const cid = CID.createV1(0x55, await sha256.digest(bytes))
      const isGone = gone.some(({ multihash }) => Buffer.compare(multihash.bytes, cid.multihash.bytes) === 0)
      if (!isGone) await door.retrieval.store(cid, bytes, new AbortController().signal)
    }
  }

  /** Rejects where the connection is cut. */
  const ask = (path: string): Promise<Answer> =>
    new Promise((resolve, reject) => {
      const asked = request(`${door.url}/api/v0/${path}`, { method: 'POST' }, (answer) => {
        const pieces: Buffer[] = []
        answer.on('data', (piece: Buffer) => pieces.push(piece))
        answer.on('error', reject)
        answer.on('end', () =>
          resolve({
            status: answer.statusCode,
            headers: answer.headers,
            body: Buffer.concat(pieces),
            late: answer.trailers['x-stream-error'],
          }),
        )
      })
      asked.on('error', reject)
      asked.end()
    })
  const lines = ({ body }: Answer): unknown[] =>
    body
      .toString()
      .split('\n')
      .filter(Boolean)
      .map((line) => JSON.parse(line))

  it('ls: links with targets, sorted, for each path', async () => {
    const answer = await ask(`ls?arg=${root}&arg=/ipfs/${root}/big`)
    const [{ Objects }] = lines(answer) as [{ Objects: { Hash: string; Links: Record<string, unknown>[] }[] }]
    assert.deepEqual(
      [answer.status, answer.headers['content-type'], answer.headers['x-content-type-options']],
      [200, 'application/json', 'nosniff'],
    )
    assert.deepEqual(
      Objects.map(({ Hash }) => Hash),
      [String(root), `/ipfs/${root}/big`],
    )
    assert.deepEqual(
      Objects[0]?.Links.map(({ Hash, ...rest }) => rest),
      [
        { ...plain, Name: 'big', Size: 600_000, Type: 2 },
        { ...plain, Name: 'dated', Size: 5, Type: 2, Mode: 0o600 + 2 ** 23, ModTime: '2023-11-14T22:13:20.000005Z' },
        { ...plain, Name: 'document', Size: 0, Type: 0 },
        { ...plain, Name: 'link', Size: 3, Type: 4, Target: 'big' },
        { ...plain, Name: 'small', Size: 5, Type: 2 },
      ],
    )
    assert.equal(Objects[0]?.Links[0]?.['Hash'], String(large))
    assert.deepEqual(
      Objects[1]?.Links.map(({ Name, Size, Type }) => [Name, Size, Type]),
      [
        ['', 262_144, 2],
        ['', 262_144, 2],
        ['', 75_712, 2],
      ],
    )
  })

  it('ls without types: no block reads; streaming; other CID spellings', async () => {
    const bare = lines(await ask(`ls?arg=${root}&resolve-type=false&size=0&s=true&cid-base=base32`)) as {
      Objects: { Hash: string; Links: { Name: string; Hash: string; Type: number }[] }[]
    }[]
    assert.deepEqual(
      bare.map(({ Objects }) => Objects[0]?.Links.map(({ Name, Type }) => [Name, Type])),
      [[['big', 0]], [['dated', 0]], [['document', 0]], [['link', 0]], [['small', 2]]],
    )
    assert.equal(bare[0]?.Objects[0]?.Links[0]?.Hash, String(large.toV1()))
  })

  it('get: tar under the last path segment, optional compression', async () => {
    const names = (archive: Buffer) => {
      const { stdout, status } = spawnSync('tar', ['-tf', '-'], { input: archive })
      return { status, names: String(stdout).split('\n').filter(Boolean) }
    }
    const top = directory({ in: root })
    await keep(blocks)
    const { status, headers, body } = await ask(`get?arg=${top}/in`)
    assert.equal(status, 200)
    assert.deepEqual(names(body), {
      status: 0,
      names: ['in', 'in/big', 'in/dated', 'in/document', 'in/link', 'in/small'],
    })
    assert.equal(body.subarray(0, 4).toString(), 'in\0\0')
    assert.deepEqual(
      [
        headers['content-type'],
        headers['x-stream-output'],
        Number(headers['x-content-length']) > 25,
        headers['trailer'],
      ],
      ['application/x-tar', '1', true, 'X-Stream-Error'],
    )
    const alone = await ask(`get?arg=${root}/big&compress=true&compression-level=1`)
    assert.deepEqual([alone.headers['content-type'], alone.headers['x-content-length']], ['application/gzip', '600000'])
    assert.equal(Buffer.compare(gunzipSync(alone.body), noise(600_000)), 0)
    const packed = await ask(`get?arg=${top}/in&a=true&C=true`)
    assert.equal(Buffer.compare(gunzipSync(packed.body), body), 0)
  })

  for (const [path, status, says] of [
    ['ls', 400, /ipfs-path.* is required/],
    ['ls?arg=nonsense', 400, /not a CID/],
    ['ls?arg=ROOT/none', 500, /no link named/],
    ['ls?arg=ROOT/none&stream=true', 500, /no link named/],
    ['ls?arg=ROOT&arg=nonsense&stream=true', 400, /not a CID/],
    ['ls?arg=ROOT&stream=maybe', 400, /stream=maybe/],
    ['ls?arg=ROOT&cid-base=base58btc', 400, /cid-base=base58btc is not supported/],
    ['get?arg=ROOT/none', 500, /no link named/],
    ['get?arg=ROOT/document', 400, /neither a file nor a directory/],
    ['cat?arg=ROOT/document', 400, /unknown node type: .* is not a file; block\/get reads it/],
    ['cat?arg=ROOT/document/a', 400, /unknown node type/],
    ['cat?arg=ROOT/document/none', 500, /none/],
    ['get?arg=ROOT&compress=true', 400, /archive=true/],
    ['get?arg=ROOT&C=true&a=true&l=10', 400, /compression-level=10/],
    ['get?arg=ROOT&arg=ROOT', 400, /required once/],
    ['constructor', 404, /not found/],
  ] as const)
    it(`${path} → ${status}`, async () => {
      const answer = await ask(path.replaceAll('ROOT', String(root)))
      assert.equal(answer.status, status)
      assert.match(answer.body.toString(), says)
      for (const name of ['trailer', 'x-chunked-output', 'x-stream-output', 'x-content-length'])
        assert.equal(answer.headers[name], undefined, name)
    })

  describe('late failures', () => {
    let broken: CID
    let missing: CID
    before(async () => {
      const own: BlockMap = new Map()
      missing = addNode(own, { Data: new UnixFS({ type: 'file', data: text('gone') }).marshal(), Links: [] })
      broken = directory(Object.fromEntries([...many, missing].map((cid, index) => [`${1000 + index}`, cid])), own)
      await keep(own, [missing])
    })

    it('streamed list → error line and trailer', async () => {
      const answer = await ask(`ls?arg=${broken}&stream=true`)
      const told = lines(answer)
      assert.equal(answer.status, 200)
      assert.equal(told.length, 41)
      const { Message, Code, Type } = told.at(-1) as Record<string, unknown>
      assert.deepEqual([Code, Type, Message], [0, 'error', answer.late])
      assert.ok(answer.late?.includes(String(missing)), answer.late)
    })

    it('buffered list → error status', async () => {
      const { status, body } = await ask(`ls?arg=${broken}`)
      assert.equal(status, 500)
      assert.ok(body.includes(String(missing)))
    })

    it('archive → trailer, and recognizably truncated', async () => {
      const answer = await ask(`get?arg=${broken}`)
      assert.equal(answer.status, 200)
      assert.ok(answer.late?.includes(String(missing)), answer.late)
      assert.notEqual(spawnSync('tar', ['-tf', '-'], { input: answer.body }).status, 0)
      const packed = await ask(`get?arg=${broken}&archive=true&compress=true`)
      // An error status says it where nothing was compressed yet.
      const why = packed.status === 200 ? packed.late : packed.body.toString()
      assert.ok(why?.includes(String(missing)), `${packed.status} ${why}`)
      assert.throws(() => gunzipSync(packed.body))
    })

    it('client leaves or stalls → source of compression stops', { timeout: 20_000 }, async () => {
      let isClosed = false
      async function* endless() {
        try {
          for (;;) yield noise(200_000, 3)
        } finally {
          isClosed = true
        }
      }
      const packed = gzipped(endless(), -1)
      await packed.next()
      await new Promise((resolve) => setImmediate(resolve)) // its output is full, and nobody takes it
      await packed.return(undefined)
      while (!isClosed) await new Promise((resolve) => setImmediate(resolve))
    })

    it('bytes alone look complete → connection reset', async () => {
      const own: BlockMap = new Map()
      const file = await addFile(own, noise(600_000, 9), 'v0')
      const last = [...own.values()].find((bytes) => bytes.byteLength > 70_000 && bytes.byteLength < 80_000)
      assert.ok(last)
      await keep(own, [CID.createV1(0x55, await sha256.digest(last))])
      await assert.rejects(ask(`cat?arg=${file.cid}`))
      await assert.rejects(ask(`dag/export?arg=${file.cid}`))
    })
  })
})
