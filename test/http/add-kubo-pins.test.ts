// What Kubo's door keeps besides files (`pin/add`, `dag/import`, `block/put`), with the limits of uploads, for providers of any
// kind; and `pin/ls` and `pin/rm`.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, afterEach, before, describe, it } from 'node:test'
import * as dagPb from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import { CID } from 'multiformats/cid'
import { sha256 } from 'multiformats/hashes/sha2'
import { providerKinds } from '../../backends/pinning/index.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { processFolders } from '../../src/data-folder/folder.ts'
import { writeCar } from '../../src/ipld/car.ts'
import { type AddingOptions, below, idle, multipart, post, startAdding } from '../support/adding.ts'
import { addBlock, addCbor, addDirectory, addFile, addNode, type BlockMap, noise, text } from '../support/fixtures.ts'
import { type KuboDoor, startKuboDoor } from '../support/kubo-door.ts'
import { filebaseApi, startStandIn, token } from '../support/providers.ts'
import { scriptedProvider } from '../support/scripted-provider.ts'

async function withDoor(options: AddingOptions, work: (door: KuboDoor) => Promise<void>): Promise<void> {
  const door = await startKuboDoor(undefined, options)
  try {
    await work(door)
  } finally {
    await door.close()
  }
}

async function pin(door: KuboDoor, blocks: BlockMap, root: CID, query = ''): Promise<{ status: number; text: string }> {
  for (const bytes of blocks.values()) {
    const cid = CID.createV1(0x55, await sha256.digest(bytes))
    await door.retrieval.store(cid, bytes, new AbortController().signal)
  }
  const answer = await call(door, `pin/add?arg=${root}${query}`)
  return { status: answer.status, text: await answer.text() }
}

const call = (door: KuboDoor, path: string) => fetch(`${door.url}/api/v0/${path}`, { method: 'POST' })

function forwardTo(url: string) {
  const kind = providerKinds['forward']
  if (!kind) throw new Error('there is no forward')
  const context = {
    name: 'there',
    userAgent: 'test',
    data: '',
    folders: processFolders,
    log: silentLog,
    clock: systemClock,
  }
  return kind.create(kind.options.parse({ url: `${url}/add` }), context)
}

