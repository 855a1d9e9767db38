// The file of a journal entry: a line for each state. Cut at any byte it says what a client may have been told, and nothing more.
// Damaged whole, or gone, it loses no upload that a client was told of.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import * as dagCbor from '@ipld/dag-cbor'
import { encode as encodedBlock } from 'multiformats/block'
import { CID } from 'multiformats/cid'
import { sha256 } from 'multiformats/hashes/sha2'
import { type LocalStore, type Provider, type Shape, shapes, type Upload } from '../../backends/pinning/contract.ts'
import { blockKey } from '../../src/core/block.ts'
import { processFolders } from '../../src/data-folder/process.ts'
import { createCopies } from '../../src/upload/spool/copies.ts'
import { lineOf } from '../../src/upload/spool/entry-file.ts'
import { createJournal, type Journal, type JournalEntry, journalFolder } from '../../src/upload/spool/journal.ts'
import { createSpools, spoolFolder } from '../../src/upload/spool/spool.ts'
import { type Adding, type AddingOptions, idle, startAdding } from '../support/adding.ts'
import { scriptedProvider } from '../support/scripted-provider.ts'

const cid = 'bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku'
const entryOf = (id: string): JournalEntry => {
  const at = '2026-01-01T00:00:00.000Z'
  return { ...{ id, cid, at, bytes: 3, carBytes: 99 }, profile: 'unixfs-v1-2025', accepted: false, providers: {} }
}
const accepted = (entry: JournalEntry): JournalEntry => ({
  ...entry,
  accepted: true,
  providers: { local: { state: 'held', tries: 1 } },
})

