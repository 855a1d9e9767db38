// Kubo's door: the calls of its RPC that put files in and get them out, in the shapes its clients expect.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { after, before, describe, it } from 'node:test'
import { CarReader } from '@ipld/car'
import { encode } from '@ipld/dag-cbor'
import { CID } from 'multiformats/cid'
import { sha256 } from 'multiformats/hashes/sha2'
import { profiles } from '../../backends/pinning/contract.ts'
import { boundary, idle, multipart, type Part, post, raw } from '../support/adding.ts'
import { directoryRows, partsOf } from '../support/directory-shapes.ts'
import { type KuboDoor, startKuboDoor } from '../support/kubo-door.ts'
import { kuboShapes } from '../support/kubo-shapes.ts'
import { made } from '../support/made.ts'
import { scriptedProvider } from '../support/scripted-provider.ts'

describe('Kubo RPC', () => {
  let door: KuboDoor
  before(async () => {
    door = await startKuboDoor()
  })
  after(() => door.close())

  const call = (path: string) => fetch(`${door.url}/api/v0/${path}`, { method: 'POST' })
  const add = async (query: string, parts: readonly Part[]) => {
    const { status, body } = await post(`${door.url}/api/v0/add${query}`, multipart(parts))
    return {
      status,
      lines: body
        .split('\n')
        .filter(Boolean)
        .map((line) => JSON.parse(line) as Record<string, string>),
    }
  }

  it('every part → a file with name, hash and size', async () => {
    const { status, lines } = await add('?progress=false', [
      { name: 'file', fileName: 'a%20b.txt', type: 'application/octet-stream', body: 'hello world\n' },
      { name: 'other', body: 'text' },
    ])
    assert.equal(status, 200)
    assert.deepEqual(lines[0], {
      Name: 'a b.txt',
      Hash: 'bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4',
      Size: '12',
    })
    assert.equal(lines[1]?.['Name'], lines[1]?.['Hash'])
  })

  it('options select the profile', async () => {
    const { lines } = await add('?cid-version=0', [{ fileName: 'a', body: 'hello world\n' }])
    assert.deepEqual(lines, [{ Name: 'a', Hash: 'QmT78zSuBmuS4z925WZfrqQ1qHaJ56DQaTfyMUF7F8ff5o', Size: '20' }])
    const empty = await add('?cid-version=1&raw-leaves=true', [{ fileName: 'a', body: '' }])
    assert.equal(empty.lines[0]?.['Hash'], 'bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku')
  })

  const refused = [
    ...[
      'wrap-with-directory=maybe',
      'w=maybe',
      'max-directory-links=10',
      'max-hamt-fanout=1024',
      'trickle=1',
      't=TRUE',
      'inline=true',
      'nocopy=true',
    ],
    ...[
      'chunker=rabin',
      'chunker=buzhash',
      'chunker=size-',
      'chunker=size-2096897',
      's=size-16383',
      'hash=sha3-256',
      'cid-version=2',
      'cid-version=',
      'max-file-links=1',
      'max-file-links=8193',
      'max-file-links=many',
      'raw-leaves=maybe',
    ],
    ...['mode=0644', 'mtime=1', 'mtime-nsecs=5', 'preserve-mode=true', 'preserve-mtime', 'to-files=/a'],
    ...['trickle=no', 'n=true&only-hash=false', 'encoding=text', 'cid-base=base58btc'],
  ]
  for (const query of refused) {
    it(`${query}: another CID, or unsupported → refused`, async () => {
      const { status, lines } = await add(`?${query}`, [{ fileName: 'a', body: 'x' }])
      assert.equal(status, 400)
      assert.equal(lines[0]?.['Type'], 'error')
      assert.equal(lines[0]?.['Code'], 1)
      const name = { w: 'wrap-with-directory', t: 'trickle', s: 'chunker', n: 'only-hash' }[query.split('=')[0] ?? '']
      assert.ok(lines[0]?.['Message']?.includes(name ?? (query.split('=')[0] as string)), lines[0]?.['Message'])
    })
  }

  it('directory, wrapped or as sent → one line per directory', async () => {
    const rows = directoryRows.filter((row) => row.files().length < 100 && row.what !== 'sixty-four levels')
    for (const { what, files, cids } of rows) {
      const parts = [...partsOf(files())].map((part) => ({
        ...part,
        fileName: encodeURIComponent(part.fileName ?? ''),
      }))
      const wrapped = await add('?w=true', parts)
      assert.equal(wrapped.status, 200, JSON.stringify(wrapped.lines))
      assert.deepEqual([wrapped.lines.at(-1)?.['Name'], wrapped.lines.at(-1)?.['Hash']], ['', cids[profiles[0]]], what)
      const below = parts.map((part) => ({ ...part, name: 'any', fileName: `dir%2F${part.fileName}` }))
      const bare = await add('?recursive=true&only-hash=true', below)
      assert.deepEqual([bare.lines.at(-1)?.['Name'], bare.lines.at(-1)?.['Hash']], ['dir', cids[profiles[0]]], what)
      assert.equal(bare.lines.at(-1)?.['Size'], wrapped.lines.at(-1)?.['Size'])
    }
  })

  it('several directories without wrap, or paths upwards → refused', async () => {
    const several = [
      { fileName: 'a%2Fb', body: 'x' },
      { fileName: 'c%2Fd', body: 'x' },
    ]
    for (const [query, parts] of [
      ['?r=true', several],
      ['?w=true', [{ fileName: 'a%2F..%2F..%2Fb', body: 'x' }]],
      ['?w=true', [{ fileName: 'a', type: 'application/symlink', body: 'b' }]],
      ['?w=true', [{ body: 'x' }]],
    ] as const) {
      const { status, lines } = await add(query, parts)
      assert.equal(status, 400)
      assert.equal(lines[0]?.['Type'], 'error')
    }
  })

  // Whatever the operator's own profile is: what is said of the shape, and what is not, is as Kubo has it.
  for (const profile of profiles)
    it(`add options under ${profile} → Kubo's CID and size`, async () => {
      const own = await startKuboDoor(undefined, { profile })
      try {
        for (const [query, bytes, cid, dagBytes] of kuboShapes) {
          const body = multipart([{ fileName: 'a', body: Buffer.concat([...made(bytes)]) }])
          const { status, body: text } = await post(`${own.url}/api/v0/add?only-hash=true&${query}`, body)
          assert.equal(status, 200, text)
          assert.deepEqual(
            JSON.parse(text),
            { Name: 'a', Hash: cid, Size: String(dagBytes) },
            `${query}, ${bytes} bytes`,
          )
        }
      } finally {
        await own.close()
      }
    })

  it('no options → the configured profile', async () => {
    for (const [profile, cid] of [
      ['unixfs-v1-2025', 'bafybeie5gxktemz66e3qddwad3yo4hdt5mvvl2w45rfkkc2utp6peqhvf4'],
      ['unixfs-v0-2015', 'QmVDGew4naBVGudJYqXePPaaHhHTWgs53LYfCu2GdF5rR8'],
    ] as const) {
      const own = await startKuboDoor(undefined, { profile })
      try {
        const body = multipart([{ fileName: 'a', body: Buffer.concat([...made(1_048_577)]) }])
        const { json } = await post(`${own.url}/api/v0/add?only-hash=true&pin=true&hash=sha2-256&chunker=`, body)
        assert.equal(json['Hash'], cid)
      } finally {
        await own.close()
      }
    }
  })

  it('custom layout → stored under its CID, readable', async () => {
    const bytes = randomBytes(600_000)
    for (const query of ['raw-leaves=true', 'cid-version=1&raw-leaves=false&chunker=size-65536&max-file-links=3']) {
      const { status, lines } = await add(`?${query}`, [{ fileName: 'a', body: bytes }])
      assert.equal(status, 200)
      const cid = lines[0]?.['Hash'] as string
      assert.equal(Buffer.compare(Buffer.from(await (await call(`cat?arg=${cid}`)).arrayBuffer()), bytes), 0)
      await idle(door.adding)
      const { Keys } = (await (await call(`pin/ls?arg=${cid}`)).json()) as { Keys: object }
      assert.deepEqual(Object.keys(Keys), [cid])
      const { Keys: all } = (await (await call('pin/ls')).json()) as { Keys: object }
      assert.ok(Object.hasOwn(all, cid), `${cid} is not among ${Object.keys(all).join(', ')}`)
    }
  })

  it('options that change nothing → accepted', async () => {
    // What Kubo's own client in Go sends, that in JavaScript, and names that Kubo does not know.
    const go =
      'cid-version=0&chunker=size-262144&hash=sha2-256&fscache=false&inline=false&inline-limit=32&nocopy=false&only-hash=false&pin=true&progress=true&silent=false&encoding=json&stream-channels=true'
    const one = await add(`?${go}`, [{ fileName: 'a', body: 'hello world\n' }])
    assert.equal(one.lines[0]?.['Hash'], 'QmT78zSuBmuS4z925WZfrqQ1qHaJ56DQaTfyMUF7F8ff5o')
    const rest =
      'pin=false&trickle=0&w=F&ignore=a&ignore=b&hash=SHA2-256&chunker=&timeout=1s&offline=true&quieter&Q&r=true&headers=x&foo=bar&mode='
    const other = await add(`?${rest}`, [{ name: 'file?mode=0644&mtime=1', fileName: './%2Fa', body: 'hello world\n' }])
    assert.deepEqual(other.lines, [
      { Name: 'a', Hash: 'bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4', Size: '12' },
    ])
    const upgraded = await add('?cid-version=0&cid-base=base32', [{ fileName: 'a', body: 'hello world\n' }])
    assert.equal(
      upgraded.lines[0]?.['Hash'],
      CID.parse(one.lines[0]?.['Hash'] as string)
        .toV1()
        .toString(),
    )
    assert.deepEqual(await add('?silent=true', [{ fileName: 'a', body: 'x' }]), { status: 200, lines: [] })
  })

  it('only-hash → CID, nothing stored', async () => {
    const { status, lines } = await add('?n=true', [{ fileName: 'a', body: 'of this nothing is kept' }])
    assert.equal(status, 200)
    const cid = CID.parse(lines[0]?.['Hash'] as string)
    assert.equal(await door.adding.embedded.store.has(cid), false)
    await idle(door.adding)
    assert.equal((await call(`pin/ls?arg=${cid}`)).status, 500)
  })

  const noFiles: readonly (readonly [what: string, part: Part])[] = [
    ['a directory', { fileName: 'a', type: 'application/x-directory', body: '' }],
    ['a symbolic link', { fileName: 'a', type: 'application/symlink', body: 'target' }],
    ['a file in a directory', { fileName: 'a%2Fb.txt', body: 'x' }],
  ]
  for (const [what, part] of noFiles)
    it(`${what}: not a plain file → refused`, async () => {
      const { status, lines } = await add('', [{ fileName: 'first', body: 'x' }, part])
      assert.equal(status, 400)
      assert.equal(lines[0]?.['Type'], 'error')
    })

  it('cat with path, offset, length; block/get; dag/export', async () => {
    const bytes = randomBytes(3_000_000)
    const { lines } = await add('', [{ fileName: 'a', body: bytes }])
    const cid = lines[0]?.['Hash'] as string
    for (const arg of [cid, `/ipfs/${cid}`, `ipfs://${cid}`])
      assert.equal(
        Buffer.compare(Buffer.from(await (await call(`cat?arg=${encodeURIComponent(arg)}`)).arrayBuffer()), bytes),
        0,
      )
    const part = Buffer.from(await (await call(`cat?arg=${cid}&offset=1048570&length=20`)).arrayBuffer())
    assert.equal(Buffer.compare(part, bytes.subarray(1048570, 1048590)), 0)
    const car = new Uint8Array(await (await call(`dag/export?arg=${cid}`)).arrayBuffer())
    const reader = await CarReader.fromBytes(car)
    assert.equal(String((await reader.getRoots())[0]), cid)
    const block = new Uint8Array(await (await call(`block/get?arg=${cid}`)).arrayBuffer())
    assert.deepEqual(block, (await reader.get(CID.parse(cid) as never))?.bytes)
  })

  it('pin/add: DAG of any codec → complete or not at all', async () => {
    const leaf = encode({ a: 1 })
    const leafCid = CID.createV1(0x71, await sha256.digest(leaf))
    const root = encode({ leaf: leafCid })
    const rootCid = CID.createV1(0x71, await sha256.digest(root))
    const never = new AbortController().signal
    await door.retrieval.store(rootCid, root, never)
    const missing = await call(`pin/add?arg=${rootCid}`)
    assert.equal(missing.status, 500)
    await door.retrieval.store(leafCid, leaf, never)
    const pinned = await call(`pin/add?arg=${rootCid}`)
    assert.deepEqual(await pinned.json(), { Pins: [rootCid.toString()] })
    assert.ok(await door.adding.embedded.store.has(leafCid))
    await idle(door.adding)
    assert.deepEqual(await (await call(`pin/ls?arg=${rootCid}`)).json(), {
      Keys: { [rootCid.toString()]: { Type: 'recursive', Name: '' } },
    })
    const lines = (await (await call('pin/ls?stream=true')).text()).split('\n').filter(Boolean)
    assert.ok(lines.some((line) => JSON.parse(line).Cid === rootCid.toString()))
    const { Keys } = (await (await call('pin/ls')).json()) as { Keys: object }
    assert.equal(Object.keys(Keys).length, lines.length)
  })

  const errors: readonly (readonly [
    path: string,
    status: number,
    method?: string,
    headers?: Record<string, string>,
  ])[] = [
    ['version', 405, 'GET'],
    ['version', 403, 'POST', { Origin: 'https://a.example' }],
    ['id', 404],
    ['cat', 400],
    ['cat?arg=nonsense', 400],
    ['cat?arg=bafkqaaa&offset=0x1', 400],
    ['cat?arg=bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy', 500],
    ['pin/ls?arg=bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy', 500],
    ['add', 400],
  ]
  for (const [path, status, method = 'POST', headers = {}] of errors)
    it(`${method} ${path} → ${status}`, async () => {
      const response = await fetch(`${door.url}/api/v0/${path}`, { method, headers })
      assert.equal(response.status, status)
      assert.equal(response.headers.get('allow'), status === 405 ? 'POST' : null)
    })

  it("stalled upload → 408 in Kubo's format", async () => {
    const own = await startKuboDoor(undefined, { limits: { maxBytes: 1000, idleMs: 50, minRate: 0, graceMs: 1000 } })
    try {
      const body = multipart([{ fileName: 'a', body: 'x'.repeat(500) }])
      const said = await raw(Number(new URL(own.url).port), (socket) => {
        socket.write(
          `POST /api/v0/add HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=${boundary}\r\nContent-Length: ${body.length}\r\n\r\n`,
        )
        socket.write(body.subarray(0, 300))
      })
      assert.match(said, /^HTTP\/1\.1 408 /)
      assert.match(said, /\r\nContent-Type: application\/json\r\n/)
      const { Message, ...rest } = JSON.parse(said.slice(said.indexOf('\r\n\r\n'))) as Record<string, unknown>
      assert.match(String(Message), /no data for 50 ms/)
      assert.deepEqual(rest, { Code: 0, Type: 'error' })
    } finally {
      await own.close()
    }
  })

  it("full disk → 507 in Kubo's format", async () => {
    const full = scriptedProvider('disk', 'quota', { local: true })
    const own = await startKuboDoor(undefined, { withoutEmbedded: true, others: [full] })
    try {
      const { status, headers, json } = await post(
        `${own.url}/api/v0/add`,
        multipart([{ fileName: 'a', body: 'there is no room for this' }]),
      )
      assert.deepEqual([status, headers['content-type']], [507, 'application/json'])
      const { Message, ...rest } = json
      assert.match(String(Message), /disk: quota/)
      assert.deepEqual(rest, { Code: 0, Type: 'error' })
    } finally {
      await own.close()
    }
  })

  it("version → that of Kubo's API", async () => {
    assert.equal(((await (await call('version')).json()) as { Version: string }).Version, '0.0.0')
  })

  it('text part of any charset → bytes; nested multipart → refused', async () => {
    const latin = { name: 'note', type: 'text/plain; charset=ISO-8859-1', body: Buffer.from('r\xe4k', 'latin1') }
    const { status, lines } = await add('', [latin])
    assert.deepEqual([status, lines[0]?.['Size']], [200, '3'])
    const nested = { name: 'note', type: 'multipart/form-data; boundary=inner', body: 'x' }
    assert.equal((await add('', [nested])).status, 400)
    assert.equal((await add('', [{ name: 'a', type: 'text/plain\r\nContent-Type: a/b', body: 'x' }])).status, 400)
  })

  it('HTTP/1.0 client → no Continue', async () => {
    const body = multipart([{ fileName: 'a', body: 'x' }]).toString()
    const ask = (version: string) =>
      raw(Number(new URL(door.url).port), (socket) =>
        socket.write(
          `POST /api/v0/add HTTP/${version}\r\nHost: a\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Type: multipart/form-data; boundary=${boundary}\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
        ),
      )
    assert.match(await ask('1.0'), /^HTTP\/1.1 200 /)
    assert.match(await ask('1.1'), /^HTTP\/1.1 100 /)
  })

  it('tokens configured → required, as Bearer or HTTP Basic', async () => {
    const guarded = await startKuboDoor(['one', 'project:two'])
    const basic = (pair: string) => ({ Authorization: `Basic ${Buffer.from(pair).toString('base64')}` })
    try {
      const ask = (headers: Record<string, string>) =>
        fetch(`${guarded.url}/api/v0/version`, { method: 'POST', headers })
      assert.equal((await ask({})).status, 403)
      assert.equal((await ask({ Authorization: 'Bearer one' })).status, 200)
      for (const pair of ['any:one', ':one', 'project:two']) assert.equal((await ask(basic(pair))).status, 200, pair)
      for (const pair of ['one:', 'any:two', 'any:one ', '']) assert.equal((await ask(basic(pair))).status, 403, pair)
    } finally {
      await guarded.close()
    }
  })
})
