// The file of a journal entry: a line for each state. Cut at any byte it says what a client may have been told, and nothing more.
import assert from 'node:assert/strict'
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, it } from 'node:test'
import { CID } from 'multiformats/cid'
import { lineOf } from '../../src/upload/spool/entry-file.ts'
import { createJournal, type Journal, type JournalEntry } from '../../src/upload/spool/journal.ts'

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
  let root: string
  let journal: Journal
  const said: string[] = []
  const log = (_level: string, event: string) => void said.push(event)
  const fileOf = (id: string) => join(root, 'open', `${id}.json`)

  beforeEach(async () => {
    root = await mkdtemp(join(tmpdir(), 'cidgate-journal-'))
    journal = createJournal(root, log)
    said.length = 0
  })
  afterEach(() => rm(root, { recursive: true, force: true }))

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

    const { entries, ids } = await createJournal(root, log).load()

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
      const [entry] = (await journal.load()).entries
      assert.deepEqual([entry?.cid, entry?.accepted], [cid, true], `damaged at ${at}`)
    }
    assert.ok(said.every((event) => event === 'journal.damaged'))
    // Behind the damage a write was cut short.
    await writeFile(fileOf('one'), `${whole.slice(0, -2)}X\n{"id":"o`)
    assert.deepEqual((await journal.load()).entries, [{ ...entryOf('one'), accepted: true }])
    // The next state is written anew, and nothing of the damage stays.
    await createJournal(root, log).write(accepted(entryOf('one')))
    assert.equal(await readFile(fileOf('one'), 'utf8'), lineOf(accepted(entryOf('one'))).toString())
  })

  it('whose last line has a flipped bit is the state before, also where it reads as another upload', async () => {
    const whole = await written('one')
    for (let at = whole.indexOf('\n') + 1; at < whole.length - 1; at++) {
      const flipped = Buffer.from(whole)
      flipped[at] = (whole[at] as number) ^ 1
      await writeFile(fileOf('one'), flipped)
      const [entry] = (await journal.load()).entries
      assert.deepEqual([entry?.id, entry?.cid, entry?.accepted, entry?.bytes], ['one', cid, true, entryOf('one').bytes])
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
    assert.deepEqual((await createJournal(root, log).load()).entries, [accepted(entryOf('one'))])
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
})