describe('the file of a journal entry', () => {
  let data: string
  let root: string
  let journal: Journal
  const said: string[] = []
  const log = (_level: string, event: string) => void said.push(event)
  const fileOf = (id: string) => join(root, 'open', `${id}.json`)

  beforeEach(async () => {
    data = await mkdtemp(join(tmpdir(), 'cidgate-journal-'))
    root = journalFolder(data)
    journal = createJournal(root, log, createCopies(data))
    said.length = 0
  })
  afterEach(() => rm(data, { recursive: true, force: true }))

  /** With the damaged ones that can be taken up by what is read of them. */
  async function loaded(): Promise<JournalEntry[]> {
    const { entries, damaged } = await journal.load()
    return [...entries, ...damaged.flatMap(({ entry, unsure }) => entry?.entry ?? unsure ?? [])]
  }

  /** As an upload of an embedded provider writes it. */
  async function written(id: string): Promise<Buffer> {
    await journal.write(entryOf(id))
    await journal.write(accepted(entryOf(id)))
    return readFile(fileOf(id))
  }

  it('cut at each byte is the state before, unreadable where there is none, and never gone', async () => {
    const whole = (await written('0000')).toString()
    const linesOf = (id: string) => [entryOf(id), accepted(entryOf(id))].map((one) => lineOf(one).toString()).join('')
    assert.equal(linesOf('0000'), whole)
    const first = whole.indexOf('\n')
    await rm(fileOf('0000'))
    const idOf = (cut: number) => String(cut).padStart(4, '0')
    for (let cut = 0; cut <= whole.length; cut++) await writeFile(fileOf(idOf(cut)), linesOf(idOf(cut)).slice(0, cut))

    const { entries, ids } = await createJournal(root, log, createCopies(data)).load()

    assert.equal(ids.size, whole.length + 1)
    const byId = new Map(entries.map((one) => [one.id, one]))
    for (let cut = 0; cut <= whole.length; cut++) {
      const isAccepted = cut < first ? undefined : cut >= whole.length - 1
      assert.equal(byId.get(idOf(cut))?.accepted, isAccepted, `cut at ${cut}`)
    }
    assert.equal(said.filter((event) => event === 'journal.unreadable').length, first)
    assert.equal(said.filter((event) => event === 'journal.torn').length, whole.length - first - 3)
  })

  it('whose end a power cut left as zeros is the state before; damage in the only line leaves none', async () => {
    const whole = await written('one')
    const line = whole.indexOf('\n') + 1
    const zeros = Buffer.from(whole).fill(0, line + 10)
    await writeFile(fileOf('one'), zeros)
    assert.deepEqual((await journal.load()).entries, [entryOf('one')])
    await writeFile(fileOf('one'), Buffer.concat([zeros, Buffer.from('"}\n')]))
    assert.deepEqual((await journal.load()).entries, [entryOf('one')])

    const damaged = whole.toString().replace(/"accepted":true/, '"accepted":truX')
    await writeFile(fileOf('one'), damaged.slice(line))
    const { entries, ids } = await journal.load()
    assert.deepEqual([entries, [...ids]], [[], ['one']])
    assert.equal(said.at(-1), 'journal.unreadable')
  })

  it('whose last line the disk damaged is the state before, and counts as accepted: its client may have been told', async () => {
    const whole = (await written('one')).toString()
    const line = whole.indexOf('\n') + 1
    for (let at = line; at < whole.length - 1; at++) {
      await writeFile(fileOf('one'), `${whole.slice(0, at)}\x01${whole.slice(at + 1)}`)
      const [entry] = await loaded()
      assert.deepEqual([entry?.cid, entry?.accepted], [cid, true], `damaged at ${at}`)
    }
    assert.ok(said.every((event) => event === 'journal.damaged'))
    // Behind the damage a write was cut short.
    await writeFile(fileOf('one'), `${whole.slice(0, -2)}X\n{"id":"o`)
    assert.deepEqual(await loaded(), [{ ...entryOf('one'), accepted: true }])
    // The next state is written anew, and nothing of the damage stays.
    await createJournal(root, log, createCopies(data)).write(accepted(entryOf('one')))
    assert.equal(await readFile(fileOf('one'), 'utf8'), lineOf(accepted(entryOf('one'))).toString())
  })

  it('whose last line has a flipped bit is the state before, also where it reads as another upload', async () => {
    const whole = await written('one')
    for (let at = whole.indexOf('\n') + 1; at < whole.length - 1; at++) {
      const flipped = Buffer.from(whole)
      flipped[at] = (whole[at] as number) ^ 1
      await writeFile(fileOf('one'), flipped)
      const [entry] = await loaded()
      assert.deepEqual([entry?.id, entry?.cid, entry?.accepted, entry?.bytes], ['one', cid, true, entryOf('one').bytes])
    }
  })

  /** Each byte of it in turn as one of these, and in each of the tests below as another: a bit, nothing, the end of a line, a space. */
  const damages = [(byte: number) => byte ^ 1, () => 0, () => 10, () => 32]
  function damagedAt(whole: Buffer, at: number, turn: number): Buffer {
    const bytes = Buffer.from(whole)
    bytes[at] = damages[(at + turn) % damages.length]?.(whole[at] as number) ?? 0
    return bytes
  }

  for (const [turn, [what, before, isCopied]] of (
    [
      ['two lines', true, false],
      ['one line and a copy', false, true],
      ['one line and a damaged copy', false, false],
    ] as const
  ).entries())
    it(`of ${what}, with any byte damaged, is the upload that was acknowledged, or told as damaged`, async () => {
      await mkdir(join(root, 'open'), { recursive: true })
      await mkdir(spoolFolder(data), { recursive: true })
      const linesOf = (id: string) =>
        Buffer.concat([...(before ? [lineOf(entryOf(id))] : []), lineOf(accepted(entryOf(id)))])
      const idOf = (count: number) => String(count).padStart(5, '0')
      const count = linesOf(idOf(0)).length
      const writing: Promise<void>[] = []
      for (let index = 0; index < count; index++) {
        const id = idOf(index)
        writing.push(writeFile(fileOf(id), damagedAt(linesOf(id), index, turn)))
        const copy = lineOf(accepted(entryOf(id)))
        copy[index % copy.length] = (copy[index % copy.length] as number) ^ 1
        if (isCopied) writing.push(writeFile(join(spoolFolder(data), `${id}.json`), lineOf(accepted(entryOf(id)))))
        else if (!before) writing.push(writeFile(join(spoolFolder(data), `${id}.json`), copy))
      }
      await Promise.all(writing)

      const { entries, ids, damaged } = await journal.load()

      assert.equal(ids.size, count)
      assert.equal(entries.length + damaged.length, count)
      const sure = [...entries, ...damaged.flatMap(({ entry }) => entry?.entry ?? [])]
      for (const entry of sure)
        assert.deepEqual([entry.cid, entry.bytes, entry.accepted], [cid, 3, true], `entry ${entry.id}`)
      if (before || isCopied) assert.equal(sure.length, count)
    })

  it('is the record of the upload that its name says, whatever byte of it is damaged', async () => {
    const record = join(root, 'done', cid.slice(-2), `${cid}.json`)
    await journal.amend(accepted(entryOf('one')))
    const whole = await readFile(record)
    for (let at = 0; at < whole.length; at++) {
      said.length = 0
      await writeFile(record, damagedAt(whole, at, damages.length - 1))
      const found = await journal.record(CID.parse(cid))
      if (found) assert.equal(found.cid, cid)
      else assert.deepEqual(said, ['journal.unreadable'])
    }
  })

  it('whose last line ends in a space is damaged, and the upload stays acknowledged', async () => {
    await mkdir(join(root, 'open'), { recursive: true })
    for (const end of [' ', '\t', '\r']) {
      await writeFile(
        fileOf('one'),
        lineOf(accepted(entryOf('one')))
          .toString()
          .slice(0, -1) + end,
      )
      const { entries, damaged } = await journal.load()
      assert.deepEqual([entries, damaged.length], [[], 1])
      assert.deepEqual(damaged[0]?.entry?.entry.accepted, true)
    }
  })

  it('of an earlier version, without a checksum, is read', async () => {
    await mkdir(join(root, 'open'), { recursive: true })
    const lines = [entryOf('one'), accepted(entryOf('one'))].map((entry) => `${JSON.stringify(entry)}\n`)
    await writeFile(fileOf('one'), lines.join(''))
    assert.deepEqual((await journal.load()).entries, [accepted(entryOf('one'))])
    assert.deepEqual(said, [])
  })

  it('with a torn end is written anew, and nothing is added to the end', async () => {
    await mkdir(join(root, 'open'), { recursive: true })
    await writeFile(fileOf('one'), `${JSON.stringify(entryOf('one'))}\n{"id":"o`)
    await journal.load()
    await journal.write(accepted(entryOf('one')))
    assert.deepEqual((await createJournal(root, log, createCopies(data)).load()).entries, [accepted(entryOf('one'))])
  })

  it('of an earlier version is read, goes on and becomes a record, as its records are', async () => {
    await mkdir(join(root, 'open'), { recursive: true })
    await writeFile(fileOf('one'), JSON.stringify(accepted(entryOf('one'))))
    const [entry] = (await journal.load()).entries
    assert.deepEqual(entry, accepted(entryOf('one')))
    const now = { ...accepted(entryOf('one')), owed: ['shared'] }
    await journal.write(now)
    assert.deepEqual((await journal.load()).entries, [now])
    await journal.finish(now)
    assert.deepEqual(await journal.record(CID.parse(cid)), now)

    const record = join(root, 'done', cid.slice(-2), `${cid}.json`)
    await writeFile(record, JSON.stringify(accepted(entryOf('two'))))
    assert.deepEqual(await journal.record(CID.parse(cid)), accepted(entryOf('two')))
  })

  it('is a record whose last state counts, and leaves no other file', async () => {
    await journal.write(entryOf('one'))
    await journal.finish(accepted(entryOf('one')))
    assert.deepEqual(await journal.record(CID.parse(cid)), accepted(entryOf('one')))
    assert.deepEqual(await readdir(join(root, 'open')), [])
    await journal.amend({ ...accepted(entryOf('one')), providers: {} })
    assert.equal(await journal.record(CID.parse(cid)), undefined)
  })

  it('of an upload that is tried for weeks stays small', async () => {
    for (let tries = 0; tries < 100; tries++)
      await journal.write({ ...entryOf('one'), providers: { far: { state: 'wanted', tries } } })
    const lines = (await readFile(fileOf('one'), 'utf8')).trimEnd().split('\n')
    assert.ok(lines.length <= 32, `${lines.length} lines`)
    assert.equal((await journal.load()).entries[0]?.providers['far']?.tries, 99)
  })

  it('tells no date of a next try that its checksum does not vouch for', async () => {
    const wanted = {
      ...accepted(entryOf('one')),
      providers: { far: { state: 'wanted', tries: 2, notBefore: 5 } },
    } as const
    await journal.write(wanted)
    assert.deepEqual(await loaded(), [wanted])
    const whole = await readFile(fileOf('one'), 'utf8')
    const damages = [whole.replace('"notBefore":5', '"notBefore":7'), `${JSON.stringify(wanted)}\n`]
    for (const text of damages) {
      await writeFile(fileOf('one'), text)
      const [entry] = await loaded()
      assert.deepEqual(entry?.providers, { far: { state: 'wanted', tries: 2 } }, text)
    }
  })

  it('goes after its copy, so that a crash in between brings nothing back that was deleted', async () => {
    const copies = createCopies(data)
    const copied = createJournal(root, log, copies)
    for (const over of ['remove', 'finish'] as const) {
      await copied.write(accepted(entryOf(over)), 'copied')
      assert.equal(copied.isCopied(over), true)
      const left: string[][] = []
      const drop = async (id: string) => {
        await copies.drop(id)
        left.push([...(await copies.ids()), ...(await readdir(join(root, 'open')))])
      }
      await createJournal(root, log, { ...copies, drop })[over](accepted(entryOf(over)))
      assert.deepEqual(left, [[`${over}.json`]])
      assert.deepEqual(await readdir(join(root, 'open')), [])
    }
  })

  it('with a copy counts as accepted, also where its last line did not come to the disk', async () => {
    await journal.write(entryOf('one'))
    const first = await readFile(fileOf('one'))
    await journal.write(accepted(entryOf('one')), 'copied')
    await writeFile(fileOf('one'), first)
    assert.deepEqual((await journal.load()).entries, [{ ...entryOf('one'), accepted: true }])
  })
})

