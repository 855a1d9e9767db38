// A CAR whose roots share their blocks, and an upload of very many links, without HTTP: what they may cost beside their size.
import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import * as dagCbor from '@ipld/dag-cbor'
import { CID } from 'multiformats/cid'
import { create } from 'multiformats/hashes/digest'
import { sha256 } from 'multiformats/hashes/sha2'
import { type Block, blockKey } from '../../src/core/cid.ts'
import { systemClock } from '../../src/core/clock.ts'
import { isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { createDataFolders } from '../../src/data-folder/folder.ts'
import { carSection } from '../../src/ipld/car.ts'
import { joinStore } from '../../src/store/open.ts'
import { takeCar } from '../../src/upload/ingest.ts'
import { storedUpload } from '../../src/upload/stored-upload.ts'
import { keptIn, nothing } from '../support/kept.ts'

async function node(value: unknown): Promise<Block> {
  const bytes = dagCbor.encode(value)
  return { cid: CID.createV1(0x71, await sha256.digest(bytes)), bytes }
}

test('shared block counts per root; above the limit → refused', async () => {
  const data = await mkdtemp(join(tmpdir(), 'cidgate-car-'))
  try {
    const leaves = await Promise.all(Array.from({ length: 5 }, (_, index) => node({ index })))
    const shared = leaves.map(({ cid }) => cid)
    const roots = await Promise.all(Array.from({ length: 4 }, (_, root) => node({ root, shared })))
    const header = dagCbor.encode({ version: 1, roots: roots.map(({ cid }) => cid) })
    const body = Buffer.concat([
      Uint8Array.of((header.byteLength % 128) | 128, header.byteLength >> 7),
      header,
      ...[...roots, ...leaves].flatMap((one) => [...carSection(one)]),
    ])
    const folder = createDataFolders().enter(data)
    const { store, leave } = joinStore(folder, { clock: systemClock, log: silentLog })
    await store.ready
    async function take(remaining: number) {
      const intake = store.begin()
      try {
        const source = (async function* () {
          yield body
        })()
        const into = { intake, admit() {}, limits: { maxBytes: 1_000_000 }, closing: new AbortController().signal }
        return await takeCar(source, {}, { remaining, max: 24 }, into)
      } finally {
        await intake.drop()
      }
    }

    await assert.rejects(
      take(23),
      (error) => isFailure(error, 'malformed') && /more than 24 blocks together/.test(error.message),
    )
    assert.deepEqual(await keptIn(data), nothing)
    assert.equal((await take(24)).length, 4)
    await leave()
  } finally {
    await rm(data, { recursive: true, force: true })
  }
})

test('upload traversal skips thousands of identity links', async () => {
  const links = Array.from({ length: 3000 }, (_, index) =>
    CID.createV1(0x55, create(0, Uint8Array.of(index >> 8, index & 255))),
  )
  const blocks = [await node(links)]
  for (let depth = 0; depth < 3; depth++) {
    const below = (blocks.at(-1) as Block).cid
    blocks.push(await node([below, ...links, below]))
  }
  const { cid } = blocks.at(-1) as Block
  const held = new Map(blocks.map((one) => [blockKey(one.cid), one.bytes]))
  const store = { get: async (cid: CID) => held.get(blockKey(cid)), has: async (cid: CID) => held.has(blockKey(cid)) }
  let steps = 0
  // Each step of a walk asks it.
  const signal = Object.assign(new AbortController().signal, { throwIfAborted: () => void steps++ })
  const kept = { cid, profile: {} as never, bytes: 0, carBytes: 0 }
  const walked = await Array.fromAsync(storedUpload(kept, [store]).blocks(signal))
  assert.deepEqual(
    walked.map((one) => blockKey(one.cid)),
    blocks.toReversed().map((one) => blockKey(one.cid)),
  )
  assert.ok(steps < 20, `${steps} steps`)
})
