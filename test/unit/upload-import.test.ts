// Bytes to blocks: the same CIDs as the ecosystem's own importer has, at every size where something changes, and the same
// bytes back through a reader that is not ours.
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, it } from 'node:test'
import { CarReader } from '@ipld/car'
import { exporter } from 'ipfs-unixfs-exporter'
import { importBytes } from 'ipfs-unixfs-importer'
import { fixedSize } from 'ipfs-unixfs-importer/chunker'
import { balanced } from 'ipfs-unixfs-importer/layout'
import { CID } from 'multiformats/cid'
import { profiles, shapes, type Upload } from '../../backends/pinning/contract.ts'
import { blockKey, proves } from '../../src/core/cid.ts'
import { systemClock } from '../../src/core/clock.ts'
import { silentLog } from '../../src/core/log.ts'
import { processFolders } from '../../src/data-folder/folder.ts'
import { type Joined, joinStore } from '../../src/store/open.ts'
import { importFile } from '../../src/upload/import.ts'
import { storedUpload } from '../../src/upload/stored-upload.ts'
import { rot } from '../support/kept.ts'

const never = new AbortController().signal
const MiB = 1024 * 1024

async function* pieces(bytes: Uint8Array, size = 60_000): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.byteLength; at += size) yield bytes.subarray(at, at + size)
}

async function whole(source: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const all: Uint8Array[] = []
  for await (const piece of source) all.push(piece)
  return Buffer.concat(all)
}

const sha = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex')

describe('leaves', () => {
  it('equal size for any input pieces', async () => {
    const bytes = randomBytes(1000)
    for (const size of [1, 7, 64, 999, 1000, 1001]) {
      for (const piece of [1, 13, 64, 1000]) {
        const got: Buffer[] = []
        const put = (cid: CID, block: Uint8Array) => void (cid.code === 0x55 && got.push(Buffer.from(block)))
        await importFile(pieces(bytes, piece), { ...shapes['unixfs-v1-2025'], chunkBytes: size }, put)
        assert.ok(got.slice(0, -1).every(({ byteLength }) => byteLength === size))
        assert.equal(Buffer.concat(got).compare(bytes), 0)
      }
    }
  })
})

