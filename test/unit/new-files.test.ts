import assert from 'node:assert/strict'
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { createNewFiles } from '../../src/core/disk/new-files.ts'
import { createThreadWriter, type ThreadWriter, threadWriterBytes } from '../../src/core/disk/thread-writer.ts'

const never = new AbortController().signal
const bytesOf = (length: number, seed: number): Buffer => Buffer.alloc(length, `${seed}, `)
let folder: string
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'new-files-'))
})
after(() => rm(folder, { recursive: true, force: true }))

let folders = 0
const newFolder = (): string => join(folder, String(folders++))

/** Answers what it is told to, and writes nothing. */
function fakeThread(answer: boolean): ThreadWriter & { asked: number } {
  return {
    asked: 0,
    async write() {
      this.asked++
      return answer
    },
    close() {},
  }
}

describe('new files', () => {
  test('many small ones at once: each is whole, its folder is made, and nothing else is left there', async () => {
    const at = newFolder()
    const files = createNewFiles()
    const names = Array.from({ length: 200 }, (_, index) => [join(at, String(index % 7)), String(index)] as const)
    await Promise.all(names.map(([place, name]) => files.write(join(place, name), bytesOf(5000, Number(name)), never)))
    for (const [place, name] of names)
      assert.deepEqual(await readFile(join(place, name)), bytesOf(5000, Number(name)), name)
    assert.equal((await readdir(at, { recursive: true })).length, 200 + 7)
    files.close()
  })
  for (const [what, count, length, asked] of [
    ['seven small ones at once: no thread', 7, 10, 0],
    ['eight small ones at once: the thread, from the eighth on', 8, 10, 1],
    ['large ones: no thread', 20, threadWriterBytes + 1, 0],
  ] as const)
    test(what, async () => {
      const at = newFolder()
      const thread = fakeThread(true)
      const files = createNewFiles(thread)
      const all = Array.from({ length: count }, (_, index) => join(at, String(index)))
      await Promise.all(all.map((file) => files.write(file, Buffer.alloc(length), never)))
      assert.equal(thread.asked, asked)
      assert.equal((await readdir(at)).length, count - asked)
    })
  test('what the thread cannot write is written without it', async () => {
    const at = newFolder()
    const thread = fakeThread(false)
    const files = createNewFiles(thread)
    const all = Array.from({ length: 20 }, (_, index) => join(at, String(index)))
    await Promise.all(all.map((file) => files.write(file, bytesOf(10, 1), never)))
    assert.ok(thread.asked > 0)
    assert.equal((await readdir(at)).length, 20)
  })
})

describe('the thread that writes', () => {
  test('a folder in the place of a file: false, and nothing is left beside it', async () => {
    const at = newFolder()
    await mkdir(join(at, 'taken'), { recursive: true })
    const thread = createThreadWriter()
    const written = await Promise.all(
      ['first', 'taken', 'last'].map((name) =>
        thread.write(join(at, `.${name}.tmp`), join(at, name), bytesOf(100, 2), never),
      ),
    )
    assert.deepEqual(written, [true, false, true])
    assert.deepEqual((await readdir(at)).sort(), ['first', 'last', 'taken'])
    thread.close()
  })
  test('more than one message holds', async () => {
    const at = newFolder()
    const thread = createThreadWriter()
    const all = Array.from({ length: 40 }, (_, index) => join(at, String(index)))
    const written = all.map((file, index) =>
      thread.write(`${file}.tmp`, file, bytesOf(threadWriterBytes, index), never),
    )
    assert.ok((await Promise.all(written)).every(Boolean))
    for (const [index, file] of all.entries())
      assert.deepEqual(await readFile(file), bytesOf(threadWriterBytes, index), file)
    thread.close()
  })
  test('an aborted one that waits: the reason of its signal, and no file', async () => {
    const at = newFolder()
    const thread = createThreadWriter()
    const stop = new AbortController()
    const file = join(at, 'aborted')
    const writing = thread.write(`${file}.tmp`, file, bytesOf(10, 3), stop.signal)
    stop.abort(new Error('gone'))
    await assert.rejects(writing, /gone/)
    await thread.write(join(at, '.tmp'), join(at, 'other'), bytesOf(10, 3), never)
    assert.deepEqual(await readdir(at), ['other'])
    thread.close()
  })
  test('once it is closed it writes nothing, and what waits is told', async () => {
    const at = newFolder()
    const thread = createThreadWriter()
    await thread.write(join(at, '.tmp'), join(at, 'before'), bytesOf(10, 4), never)
    const waiting = thread.write(join(at, '.tmp'), join(at, 'waiting'), bytesOf(10, 4), never)
    thread.close()
    await assert.rejects(waiting, { kind: 'unavailable' })
    await assert.rejects(thread.write(join(at, '.tmp'), join(at, 'behind'), bytesOf(10, 4), never), {
      kind: 'unavailable',
    })
  })
  for (const [what, script] of [
    ['ends by itself', 'process.exit()'],
    ['fails', "throw new Error('no room')"],
  ] as const)
    test(`one that ${what}: false, now and from then on`, async () => {
      const at = newFolder()
      await mkdir(at)
      await writeFile(join(at, 'script.mjs'), script)
      const thread = createThreadWriter(new URL(`file://${join(at, 'script.mjs')}`))
      const write = () => thread.write(join(at, '.tmp'), join(at, 'file'), bytesOf(10, 5), never)
      assert.equal(await write(), false)
      assert.equal(await write(), false)
      thread.close()
    })
})
