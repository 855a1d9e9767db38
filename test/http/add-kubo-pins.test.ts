// `pin/add` and `pin/ls` of Kubo's door: DAGs that somebody else made, with the limits of uploads, to providers of any kind.
import assert from 'node:assert/strict'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, it } from 'node:test'
import * as dagPb from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import { CID } from 'multiformats/cid'
import { sha256 } from 'multiformats/hashes/sha2'
import { providerKinds } from '../../backends/pinning/index.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { processFolders } from '../../src/data-folder/process.ts'
import { type AddingOptions, below, idle, startAdding } from '../support/adding.ts'
import { addBlock, addCbor, addDirectory, addFile, addNode, type BlockMap, noise, text } from '../support/fixtures.ts'
import { type KuboDoor, startKuboDoor } from '../support/kubo-door.ts'
import { filebaseApi, startStandIn, token } from '../support/providers.ts'

async function withDoor(options: AddingOptions, work: (door: KuboDoor) => Promise<void>): Promise<void> {
  const door = await startKuboDoor(undefined, options)
  try {
    await work(door)
  } finally {
    await door.close()
  }
}

async function pin(door: KuboDoor, blocks: BlockMap, root: CID): Promise<{ status: number; text: string }> {
  for (const bytes of blocks.values()) {
    const cid = CID.createV1(0x55, await sha256.digest(bytes))
    await door.retrieval.store(cid, bytes, new AbortController().signal)
  }
  const answer = await call(door, `pin/add?arg=${root}`)
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

describe("pins of kubo's door", () => {
  it('has the limit of an upload, for what is stored and for what it stands for', () =>
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

  it('goes as a file to a provider that takes files; what is no file is refused', async () => {
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
        const why = door.adding.log.filter(({ event }) => event === 'upload.provider').map(({ facts }) => facts)
        assert.equal(why.length, 3)
        for (const one of why) assert.match(`${one['class']} ${one['why']}`, /^content .*cannot be sent as a file/)
      })
    } finally {
      await provider.close()
      await there.close()
    }
  })

  it('is told of a bucket that takes files what it cannot be there', async () => {
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

  it('is spelled as it was asked for, under every upload profile', () =>
    withDoor({ profile: 'unixfs-v0-2015' }, async (door) => {
      const blocks: BlockMap = new Map()
      const raw = addBlock(blocks, 0x55, text('a raw block'))
      const old = (await addFile(blocks, noise(300_000), 'v0')).cid
      assert.equal(old.version, 0)
      for (const root of [raw, old]) assert.equal((await pin(door, blocks, root)).status, 200)
      await idle(door.adding)
      assert.equal((await door.adding.uploads.journal.record(raw))?.profile, 'unixfs-v1-2025')
      assert.equal((await door.adding.uploads.journal.record(old))?.profile, 'unixfs-v0-2015')
      // A record of before, when every pin had the profile of uploads.
      const other = addBlock(blocks, 0x55, text('another'))
      const record = await door.adding.uploads.journal.record(raw)
      const shard = join(door.adding.data, 'journal', 'done', other.toString().slice(-2))
      await mkdir(shard, { recursive: true })
      await writeFile(
        join(shard, `${other}.json`),
        JSON.stringify({ ...record, cid: other.toString(), profile: 'unixfs-v0-2015' }),
      )
      const { Keys } = (await (await call(door, 'pin/ls')).json()) as { Keys: object }
      assert.deepEqual(Object.keys(Keys).sort(), [raw, old, other].map(String).sort())
    }))
})
