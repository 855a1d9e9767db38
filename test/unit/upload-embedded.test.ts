// The embedded provider: pins are whole and stay, blocks that no pin needs go, and a disk that fails says so.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, it } from 'node:test'
import type { Upload } from '../../backends/pinning/contract.ts'
import { createEmbedded, type EmbeddedProvider } from '../../backends/pinning/embedded.ts'
import { systemClock } from '../../src/core/clock.ts'
import { Failure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { processFolders } from '../../src/data-folder/folder.ts'
import { blocksBelow } from '../../src/ipld/block-links.ts'
import { memoryUpload } from '../../src/testing/provider.ts'
import { keptIn } from '../support/kept.ts'

const never = new AbortController().signal
const MiB = 1024 * 1024

describe('the embedded provider', () => {
  let data: string
  let store: EmbeddedProvider
  const open = (path?: string, name = 'local') =>
    createEmbedded(path === undefined ? {} : { path }, {
      ...{ name, userAgent: 'test', data, folders: processFolders, blocksBelow, log: silentLog, clock: systemClock },
    })
  beforeEach(async () => {
    data = await mkdtemp(join(tmpdir(), 'cidgate-embedded-'))
    store = open()
  })
  afterEach(async () => {
    await store.close()
    await rm(data, { recursive: true, force: true })
  })
  const blocks = async () => (await keptIn(data)).blocks

  it('bytes of a root as a file → its own pin', async () => {
    const large = await memoryUpload(randomBytes(2 * MiB))
    const [root] = await Array.fromAsync(large.blocks(never))
    const small = await memoryUpload(root?.bytes as Uint8Array)
    await store.pin(large, never)
    await store.pin(small, never)
    await store.unpin(small.cid, never)
    assert.equal(await store.status(large.cid, never), 'pinned')
    assert.equal(await blocks(), 3)
  })

  it('concurrent pin and unpin → no block lost', async () => {
    const shared = randomBytes(MiB)
    const uploads = await Promise.all(
      Array.from({ length: 12 }, (_, index) => memoryUpload(Buffer.concat([shared, Buffer.from([index])]))),
    )
    const [kept, gone] = [uploads.slice(0, 6), uploads.slice(6)]
    for (const one of gone) await store.pin(one, never)
    await Promise.all([...gone.map(({ cid }) => store.unpin(cid, never)), ...kept.map((one) => store.pin(one, never))])
    for (const upload of kept) for await (const { cid } of upload.blocks(never)) assert.ok(await store.store.has(cid))
    assert.equal(await blocks(), 1 + 2 * 6)
  })

  it('aborted pin → nothing left', async () => {
    const upload = await memoryUpload(randomBytes(4 * MiB))
    const stop = new AbortController()
    const broken: Upload = {
      ...upload,
      async *blocks(signal) {
        let count = 0
        for await (const block of upload.blocks(signal)) {
          if (++count === 4) stop.abort(new Error('enough'))
          yield block
        }
      },
    }
    await assert.rejects(store.pin(broken, stop.signal), /enough/)
    assert.deepEqual(await keptIn(data), { uploads: [], waiting: [], blocks: 0, strays: [] })
    assert.equal(await store.status(upload.cid, never), 'missing')
  })

  it('unwritable folder → transient outage', async () => {
    await writeFile(join(data, 'a-file'), 'x')
    const broken = open(join(data, 'a-file', 'pins'))
    const upload = await memoryUpload(randomBytes(10))
    for (const work of [() => broken.probe(never), () => broken.pin(upload, never)])
      await assert.rejects(work(), (error) => {
        assert.ok(error instanceof Failure)
        assert.equal(error.facts['class'], 'transient')
        assert.match(error.message, /provider local: cannot write in .*: .* is not a folder/)
        return true
      })
    await broken.close()
  })
})