describe('Kubo RPC: pins', () => {
  it('pin/add → upload limit applies to stored and declared size', () =>
    withDoor({ maxBytes: 100_000 }, async (door) => {
      const blocks: BlockMap = new Map()
      const large = await addFile(blocks, noise(300_000), 'v0')
      const { status, text: said } = await pin(door, blocks, large.cid)
      assert.equal(status, 413)
      assert.match(said, /100000 bytes/)
      // One block, over and over.
      const repeated: BlockMap = new Map()
      const leaf = addBlock(repeated, 0x55, noise(50_000))
      for (const size of [50_000n, 2n ** 60n]) {
        const data = new UnixFS({ type: 'file', blockSizes: [size, size, size] }).marshal()
        const Links = [1, 2, 3].map(() => ({ Hash: leaf, Tsize: 50_000, Name: '' }))
        const root = addNode(repeated, dagPb.prepare({ Data: data, Links }))
        assert.equal((await pin(door, repeated, root)).status, 413, `${size}`)
        const above = {
          Data: new UnixFS({ type: 'directory' }).marshal(),
          Links: [{ Hash: root, Tsize: 1, Name: 'a' }],
        }
        const folder = addNode(repeated, dagPb.prepare(above))
        assert.equal((await pin(door, repeated, folder)).status, 413, `${size}, in a directory`)
      }
      await idle(door.adding)
      assert.deepEqual(await below(join(door.adding.data, 'pins')), [])
    }))

  it('provider that takes files → gets a file; others refused', async () => {
    const there = await startAdding({ maxBytes: 10_000_000 })
    const provider = forwardTo(there.url)
    try {
      await withDoor({ confirm: 2, others: [provider] }, async (door) => {
        const blocks: BlockMap = new Map()
        const file = await addFile(blocks, noise(3_000_000))
        assert.deepEqual(await pin(door, blocks, file.cid), {
          status: 200,
          text: `${JSON.stringify({ Pins: [file.cid.toString()] })}\n`,
        })
        assert.ok(await there.embedded.store.has(file.cid))
        const directory = await addDirectory(blocks, { a: text('a'), b: text('b') })
        const lying = addNode(
          blocks,
          dagPb.prepare({
            Data: new UnixFS({ type: 'file', blockSizes: [9n] }).marshal(),
            Links: [{ Hash: addBlock(blocks, 0x55, text('four')), Tsize: 4, Name: '' }],
          }),
        )
        for (const root of [directory, addCbor(blocks, { a: 1 }), lying]) {
          const { status, text: said } = await pin(door, blocks, root)
          assert.equal(status, 500)
          assert.match(said, /there: content, .*cannot be sent as a file/)
          assert.equal(await there.embedded.store.has(root), false)
        }
        const why = door.adding.log.filter(({ event }) => event === 'upload.provider-failed').map(({ facts }) => facts)
        assert.equal(why.length, 3)
        for (const one of why) assert.match(`${one['class']} ${one['why']}`, /^content .*cannot be sent as a file/)
      })
    } finally {
      await provider.close()
      await there.close()
    }
  })

  it('provider that takes files, no file → reason in the error', async () => {
    const there = await startStandIn(filebaseApi)
    const kind = providerKinds['filebase']
    const keys = { accessKeyId: token, secretAccessKey: 'b' }
    const context = {
      name: 'there',
      userAgent: 'test',
      data: '',
      folders: processFolders,
      log: silentLog,
      clock: systemClock,
    }
    const provider = kind?.create(
      kind.options.parse({ variant: '4everland', endpoint: there.url, bucket: 'a', ...keys }),
      context,
    )
    try {
      await withDoor({ confirm: 2, others: provider ? [provider] : [] }, async (door) => {
        const blocks: BlockMap = new Map()
        const directory = await addDirectory(blocks, { a: text('a'), b: text('b') })
        const { text: said } = await pin(door, blocks, directory)
        assert.match(said, /there: content, .*cannot be sent as a file/)
      })
    } finally {
      await provider?.close()
      await there.close()
    }
  })

  it('CID spelled as requested, under every upload profile', () =>
    withDoor({ profile: 'unixfs-v0-2015' }, async (door) => {
      const blocks: BlockMap = new Map()
      const raw = addBlock(blocks, 0x55, text('a raw block'))
      const old = (await addFile(blocks, noise(300_000), 'v0')).cid
      assert.equal(old.version, 0)
      for (const root of [raw, old]) assert.equal((await pin(door, blocks, root)).status, 200)
      await idle(door.adding)
      assert.equal((await door.adding.store.ledger.find(raw))?.profile, 'unixfs-v1-2025')
      assert.equal((await door.adding.store.ledger.find(old))?.profile, 'unixfs-v0-2015')
      const { Keys } = (await (await call(door, 'pin/ls')).json()) as { Keys: object }
      assert.deepEqual(Object.keys(Keys).sort(), [raw, old].map(String).sort())
    }))
})

describe('Kubo RPC: pin names', () => {
  it('pin-name and name → listed and searched', () =>
    withDoor({}, async (door) => {
      const blocks: BlockMap = new Map()
      const raw = addBlock(blocks, 0x55, text('a raw block'))
      assert.equal((await pin(door, blocks, raw, '&name=from%20pin%20add')).status, 200)
      const { status } = await post(
        `${door.url}/api/v0/add?pin-name=from%20add`,
        multipart([{ fileName: 'a', body: 'x' }]),
      )
      assert.equal(status, 200)
      await idle(door.adding)
      const names = async (query: string): Promise<string[]> => {
        const { Keys } = (await (await call(door, `pin/ls${query}`)).json()) as {
          Keys: Record<string, { Name: string }>
        }
        return Object.values(Keys).map(({ Name }) => Name)
      }
      assert.deepEqual((await names('?names=true')).sort(), ['from add', 'from pin add'])
      assert.deepEqual(await names('?name=pin'), ['from pin add'])
      assert.deepEqual(await names(''), ['', ''])
    }))
})

