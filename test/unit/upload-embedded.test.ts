// The embedded store: what is pinned is whole and stays, what no pin needs goes, and a disk that is full or gone says so.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import {
  copyFile,
  lstat,
  mkdir,
  mkdtemp,
  readdir,
  rename,
  rm,
  stat,
  symlink,
  truncate,
  writeFile,
} from 'node:fs/promises'
import { syncBuiltinESMExports } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, it } from 'node:test'
import { type Shape, shapes, type Upload } from '../../backends/pinning/contract.ts'
import { createEmbedded, type EmbeddedProvider } from '../../backends/pinning/embedded/embedded.ts'
import { blockKey } from '../../src/core/block.ts'
import { systemClock } from '../../src/core/clock.ts'
import { Failure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { createDataFolders } from '../../src/data-folder/folders.ts'
import { processFolders } from '../../src/data-folder/process.ts'
import { blocksBelow } from '../../src/ipld/block-links.ts'
import { createPinsTier } from '../../src/retrieval/tiers/pins.ts'
import { importFile } from '../../src/upload/intake/import.ts'
import { createSpools } from '../../src/upload/spool/spool.ts'
import { below } from '../support/adding.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const never = new AbortController().signal
const MiB = 1024 * 1024

describe('the embedded store', () => {
  let data: string
  let store: EmbeddedProvider
  const open = (path?: string, below = blocksBelow) =>
    createEmbedded(path === undefined ? {} : { path }, {
      name: 'local',
      userAgent: 'test',
      data,
      folders: processFolders,
      blocksBelow: below,
      log: silentLog,
      clock: systemClock,
    })
  beforeEach(async () => {
    data = await mkdtemp(join(tmpdir(), 'cidgate-embedded-'))
    store = open()
  })
  afterEach(() => rm(data, { recursive: true, force: true }))

  async function uploadOf(bytes: Uint8Array, shape: Shape = shapes['unixfs-v1-2025']): Promise<Upload> {
    const spool = await createSpools(data).begin()
    const { cid: root } = await importFile(
      (async function* () {
        yield bytes
      })(),
      shape,
      spool.put,
    )
    return spool.finish(root, 'unixfs-v1-2025', bytes.byteLength)
  }
  const blocks = () => below(join(data, 'pins', 'blocks'))
  /** As from another machine: nothing can be linked. */
  const copied = ({ files: _, ...upload }: Upload): Upload => upload
  const fileOf = (key: string) => join(data, 'pins', 'blocks', key.slice(-2), key)

  it('keeps what it is given, linked or copied, and reads it back after a restart', async () => {
    for (const how of [(upload: Upload) => upload, copied]) {
      const bytes = randomBytes(2 * MiB + 5)
      const upload = await uploadOf(bytes)
      assert.equal(await store.status(upload.cid, never), 'absent')
      assert.equal((await store.pin(how(upload), never)).toString(), upload.cid.toString())
      await rm(join(data, 'uploads'), { recursive: true })
      await store.close()
      store = open()
      assert.equal(await store.status(upload.cid, never), 'pinned')
      assert.ok(await store.store.has(upload.cid))
    }
    assert.equal((await blocks()).length, 8)
  })

  it('has at once what another store of this process pinned in the same folder', async () => {
    const [absent, upload] = [await uploadOf(randomBytes(100)), await uploadOf(randomBytes(100))]
    const other = open()
    assert.equal(await other.store.get(upload.cid), undefined)
    assert.equal(await other.store.has(absent.cid), false)
    await store.pin(upload, never)
    assert.ok(await other.store.get(upload.cid))
    assert.ok(await other.store.has(upload.cid))
    await other.close()
  })

  it('has what an operator copied into its folder, after a second at most', async () => {
    const clock = createFakeClock()
    const pins = createEmbedded(
      {},
      { name: 'local', userAgent: 'test', data, folders: createDataFolders(), blocksBelow, log: silentLog, clock },
    )
    const upload = await uploadOf(randomBytes(100_000))
    assert.equal(await pins.store.get(upload.cid), undefined)
    const [file] = (await upload.files?.()) ?? []
    assert.ok(file)
    await mkdir(dirname(fileOf(file.key)), { recursive: true })
    await copyFile(file.file, fileOf(file.key))
    await clock.advance(1000)
    assert.ok(await pins.store.get(upload.cid))
    await pins.close()
  })

  it('writes nothing twice where it can link', async () => {
    const upload = await uploadOf(randomBytes(100_000))
    await store.pin(upload, never)
    assert.equal((await stat(fileOf(blockKey(upload.cid)))).nlink, 2)
    assert.deepEqual(await below(join(data, 'pins', 'tmp')), [])
    await store.pin(upload, never)
    assert.deepEqual(await below(join(data, 'pins', 'tmp')), [], 'a name over a name of the same file leaves none')
  })

  it('takes a small upload from memory, whose spool reaches the disk before it is accepted only', async () => {
    const spools = createSpools(data)
    const spool = await spools.begin()
    const bytes = randomBytes(1000)
    const source = (async function* () {
      yield bytes
    })()
    const { cid } = await importFile(source, shapes['unixfs-v1-2025'], spool.put)
    const upload = await spool.finish(cid, 'unixfs-v1-2025', bytes.byteLength)
    await store.pin(upload, never)
    assert.ok(Buffer.from((await store.store.get(cid)) as Uint8Array).equals(bytes))
    assert.deepEqual(await below(join(data, 'uploads')), [])
    assert.equal(await spools.isHere(spool.id), true)
    await spools.persist(spool.id)
    const told: string[] = []
    spools.onOffer((key) => void told.push(key))
    await spools.offer(spool.id)
    const stop = spools.onOffer((key) => void told.push(`${key} again`))
    stop()
    assert.deepEqual(told, [blockKey(cid), `${blockKey(cid)} again`], 'what is offered is told, also later')
    const { carBytes, profile } = upload
    const again = createSpools(data).open({ id: spool.id, cid, profile, bytes: bytes.byteLength, carBytes })
    for await (const block of again.blocks(never)) assert.ok(Buffer.from(block.bytes).equals(bytes))
    await spools.drop(spool.id)
    assert.deepEqual(await below(join(data, 'uploads')), [])
    assert.equal(await spools.isHere(spool.id), false)
  })

  it('frees on unpin what no other pin needs', async () => {
    const shared = randomBytes(MiB)
    const one = await uploadOf(Buffer.concat([shared, randomBytes(10)]))
    const other = await uploadOf(Buffer.concat([shared, randomBytes(10)]))
    await store.pin(one, never)
    await store.pin(other, never)
    assert.equal((await blocks()).length, 5)
    await store.unpin(one.cid, never)
    assert.equal(await store.status(one.cid, never), 'absent')
    assert.equal((await blocks()).length, 3)
    for await (const { cid } of other.blocks(never)) assert.ok(await store.store.has(cid))
    await store.unpin(other.cid, never)
    assert.deepEqual(await blocks(), [])
    await store.unpin(other.cid, never)
  })

  it('frees on unpin what a process that was killed in the middle of a pin left, but for what another pin needs', async () => {
    const shared = randomBytes(MiB)
    const one = await uploadOf(Buffer.concat([shared, randomBytes(10)]))
    const other = await uploadOf(Buffer.concat([shared, randomBytes(10)]))
    await store.pin(one, never)
    await store.pin(other, never)
    // Its record is what a pin writes last.
    const name = one.cid.toV1().toString()
    await rm(join(data, 'pins', 'roots', name.slice(-2), `${name}.json`))
    assert.equal(await store.status(one.cid, never), 'absent')
    await store.unpin(one.cid, never)
    assert.equal((await blocks()).length, 3)
    for await (const { cid } of other.blocks(never)) assert.ok(await store.store.has(cid))
  })

  for (const next of ['the same is deleted again', 'another one is deleted', 'anything is pinned'])
    it(`frees the rest of what a kill left in the middle of freeing when ${next}`, async (context) => {
      const small = { ...shapes['unixfs-v1-2025'], chunkBytes: 1000, width: 3 }
      const shared = randomBytes(3000)
      const name = (one: Upload) => one.cid.toV1().toString()
      const recordOf = (one: Upload) => join(data, 'pins', 'roots', name(one).slice(-2), `${name(one)}.json`)
      const { rm: remove } = fs.promises
      // With a record, and without one: of a pin that was killed.
      for (const hasRecord of [true, false])
        for (const kill of [0, 1, 3, 6]) {
          const one = await uploadOf(Buffer.concat([shared, randomBytes(4000)]), small)
          const other = await uploadOf(Buffer.concat([shared, randomBytes(4000)]), small)
          const third = await uploadOf(randomBytes(10))
          for (const each of [one, other, third]) await store.pin(each, never)
          const kept = [other, ...(next === 'another one is deleted' ? [] : [third])]
          if (!hasRecord) await rm(recordOf(one))
          let removals = 0
          context.mock.method(fs.promises, 'rm', async (...args: Parameters<typeof remove>) => {
            if (String(args[0]).startsWith(join(data, 'pins', 'blocks')) && removals++ >= kill)
              throw new Error('killed')
            return remove(...args)
          })
          syncBuiltinESMExports()
          await assert.rejects(store.unpin(one.cid, never), /killed/)
          context.mock.restoreAll()
          syncBuiltinESMExports()

          store = open()
          if (next === 'another one is deleted') await store.unpin(third.cid, never)
          else if (next === 'anything is pinned') await store.pin(third, never)
          // Without a record nothing but its own name leads to it.
          if (next === 'the same is deleted again' || !hasRecord) await store.unpin(one.cid, never)
          const needed = new Set<string>()
          for (const each of kept) for await (const { cid } of each.blocks(never)) needed.add(blockKey(cid))
          assert.deepEqual((await blocks()).sort(), [...needed].sort(), `killed at ${kill}`)
          assert.deepEqual(await below(join(data, 'pins', 'freed')), [])
          for (const each of kept) assert.equal(await store.status(each.cid, never), 'pinned')
          await rm(join(data, 'pins'), { recursive: true })
        }
    })

  it('frees nothing while a record cannot be read, says which, and frees it all when that is whole again', async () => {
    const one = await uploadOf(randomBytes(2 * MiB))
    const other = await uploadOf(randomBytes(10))
    for (const each of [one, other]) await store.pin(each, never)
    const name = other.cid.toV1().toString()
    await truncate(join(data, 'pins', 'roots', name.slice(-2), `${name}.json`), 20)
    await assert.rejects(store.unpin(one.cid, never), new RegExp(`${name}[.]json is damaged`))
    for (const each of [one, other])
      for await (const { cid } of each.blocks(never)) assert.ok(await store.store.has(cid))
    await store.pin(other, never)
    await store.unpin(one.cid, never)
    assert.equal((await blocks()).length, 1)
  })

  it('keeps a record that is being freed while it cannot be read, and frees its blocks later', async () => {
    const [one, other, last] = [
      await uploadOf(randomBytes(2 * MiB)),
      await uploadOf(randomBytes(10)),
      await uploadOf(randomBytes(11)),
    ]
    for (const each of [one, other, last]) await store.pin(each, never)
    const name = `${one.cid.toV1()}.json`
    const freed = join(data, 'pins', 'freed', name)
    await mkdir(join(data, 'pins', 'freed'), { recursive: true })
    await symlink(name, freed) // to itself: no read of it ends well
    await store.unpin(other.cid, never)
    assert.deepEqual(await readdir(join(data, 'pins', 'freed')), [name])
    await rm(freed)
    await rename(join(data, 'pins', 'roots', name.slice(-7, -5), name), freed)
    await store.unpin(last.cid, never)
    assert.deepEqual(await blocks(), [])
    assert.deepEqual(await readdir(join(data, 'pins', 'freed')), [])
  })

  it('looks no longer for what was left than it is waited for, so that uploads are pinned again', async () => {
    const upload = await uploadOf(randomBytes(2 * MiB))
    await store.pin(upload, never)
    const name = upload.cid.toV1().toString()
    await rm(join(data, 'pins', 'roots', name.slice(-2), `${name}.json`))
    const waits = new AbortController()
    const looking = open(undefined, (block, isNew) => {
      waits.abort(new Error('late'))
      return blocksBelow(block, isNew)
    })
    await assert.rejects(looking.unpin(upload.cid, waits.signal), /late/)
    await looking.pin(upload, never)
    assert.equal(await store.status(upload.cid, never), 'pinned')
    for await (const { cid } of upload.blocks(never)) assert.ok(await store.store.has(cid))
  })

  it('frees all of a pin that is broken off, also what a process that was killed had linked', async () => {
    const upload = await uploadOf(randomBytes(4 * MiB))
    await store.pin(upload, never)
    const name = upload.cid.toV1().toString()
    await rm(join(data, 'pins', 'roots', name.slice(-2), `${name}.json`))
    const stop = new AbortController()
    stop.abort()
    await assert.rejects(store.pin(upload, stop.signal))
    assert.deepEqual(await blocks(), [])
  })

  it('keeps apart a file whose bytes are the root block of another file', async () => {
    const large = await uploadOf(randomBytes(2 * MiB))
    const root = await (async () => {
      for await (const { bytes } of large.blocks(never)) return bytes
    })()
    const small = await uploadOf(root as Uint8Array)
    await store.pin(large, never)
    await store.pin(small, never)
    await store.unpin(small.cid, never)
    assert.equal(await store.status(large.cid, never), 'pinned')
    assert.equal((await blocks()).length, 3)
  })

  it('pins and unpins at the same time without losing a block', async () => {
    const shared = randomBytes(MiB)
    const uploads = await Promise.all(
      Array.from({ length: 12 }, (_, index) => uploadOf(Buffer.concat([shared, Buffer.from([index])]))),
    )
    const [kept, gone] = [uploads.slice(0, 6), uploads.slice(6)]
    for (const { cid } of gone) await store.pin(gone.find((one) => one.cid === cid) as Upload, never)
    await Promise.all([...gone.map(({ cid }) => store.unpin(cid, never)), ...kept.map((one) => store.pin(one, never))])
    for (const upload of kept) for await (const { cid } of upload.blocks(never)) assert.ok(await store.store.has(cid))
    assert.equal((await blocks()).length, 1 + 2 * 6)
  })

  it('leaves nothing of a pin that is broken off', async () => {
    const upload = copied(await uploadOf(randomBytes(4 * MiB)))
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
    assert.deepEqual(await blocks(), [])
    assert.equal(await store.status(upload.cid, never), 'absent')
  })

  it('puts right what rotted when it comes again, and gives no rotten bytes as a tier', async () => {
    const bytes = randomBytes(1000)
    const upload = await uploadOf(bytes)
    for (const how of [(one: Upload) => one, copied]) {
      await store.pin(how(upload), never)
      await rm(fileOf(blockKey(upload.cid)))
      await writeFile(fileOf(blockKey(upload.cid)), randomBytes(1000))
      const said: string[] = []
      const tier = createPinsTier('pins', store.store, { keeps: true, log: (_level, event) => said.push(event) })
      assert.equal(await tier.get(upload.cid), undefined)
      assert.deepEqual(said, ['pins.corrupt'])
      await store.pin(how(upload), never)
      assert.equal(Buffer.compare((await tier.get(upload.cid)) as Uint8Array, bytes), 0)
    }
  })

  const others: readonly (readonly [what: string, put: (file: string) => Promise<unknown>])[] = [
    ['a folder that is not empty', (file) => mkdir(file).then(() => writeFile(join(file, 'a'), 'a'))],
    ['a file of 3 GiB', (file) => writeFile(file, '').then(() => truncate(file, 3072 * MiB))],
    ['a link to a device', (file) => symlink('/dev/zero', file)],
    ['a link to itself', (file) => symlink(file, file)],
  ]
  for (const [what, put] of others)
    it(`does not read ${what} in the place of a block, and puts it right when the block comes again`, async () => {
      const upload = await uploadOf(randomBytes(100_000))
      const file = fileOf(blockKey(upload.cid))
      for (const how of [(one: Upload) => one, copied]) {
        await store.pin(how(upload), never)
        await rm(file)
        await put(file)
        assert.equal(await store.store.get(upload.cid), undefined)
        assert.equal(await store.store.has(upload.cid), false)
        await store.pin(how(upload), never)
        assert.ok((await lstat(file)).isFile())
        assert.equal((await store.store.get(upload.cid))?.byteLength, 100_000)
      }
      await rm(file)
      await put(file)
      await store.unpin(upload.cid, never)
      assert.deepEqual(await blocks(), [])
    })

  it('reads a block that an operator keeps behind a link', async () => {
    const upload = await uploadOf(randomBytes(100_000))
    await store.pin(upload, never)
    const file = fileOf(blockKey(upload.cid))
    await rename(file, join(data, 'elsewhere'))
    await symlink(join(data, 'elsewhere'), file)
    assert.equal((await store.store.get(upload.cid))?.byteLength, 100_000)
  })

  it('does not say that it holds what rotted before it was linked', async () => {
    const upload = await uploadOf(randomBytes(2 * MiB + 5))
    const [first, ...files] = (await upload.files?.()) ?? []
    assert.ok(first)
    await writeFile(first.file, randomBytes(1000))
    await assert.rejects(store.pin({ ...upload, files: async () => [...files, first] }, never), /lost or damaged/)
    assert.equal(await store.status(upload.cid, never), 'absent')
    assert.deepEqual(await blocks(), [])
  })

  it('copies all of it when one block cannot be linked, however late the others can', async () => {
    for (let turn = 0; turn < 5; turn++) {
      const upload = await uploadOf(randomBytes(7 * MiB + 5))
      const files = (await upload.files?.()) ?? []
      const missing = files.map((one, index) =>
        index === files.length - 1 ? { ...one, file: `${one.file}-gone` } : one,
      )
      await store.pin({ ...upload, files: async () => missing }, never)
      for await (const { cid } of upload.blocks(never)) assert.ok(await store.store.has(cid), `turn ${turn}: ${cid}`)
    }
  })

  it('makes its folders again when they were removed', async () => {
    for (const gone of ['pins/tmp', 'pins/blocks', 'pins/roots', 'pins', '.']) {
      const upload = await uploadOf(randomBytes(MiB + 1))
      await store.pin(upload, never)
      await rm(join(data, gone), { recursive: true })
      for (const how of [(one: Upload) => one, copied]) {
        const next = await uploadOf(randomBytes(MiB + 1))
        await store.pin(how(next), never)
        for await (const { cid } of next.blocks(never)) assert.ok(await store.store.has(cid), `${gone}: ${cid}`)
      }
    }
  })

  it('pins where the file system cannot sync a folder', async (context) => {
    const { fsync } = fs
    let refused = 0
    const asked = (handle: number, done: (error?: Error | null) => void) => {
      if (!fs.fstatSync(handle).isDirectory()) return fsync(handle, done)
      refused++
      done(Object.assign(new Error('EINVAL: invalid argument, fsync'), { code: 'EINVAL' }))
    }
    context.mock.method(fs, 'fsync', asked as never)
    syncBuiltinESMExports()
    try {
      const upload = await uploadOf(randomBytes(MiB + 1))
      await store.pin(upload, never)
      assert.equal(await store.status(upload.cid, never), 'pinned')
      await store.unpin(upload.cid, never)
      assert.ok(refused > 0)
    } finally {
      context.mock.restoreAll()
      syncBuiltinESMExports()
    }
  })

  it('has each file on the platter before it gets its name, and the folder before a pin counts', async (context) => {
    const { open, fdatasync, fsync } = fs
    const names = new Map<number, string>()
    const all: string[] = []
    const synced = new Set<string>()
    const opened = (file: string, flags: string | number, done: (error: Error | null, handle: number) => void) =>
      open(file, flags, (error, handle) => {
        names.set(handle, file)
        all.push(file)
        if (typeof flags === 'number' && flags & (fs.constants.O_DSYNC ?? 0)) synced.add(file)
        done(error, handle)
      })
    const syncs = (sync: typeof fdatasync) => (handle: number, done: fs.NoParamCallback) => {
      synced.add(names.get(handle) ?? '')
      sync(handle, done)
    }
    context.mock.method(fs, 'open', opened as never)
    context.mock.method(fs, 'fdatasync', syncs(fdatasync) as never)
    context.mock.method(fs, 'fsync', syncs(fsync) as never)
    syncBuiltinESMExports()
    try {
      const upload = copied(await uploadOf(randomBytes(10)))
      await store.pin(upload, never)
      const written = all.filter((file) => dirname(file) === join(data, 'pins', 'tmp'))
      assert.equal(written.length, 2, 'the block and the pin')
      const found = await readdir(join(data, 'pins'), { recursive: true, withFileTypes: true })
      const folders = found.filter((one) => one.isFile()).map(({ parentPath }) => parentPath)
      assert.equal(folders.length, 2)
      for (const one of [...written, ...folders]) assert.ok(synced.has(one), `${one} is not synced`)
    } finally {
      context.mock.restoreAll()
      syncBuiltinESMExports()
    }
  })

  it('empties its folder of unfinished files', async () => {
    await mkdir(join(data, 'pins', 'tmp'), { recursive: true })
    await writeFile(join(data, 'pins', 'tmp', 'left'), 'x')
    await store.pin(copied(await uploadOf(randomBytes(10))), never)
    assert.deepEqual(await below(join(data, 'pins', 'tmp')), [])
  })

  it('leaves alone what another store over the same folder is writing', async () => {
    const upload = copied(await uploadOf(randomBytes(MiB + 1)))
    const stops = Promise.withResolvers<void>()
    const goOn = Promise.withResolvers<void>()
    const slow: Upload = {
      ...upload,
      async *blocks(signal) {
        for await (const block of upload.blocks(signal)) {
          yield block
          stops.resolve()
          await goOn.promise
        }
      },
    }
    const other = open()
    const pinning = store.pin(slow, never)
    await stops.promise
    // What fails there must not take the block that is counted on here.
    const failing: Upload = {
      ...upload,
      async *blocks(signal) {
        for await (const block of upload.blocks(signal)) {
          yield block
          throw new Error('it breaks off')
        }
      },
    }
    await other.probe(never)
    const failed = assert.rejects(other.pin(failing, never), /it breaks off/)
    goOn.resolve()
    await pinning
    await failed
    for await (const { cid } of upload.blocks(never)) assert.ok(await store.store.has(cid), String(cid))
    await other.close()
  })

  it('says what is wrong with its folder, and that it may pass', async () => {
    await writeFile(join(data, 'a-file'), 'x')
    const broken = open(join(data, 'a-file', 'pins'))
    const upload = await uploadOf(randomBytes(10))
    for (const work of [() => broken.probe(never), () => broken.pin(upload, never)])
      await assert.rejects(work(), (error) => {
        assert.ok(error instanceof Failure)
        assert.equal(error.facts['class'], 'transient')
        assert.match(
          error.message,
          /provider local: cannot write in .*ENOTDIR; there is a file in the place of the folder/,
        )
        return true
      })
  })
})