describe('imported upload', () => {
  let folder: string
  let joined: Joined
  const open = () => joinStore(processFolders.enter(folder), { clock: systemClock, log: silentLog })
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'cidgate-import-'))
    joined = open()
    await joined.store.ready
  })
  after(async () => {
    await joined.leave()
    await rm(folder, { recursive: true, force: true })
  })

  /** Accepted, so that it is read from the store. */
  async function upload(bytes: Uint8Array, profile: (typeof profiles)[number]): Promise<Upload> {
    const { store } = joined
    const intake = store.begin()
    const dag = intake.dag()
    const { cid: root } = await importFile(pieces(bytes), shapes[profile], dag.put)
    const staged = dag.finish(root, profile, bytes.byteLength)
    await store.accept([{ staged, at: 0, holders: { here: { kind: 'here', state: 'pinned', tries: 1 } } }])
    await intake.drop()
    return storedUpload(staged, [store.blocks])
  }

  const chunk = { 'unixfs-v1-2025': MiB, 'unixfs-v0-2015': MiB / 4 }
  for (const profile of profiles) {
    const size = chunk[profile]
    const sizes = [
      1,
      1000,
      size - 1,
      size,
      size + 1,
      3 * size,
      ...(profile === 'unixfs-v0-2015' ? [174 * size + 1] : []),
    ]
    for (const length of sizes) {
      it(`${profile}: ${length} bytes → reference CID, readable`, async () => {
        const bytes = randomBytes(length)
        const stock = await importBytes(bytes, { put: async (cid: CID) => cid }, { profile })
        const made = await upload(bytes, profile)
        assert.equal(made.cid.toString(), stock.cid.toString())
        assert.equal(sha(await whole(made.file(never))), sha(bytes))

        const car = await whole(made.car(never))
        assert.equal(car.byteLength, made.carBytes)
        const reader = await CarReader.fromBytes(car)
        assert.deepEqual((await reader.getRoots()).map(String), [made.cid.toString()])
        const seen = new Set<string>()
        let first: CID | undefined
        for await (const { cid, bytes: block } of reader.blocks()) {
          first ??= cid as CID
          assert.ok(proves(cid as CID, block))
          assert.ok(!seen.has(cid.toString()), 'each block once')
          seen.add(cid.toString())
        }
        assert.equal(String(first), made.cid.toString(), 'the root comes first')
        const blockstore = {
          async *get(cid: CID) {
            yield (await reader.get(cid))?.bytes as Uint8Array
          },
        }
        const entry = await exporter(made.cid, blockstore as never)
        assert.ok(entry.type === 'file' || entry.type === 'raw')
        assert.equal(sha(await whole(entry.content())), sha(bytes))
      })
    }
  }

  it('any depth → reference CID', async () => {
    const shape = { ...shapes['unixfs-v0-2015'], chunkBytes: 10, width: 2 }
    const stock = { cidVersion: 0, rawLeaves: false, chunker: fixedSize({ chunkSize: 10 }) } as const
    for (let leaves = 1; leaves < 20; leaves++) {
      const bytes = randomBytes(leaves * 10 - 3)
      const layout = balanced({ maxChildrenPerNode: 2 })
      const { cid } = await importBytes(bytes, { put: async (one: CID) => one }, { ...stock, layout })
      assert.equal(String((await importFile(pieces(bytes), shape, () => {})).cid), String(cid), `${leaves} leaves`)
    }
  })

  it('CIDs recorded from Kubo → equal', async () => {
    const known: readonly (readonly [(typeof profiles)[number], string, string])[] = [
      ['unixfs-v1-2025', 'hello world\n', 'bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4'],
      ['unixfs-v0-2015', 'hello world\n', 'QmT78zSuBmuS4z925WZfrqQ1qHaJ56DQaTfyMUF7F8ff5o'],
      ['unixfs-v0-2015', 'hello world', 'Qmf412jQZiuVUtdgnB36FXFX7xg5V6KEbSJ4dpQuhkLyfD'],
    ]
    for (const [profile, text, cid] of known) {
      assert.equal((await upload(Buffer.from(text), profile)).cid.toString(), cid)
    }
  })

  it('repeated bytes → written and sent once', async () => {
    const bytes = Buffer.alloc(5 * MiB)
    const made = await upload(bytes, 'unixfs-v1-2025')
    assert.equal(made.cids?.length, 2)
    assert.equal((await whole(made.car(never))).byteLength, made.carBytes)
    assert.equal(sha(await whole(made.file(never))), sha(bytes))
  })

  it('readable after restart', async () => {
    const bytes = randomBytes(3 * MiB)
    const made = await upload(bytes, 'unixfs-v0-2015')
    const car = sha(await whole(made.car(never)))
    await joined.leave()
    joined = open()
    const entry = await joined.store.ledger.find(made.cid)
    assert.ok(entry)
    const again = storedUpload(entry, [joined.store.blocks])
    assert.equal(sha(await whole(again.car(never))), car)
    assert.equal(sha(await whole(again.file(never))), sha(bytes))
  })

  it('corrupt block → never sent to a provider', async () => {
    for (const length of [1000, 100_000]) {
      const made = await upload(randomBytes(length), 'unixfs-v1-2025')
      await joined.leave()
      assert.equal(await rot(folder, made.cid), 1)
      joined = open()
      const again = storedUpload({ ...made, cids: [] }, [joined.store.blocks])
      for (const read of [() => again.car(never), () => again.file(never)])
        await assert.rejects(whole(read()), /lost or damaged/)
    }
  })

  it('reader aborts → reading stops', async () => {
    const made = await upload(randomBytes(3 * MiB), 'unixfs-v1-2025')
    const stop = new AbortController()
    await assert.rejects(async () => {
      for await (const _ of made.blocks(stop.signal)) stop.abort(new Error('enough'))
    }, /enough/)
  })

  it("file with a root block's bytes → its own CID", async () => {
    const large = await upload(randomBytes(2 * MiB), 'unixfs-v1-2025')
    let root: Uint8Array | undefined
    for await (const { bytes } of large.blocks(never)) root ??= bytes
    const small = await upload(root as Uint8Array, 'unixfs-v1-2025')
    assert.equal(blockKey(small.cid), blockKey(large.cid))
    assert.notEqual(small.cid.toString(), large.cid.toString())
    assert.ok(CID.parse(small.cid.toString()))
  })
})