describe('Kubo RPC: dag/import and block/put', () => {
  const one = (what: readonly Uint8Array[]) =>
    multipart(what.map((body, index) => ({ fileName: `${index}`, name: 'x', body })))
  const send = (door: KuboDoor, path: string, ...parts: Uint8Array[]) => post(`${door.url}/api/v0/${path}`, one(parts))
  const lines = (body: string): unknown[] =>
    body
      .split('\n')
      .filter(Boolean)
      .map((line) => JSON.parse(line))
  const kept = async (door: KuboDoor): Promise<string[]> => {
    await idle(door.adding)
    const { Keys } = (await (await call(door, 'pin/ls')).json()) as { Keys: object }
    return Object.keys(Keys).sort()
  }

  async function car(root: CID, blocks: BlockMap, isLeftOut = (_bytes: Uint8Array) => false): Promise<Buffer> {
    const pieces: Uint8Array[] = []
    async function* all() {
      for (const bytes of blocks.values())
        if (!isLeftOut(bytes)) yield { cid: CID.createV1(0x55, await sha256.digest(bytes)), bytes }
    }
    for await (const piece of writeCar(root, all())) pieces.push(piece)
    return Buffer.concat(pieces)
  }

  it('CARs → each root once, with statistics', () =>
    withDoor({}, async (door) => {
      const blocks: BlockMap = new Map()
      const file = await addFile(blocks, noise(600_000), 'v0')
      const directory = await addDirectory(blocks, { a: text('a'), b: text('b') })
      const cars = [await car(file.cid, blocks), await car(directory, blocks), await car(file.cid, blocks)]
      const { status, body, headers } = await send(door, 'dag/import?stats=true&fast-provide-root=true', ...cars)
      assert.equal(status, 200, body)
      assert.equal(headers['x-chunked-output'], '1')
      const root = (cid: CID) => ({ Root: { Cid: { '/': String(cid) }, PinErrorMsg: '' } })
      const bytes = [...blocks.values()].reduce((sum, { byteLength }) => sum + byteLength, 0)
      assert.deepEqual(lines(body), [
        root(file.cid),
        root(directory),
        { Stats: { BlockCount: 3 * blocks.size, BlockBytesCount: 3 * bytes } },
      ])
      assert.deepEqual(await kept(door), [String(file.cid), String(directory)].sort())
      const silent = await send(door, 'dag/import?pin-roots=false', cars[0] as Buffer)
      assert.deepEqual([silent.status, silent.body], [200, ''])
      const upgraded = await send(door, 'dag/import?cid-base=base32', cars[0] as Buffer)
      assert.deepEqual(lines(upgraded.body), [root(file.cid.toV1())])
    }))

  it('one CAR truncated, false, incomplete or unsupported → none stored', () =>
    withDoor({ maxBytes: 1_000_000 }, async (door) => {
      const blocks: BlockMap = new Map()
      const file = await addFile(blocks, noise(600_000), 'v0')
      const other: BlockMap = new Map()
      const good = await car((await addFile(other, text('good'))).cid, other)
      const whole = await car(file.cid, blocks)
      const false_ = Buffer.from(whole)
      false_[false_.length - 1] = (false_[false_.length - 1] as number) ^ 1
      for (const [query, bad, code, says] of [
        ['', whole.subarray(0, 400_000), 400, /ends in the middle/],
        ['', false_, 400, /do not hash/],
        [
          '',
          await car(file.cid, blocks, ({ byteLength }) => byteLength < 80_000 && byteLength > 70_000),
          400,
          /it lacks Qm/,
        ],
        ['', Buffer.alloc(0), 400, /is empty/],
        ['', Buffer.concat([whole, whole]), 413, /upload.maxBytes/],
        ['?local-only=true', whole, 400, /local-only=true is not supported/],
        ['?allow-big-block', whole, 400, /allow-big-block=true is not supported/],
        ['?cid-base=base36', whole, 400, /cid-base=base36 is not supported/],
      ] as const) {
        const { status, json } = await send(door, `dag/import${query}`, good, bad)
        assert.equal(status, code, `${query} ${says}: ${JSON.stringify(json)}`)
        assert.match(String(json['Message']), says)
        assert.equal(json['Type'], 'error')
      }
      assert.deepEqual(await kept(door), [])
      assert.deepEqual(await below(join(door.adding.data, 'pins')), [])
    }))

  it('blocks → CIDs as the options define', () =>
    withDoor({}, async (door) => {
      const bytes = text('text\n')
      for (const [query, key] of [
        ['', 'bafkreifz42hbx2r6lmm4u2zptc3tuvfxhwvpvisqjbeqfyezqlqhuexhgm'],
        [
          '?cid-codec=raw&mhtype=sha2-256&mhlen=32&pin=true',
          'bafkreifz42hbx2r6lmm4u2zptc3tuvfxhwvpvisqjbeqfyezqlqhuexhgm',
        ],
        ['?mhtype=blake3', 'bafkr4iccc45k7fi3cdnxelgebq542vonws424febcsu6cfolotiy465yym'],
        [
          '?mhtype=sha2-512&mhlen=-1',
          'bafkrgqafftzkljqiz2ig2cgq2woyluz3juzez4hrjark55zh44ao3wo4z7townqt4drs6bd6l43m7ufgoy2deust23dcn23nh47xjmup4oid2',
        ],
      ] as const) {
        const { status, body } = await send(door, `block/put${query}`, bytes)
        assert.equal(status, 200, body)
        assert.deepEqual(lines(body), [{ Key: key, Size: 5 }])
        assert.deepEqual(await (await call(door, `block/get?arg=${key}`)).text(), 'text\n')
      }
      const two = await send(door, 'block/put', text('one'), new Uint8Array())
      assert.deepEqual(
        (lines(two.body) as { Size: number }[]).map(({ Size }) => Size),
        [3, 0],
      )
      assert.equal((await kept(door)).length, 5)
    }))

  it('CAR truncated, false, incomplete or unsupported → nothing stored', () =>
    withDoor({}, async (door) => {
      const blocks: BlockMap = new Map()
      const file = await addFile(blocks, noise(600_000), 'v0')
      const [root, ...leaves] = [...blocks.values()].sort((one, other) => one.byteLength - other.byteLength)
      assert.ok(root)
      const alone = await send(door, 'block/put?format=v0', root)
      assert.equal(alone.status, 500)
      assert.match(alone.body, /is stored with everything it links to/)
      for (const leaf of leaves) assert.equal((await send(door, 'block/put?cid-codec=dag-pb', leaf)).status, 200)
      const { status, body } = await send(door, 'block/put?format=v0', root)
      assert.equal(status, 200, body)
      assert.deepEqual(lines(body), [{ Key: String(file.cid), Size: root.byteLength }])
      assert.ok((await kept(door)).includes(String(file.cid)))
      assert.deepEqual(
        Buffer.from(await (await call(door, `cat?arg=${file.cid}`)).arrayBuffer()),
        Buffer.from(file.bytes),
      )
    }))

  describe('refused, nothing stored', () => {
    let door: KuboDoor
    before(async () => {
      door = await startKuboDoor()
    })
    after(() => door.close())
    afterEach(async () => {
      assert.deepEqual(await kept(door), [])
    })

    for (const [query, says] of [
      ['allow-big-block=true', /allow-big-block=true/],
      ['mhtype=md5', /mhtype=md5/],
      ['mhtype=identity', /mhtype=identity/],
      ['mhlen=20', /mhlen=20/],
      ['cid-codec=git-raw', /cid-codec=git-raw/],
      ['cid-codec=constructor', /cid-codec=constructor/],
      ['format=v1', /format=v1/],
      ['f=v0&mhtype=blake3', /format=v0/],
      ['cid-codec=dag-pb', /malformed/],
      ['format=cbor', /malformed/],
    ] as const)
      it(query, async () => {
        const { status, json } = await send(door, `block/put?${query}`, text('one'), text('text\n'))
        assert.equal(status, 400)
        assert.match(String(json['Message']), says)
      })

    for (const [path, type] of [
      ['block/put', 'application/symlink'],
      ['block/put', 'application/x-directory'],
      ['dag/import', 'application/symlink'],
    ] as const)
      it(`${path} of ${type}`, async () => {
        const { status, body } = await post(
          `${door.url}/api/v0/${path}`,
          multipart([{ fileName: 'a', type, body: 'b' }]),
        )
        assert.equal(status, 400)
        assert.match(body, /only files are taken here/)
      })

    it('block above 2 MiB', async () => {
      const { status, body } = await send(door, 'block/put', text('one'), noise(2 * 1024 * 1024 + 1))
      assert.equal(status, 400)
      assert.match(body, /larger than the 2097152 bytes/)
    })
  })
})