describe('an acknowledged upload whose journal entry is damaged whole', () => {
  let data: string
  let body: Buffer
  beforeEach(async () => {
    data = await mkdtemp(join(tmpdir(), 'cidgate-journal-'))
    body = randomBytes(5000)
  })
  afterEach(() => rm(data, { recursive: true, force: true }))

  const open = () => join(journalFolder(data), 'open')
  const entries = async (): Promise<string[]> => (await readdir(open())).sort()
  const spools = async (): Promise<string[]> => (await readdir(spoolFolder(data))).filter((name) => !/\./.test(name))
  const small: Shape = { ...shapes['unixfs-v1-2025'], chunkBytes: 1000 }

  type Work = (adding: Adding, store: LocalStore) => Promise<void>
  /** A gateway over the folder, until `work` is done: it leaves the folder as one that is killed does. */
  async function over(provider: Provider, work: Work, options: AddingOptions = {}): Promise<void> {
    const folder = processFolders.enter(data)
    const adding = await startAdding({
      ...{ data, folder, withoutEmbedded: true, queue: true, others: [provider], ...options },
    })
    try {
      await adding.uploads.open
      await work(adding, folder.part(createSpools).store)
    } finally {
      await adding.close()
    }
  }

  /** Takes any DAG, in blocks. */
  function taker(): Provider & { readonly held: Map<string, Map<string, Uint8Array>> } {
    const held = new Map<string, Map<string, Uint8Array>>()
    return {
      ...scriptedProvider('far'),
      held,
      async pin(upload: Upload, signal: AbortSignal) {
        const blocks = new Map<string, Uint8Array>()
        for await (const { cid: one, bytes } of upload.blocks(signal)) blocks.set(one.toString(), bytes)
        held.set(upload.cid.toString(), blocks)
        return upload.cid
      },
    }
  }

  /** Is asked, reads nothing, and never answers. */
  const silent = (): Provider => ({
    ...scriptedProvider('far'),
    pin: (_upload, signal) =>
      new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
  })

  async function until(isTrue: () => boolean | Promise<boolean>): Promise<void> {
    for (let tries = 0; tries < 1000; tries++) {
      if (await isTrue()) return
      await sleep(5)
    }
    assert.fail('it did not come about')
  }

  type Kept = { readonly cid: CID; readonly blocks: number }
  /** An upload in five blocks that was acknowledged, and that its provider lacks. */
  async function acknowledged(shape: Shape = small): Promise<Kept> {
    let kept: Kept | undefined
    await over(scriptedProvider('far', 'dead'), async ({ uploads }) => {
      async function* source() {
        yield body
      }
      const { cid: root } = await uploads.add(source(), { shape })
      const [id = ''] = await spools()
      kept = { cid: root, blocks: (await readdir(join(spoolFolder(data), id))).length }
    })
    return kept as Kept
  }

  async function takenUp({ cid: root, blocks }: Kept, became: RegExp): Promise<void> {
    await over(silent(), async ({ uploads, log }, store) => {
      assert.ok(await store.get(root), 'it can be read at once')
      await until(() => uploads.confirmation.open().length === 1)
      assert.match(uploads.damage() ?? '', became)
      assert.deepEqual(
        log.filter(({ event }) => /^journal\.(mended|lost)$/.test(event)).map(({ event }) => event),
        ['journal.mended'],
      )
    })
    // The next process finds nothing to mend, and tells of it until its operator has removed the note.
    const far = taker()
    await over(far, async (adding) => {
      assert.match(adding.uploads.damage() ?? '', became)
      assert.ok(!adding.log.some(({ event }) => event === 'journal.mended'))
      await until(() => far.held.has(root.toString()))
      await idle(adding)
      await rm(join(journalFolder(data), 'damaged'), { recursive: true })
      await adding.uploads.probe()
      assert.equal(adding.uploads.damage(), undefined)
    })
    assert.equal(far.held.get(root.toString())?.size, blocks)
    assert.deepEqual([await entries(), await readdir(spoolFolder(data))], [[], []])
  }

  const whole = async (): Promise<readonly [file: string, text: string]> => {
    const file = join(open(), (await entries())[0] as string)
    return [file, await readFile(file, 'utf8')]
  }
  const damages: readonly (readonly [what: string, damage: (file: string, text: string) => Promise<void>])[] = [
    ['emptied', (file) => writeFile(file, '')],
    ['zeros', (file, text) => writeFile(file, Buffer.alloc(text.length))],
    ['of another id', (file, text) => writeFile(file, text.replaceAll('"id":"', '"id":"x'))],
    ['without its bytes', (file, text) => writeFile(file, text.replaceAll('"bytes":', '"bytes":-'))],
    ['of other bytes', (file, text) => writeFile(file, text.replaceAll('"bytes":', '"bytes":1'))],
    ['removed', (file) => rm(file)],
  ]
  for (const [what, damage] of damages)
    it(`${what}, is read, and reaches its provider by the copy`, async () => {
      const kept = await acknowledged()
      await damage(...(await whole()))
      await takenUp(kept, /^1 journal entry was damaged: 1 taken up by its copy/)
    })

  const shapesOf: readonly (readonly [what: string, shape: Shape, bytes: number])[] = [
    ['of several blocks', small, 5000],
    ['of one raw block', small, 700],
    ['of one block and CIDv0', { ...shapes['unixfs-v0-2015'] }, 700],
    ['of CIDv0', { ...shapes['unixfs-v0-2015'], chunkBytes: 1000 }, 5000],
  ]
  for (const [what, shape, bytes] of shapesOf)
    it(`with its copy, a file ${what} reaches its provider by its blocks`, async () => {
      body = randomBytes(bytes)
      const kept = await acknowledged(shape)
      const [file, text] = await whole()
      // A file of one block does not tell the version of its CID: what is left of the entry does.
      await writeFile(file, bytes < 1000 ? text.slice(0, text.indexOf('"carBytes"')) : '')
      await writeFile(join(spoolFolder(data), `${(await spools())[0]}.json`), '')
      await takenUp(kept, /^1 journal entry was damaged: 1 taken up by the blocks of its spool/)
    })

  it('with its copy, a DAG in another codec reaches its provider by its blocks', async () => {
    const leaf = await encodedBlock({ value: 'leaf', codec: dagCbor, hasher: sha256 })
    const root = await encodedBlock({ value: { leaf: leaf.cid }, codec: dagCbor, hasher: sha256 })
    await over(scriptedProvider('far', 'dead'), ({ uploads }) => {
      async function* blocks() {
        yield { cid: leaf.cid, bytes: leaf.bytes }
        yield { cid: root.cid, bytes: root.bytes }
      }
      return uploads.keep(root.cid as CID, blocks())
    })
    await writeFile((await whole())[0], '')
    await writeFile(join(spoolFolder(data), `${(await spools())[0]}.json`), '')
    await takenUp({ cid: root.cid as CID, blocks: 2 }, /1 taken up by the blocks/)
  })

  it('with its copy, and with blocks that belong to no upload beside its own, loses none of them', async () => {
    const extra = await encodedBlock({ value: { other: 'root' }, codec: dagCbor, hasher: sha256 })
    const leaf = await encodedBlock({ value: 'leaf', codec: dagCbor, hasher: sha256 })
    const root = await encodedBlock({ value: { leaf: leaf.cid }, codec: dagCbor, hasher: sha256 })
    await over(scriptedProvider('far', 'dead'), ({ uploads }) => {
      async function* blocks() {
        for (const { cid: one, bytes } of [extra, leaf, root]) yield { cid: one as CID, bytes }
      }
      return uploads.keep(root.cid as CID, blocks())
    })
    await writeFile((await whole())[0], '')
    await writeFile(join(spoolFolder(data), `${(await spools())[0]}.json`), '')
    const far = taker()
    await over(far, async (adding) => {
      await until(() => far.held.size === 2)
      await idle(adding)
    })
    assert.deepEqual(far.held.get(root.cid.toString())?.size, 2)
    const bytes = [...far.held.values()].flatMap((blocks) => [...blocks.values()])
    assert.ok(bytes.some((one) => Buffer.compare(one, extra.bytes) === 0))
  })

  it('of an earlier version, which made no copies, reaches its provider by its blocks', async () => {
    const kept = await acknowledged()
    await rm(join(spoolFolder(data), `${(await spools())[0]}.json`))
    await writeFile((await whole())[0], '')
    await takenUp(kept, /1 taken up by the blocks/)
  })

  it('of an earlier version gets its copy at the first start', async () => {
    const kept = await acknowledged()
    const copy = join(spoolFolder(data), `${(await spools())[0]}.json`)
    await rm(copy)
    await over(scriptedProvider('far', 'dead'), () => until(() => existsSync(copy)))
    await rm((await whole())[0])
    await takenUp(kept, /1 taken up by its copy/)
  })

  it('and that is deleted while its blocks are read through is taken up by no one', async () => {
    const { cid: root } = await acknowledged()
    const [id = ''] = await spools()
    const leaf = (await readdir(join(spoolFolder(data), id))).find((name) => name !== blockKey(root)) as string
    const bytes = await readFile(join(spoolFolder(data), id, leaf))
    await rm(join(spoolFolder(data), id, leaf))
    await writeFile((await whole())[0], '')
    await writeFile(join(spoolFolder(data), `${id}.json`), '')
    const asked = Promise.withResolvers<void>()
    const answered = Promise.withResolvers<Uint8Array>()
    const slow: LocalStore = {
      has: async () => false,
      get() {
        asked.resolve()
        return answered.promise
      },
    }
    const far = taker()
    const absent = { ...far, status: async () => 'absent' as const }
    const late = async ({ uploads, log }: Adding) => {
      await asked.promise
      await uploads.pins.remove(root)
      answered.resolve(bytes)
      await until(() => log.some(({ event }) => event === 'journal.mended'))
      await until(async () => (await readdir(spoolFolder(data))).length === 0)
    }
    await over(absent, late, { stores: [slow] })
    assert.deepEqual([await entries(), far.held.size], [[], 0])
  })

  it('and that lacks a block is kept, what is there can be read, and the operator is told', async () => {
    const { cid: root } = await acknowledged()
    const [id = ''] = await spools()
    const folder = join(spoolFolder(data), id)
    const leaf = (await readdir(folder)).find((name) => name !== blockKey(root)) as string
    await rm(join(folder, leaf))
    await writeFile((await whole())[0], '')
    await writeFile(`${folder}.json`, '')
    for (let starts = 0; starts < 2; starts++)
      await over(taker(), async ({ uploads, log }, store) => {
        assert.ok(await store.get(root))
        await until(() => log.some(({ event }) => event === 'journal.lost'))
        assert.match(uploads.damage() ?? '', /^1 journal entry was damaged: 1 lacks blocks/)
      })
    assert.deepEqual(await spools(), [id])
  })

  it('with the CID of nothing that lies here is told, and is no upload', async () => {
    const other = CID.createV1(0x55, await sha256.digest(randomBytes(9))).toString()
    await mkdir(open(), { recursive: true })
    const damaged = lineOf(accepted(entryOf('one')))
      .toString()
      .replace(cid, other)
    await writeFile(join(open(), 'one.json'), damaged)
    await over(silent(), async ({ uploads, log }) => {
      assert.deepEqual(uploads.confirmation.open(), [])
      assert.ok(log.some(({ event }) => event === 'journal.lost'))
      assert.match(uploads.damage() ?? '', /1 journal entry was damaged/)
      assert.equal(await uploads.journal.record(CID.parse(other)), undefined)
    })
    const [note = ''] = await readdir(join(journalFolder(data), 'damaged'))
    assert.match(await readFile(join(journalFolder(data), 'damaged', note), 'utf8'), new RegExp(other))
  })

  it('without a spool says that nothing waits, once', async () => {
    await mkdir(open(), { recursive: true })
    await writeFile(join(open(), 'one.json'), '')
    await over(taker(), async ({ uploads }) => assert.match(uploads.damage() ?? '', /1 has no blocks here/))
    assert.deepEqual(await entries(), [])
  })

  it('is told apart from one that was cut: the spool of that one goes', async () => {
    await acknowledged()
    const [id = ''] = await spools()
    await rm((await whole())[0])
    await mkdir(join(spoolFolder(data), 'cut'))
    await writeFile(join(spoolFolder(data), 'cut', blockKey(CID.parse(cid))), '')
    await over(scriptedProvider('far', 'dead'), async () => assert.deepEqual(await spools(), [id]))
  })
})