describe('Kubo RPC: pin/rm', () => {
  const tokens = [{ name: 'team', token: 'team' }, { name: 'owner', token: 'owner', mayDelete: true }, 'plain']
  const remove = async (door: KuboDoor, query: string, token?: string) => {
    const headers: Record<string, string> = token === undefined ? {} : { Authorization: `Bearer ${token}` }
    const answer = await fetch(`${door.url}/api/v0/pin/rm?${query}`, { method: 'POST', headers })
    return { status: answer.status, text: await answer.text() }
  }
  const put = async (door: KuboDoor, body: string): Promise<CID> => {
    const cid = CID.createV1(0x55, await sha256.digest(text(body)))
    const { status } = await post(`${door.url}/api/v0/block/put`, multipart([{ fileName: 'a', body }]), {
      Authorization: 'Bearer team',
    })
    assert.equal(status, 200)
    return cid
  }

  it('only a token that may delete can delete', async () => {
    const door = await startKuboDoor(tokens)
    try {
      const [one, two] = [await put(door, 'one'), await put(door, 'two')]
      await idle(door.adding)
      for (const token of [undefined, 'team', 'plain', 'wrong']) {
        const { status, text: said } = await remove(door, `arg=${one}`, token)
        assert.equal(status, 403, token)
        assert.match(said, /^403 - Forbidden/)
      }
      assert.match((await remove(door, `arg=${one}`, 'team')).text, /mayDelete/)
      assert.ok(await door.adding.embedded.store.has(one))
      assert.deepEqual(await remove(door, `arg=${one}&arg=/ipfs/${two}`, 'owner'), {
        status: 200,
        text: `${JSON.stringify({ Pins: [String(one), String(two)] })}\n`,
      })
      assert.equal(await door.adding.embedded.store.has(one), false)
      assert.equal(await door.adding.uploads.pins.find(two), undefined)
      assert.deepEqual(
        door.log,
        [one, two].map((cid) => ({ event: 'pin.removed', facts: { cid: String(cid), isGone: true, token: 'owner' } })),
      )
    } finally {
      await door.close()
    }
  })

  it('one CID not pinned, or bad option → none deleted', async () => {
    const door = await startKuboDoor(tokens)
    try {
      const one = await put(door, 'one')
      await idle(door.adding)
      const other = CID.createV1(0x55, await sha256.digest(text('other')))
      for (const [query, code, says] of [
        [`arg=${one}&arg=${other}`, 500, /not pinned or pinned indirectly/],
        [`arg=${one}&recursive=false`, 400, /recursive=false is not supported/],
        [`arg=${one}&r=0`, 400, /recursive=false is not supported/],
        ['', 400, /is required/],
        ['arg=nonsense', 400, /not a CID/],
      ] as const) {
        const { status, text: said } = await remove(door, query, 'owner')
        assert.deepEqual([status, says.test(said)], [code, true], said)
      }
      assert.ok(await door.adding.embedded.store.has(one))
    } finally {
      await door.close()
    }
  })

  it('uploads need no token → nothing deleted', () =>
    withDoor({}, async (door) => {
      const one = await put(door, 'one')
      await idle(door.adding)
      assert.equal((await remove(door, `arg=${one}`)).status, 403)
      assert.equal((await remove(door, `arg=${one}`, 'owner')).status, 403)
      assert.ok(await door.adding.embedded.store.has(one))
    }))

  it('a provider still holds it → named in the error', async () => {
    const there = scriptedProvider('there')
    const door = await startKuboDoor(tokens, { others: [{ ...there, status: async () => 'pinned' }] })
    try {
      const one = await put(door, 'one')
      await idle(door.adding)
      const { status, text: said } = await remove(door, `arg=${one}`, 'owner')
      assert.equal(status, 500)
      assert.match(said, /not gone from every provider.*local: removed.*there: still-pinned/)
      assert.deepEqual(door.log, [{ event: 'pin.removed', facts: { cid: String(one), isGone: false, token: 'owner' } }])
    } finally {
      await door.close()
    }
  })
})
