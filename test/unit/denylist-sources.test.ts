// Where denylists come from, and what is not taken for one: whatever an address or a file holds for a while, the gateway
// does not open, and no secret of an address is told.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { CID } from 'multiformats/cid'
import { create } from 'multiformats/hashes/digest'
import { type DenylistEntry, type LoadedDenylists, loadDenylists, openTakedowns } from '../../src/deny/load.ts'
import { createFakeClock, type FakeClock } from '../support/fake-clock.ts'

const cidOf = (text: string): CID => CID.createV1(0x55, create(0x12, createHash('sha256').update(text).digest()))
const bad = cidOf('bad')
const good = `version: 1\n---\n/ipfs/${bad} reason=bad\n`
const page = '<!doctype html>\n<html><body>\nSign in to the wifi\n</body></html>\n'

type Answer = { status?: number; type?: string; text?: string }
type Line = { readonly level: string; readonly event: string; readonly facts: Readonly<Record<string, unknown>> }

let folder: string
let server: Server
let url: string
let answer: Answer
let clock: FakeClock
let lines: Line[]
let lists: LoadedDenylists | undefined
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'cidgate-lists-'))
  clock = createFakeClock()
  lines = []
  answer = { text: good }
  server = createServer((_request, response) => {
    const { status = 200, type = 'text/plain', text = '' } = answer
    response.writeHead(status, { 'Content-Type': type, ...(status === 301 && { Location: '/x?token=hush' }) }).end(text)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/list.deny?token=hush`
})
afterEach(async () => {
  lists?.close()
  lists = undefined
  server.closeAllConnections()
  server.close()
  await rm(folder, { recursive: true, force: true })
})

const copies = join('data', 'denylists')
async function load(...sources: DenylistEntry[]): Promise<LoadedDenylists> {
  lists?.close()
  lists = await loadDenylists(sources, {
    clock,
    log: (level, event, facts = {}) => lines.push({ level, event, facts }),
    userAgent: 'test',
    folder: join(folder, copies),
    onChange() {},
  })
  return lists
}

/** Time for one more look, and the look itself. */
async function again(ms: number): Promise<void> {
  await clock.advance(ms)
  while (clock.timers === 0) await setImmediate()
}

async function copy(): Promise<string> {
  const [name] = await readdir(join(folder, copies))
  return readFile(join(folder, copies, String(name)), 'utf8')
}

const noLists: readonly [what: string, answer: Answer, why: RegExp][] = [
  ['a page', { type: 'text/html; charset=utf-8', text: page }, /HTML/],
  ['a page that says it is text', { text: page }, /4 of its 4 lines are invalid/],
  ['nothing', { text: '' }, /no rule/],
  ['a header without rules', { text: 'version: 1\n---\n' }, /no rule, and had 1/],
  ['a list that is mostly faulty', { text: `/ipfs/${bad}\nwhat\never\n` }, /2 of its 3 lines/],
  ['a version of its own', { text: 'version: 2\n---\n/ipfs/x\n' }, /version 2/],
  ['another address', { status: 301 }, /status 301/],
  ['an error', { status: 500 }, /status 500/],
]

test('revision depends on the texts only', async () => {
  assert.equal((await load()).revision, undefined, 'there are no lists')
  const { revision } = await load(url)
  assert.match(String(revision), /^[0-9a-f]{8}$/)
  answer = { status: 500 }
  const held = await load(url)
  assert.equal(held.revision, revision, 'the copy is the same list')
  answer = { text: `${good}# more\n` }
  await again(300_000)
  assert.notEqual(held.revision, revision)
})

describe('URL unavailable at the first start', () => {
  test('not required → starts; applies once available', async () => {
    answer = { status: 503 }
    const held = await load({ url, required: false })
    assert.equal(held.path(bad, []), undefined)
    assert.deepEqual([held.rules, held.revision, held.lists()[0]?.checkedAt], [0, undefined, 0])
    assert.match(String(lines.find(({ level }) => level === 'error')?.facts['instead']), /not required/)
    await held.refresh()
    answer = { text: good }
    await again(30_000)
    assert.ok(held.path(bad, []), 'it is asked for every half minute, and not every five')
    assert.equal(await copy(), good)
  })

  test("operator's copy → used", async () => {
    answer = { status: 503 }
    const brought = join(folder, 'brought.deny')
    await writeFile(brought, good)
    for (const required of [true, false]) {
      const held = await load({ url, required, copy: brought })
      assert.ok(held.path(bad, []))
    }
    await assert.rejects(load({ url, required: true, copy: join(folder, 'none') }), /cannot be read/)
    answer = { text: `/ipfs/${cidOf('other')}\n` }
    const newer = await load({ url, required: true, copy: brought })
    assert.equal(newer.path(bad, []), undefined, 'what the address gives is in force')
    answer = { status: 503 }
    assert.equal((await load({ url, required: true, copy: brought })).path(bad, []), undefined, 'and its copy')
  })
})

describe('URL that responds with', () => {
  for (const [what, wrong, why] of noLists)
    test(`${what} → list unchanged, also at the next start`, async () => {
      const held = await load(url)
      answer = wrong
      await again(300_000)
      assert.ok(held.path(bad, []), 'the list stays')
      assert.equal(await copy(), good, 'and so does its copy')
      const said = lines.filter(({ event }) => event === 'denylist.read-failed')
      assert.equal(said.length, 1)
      assert.match(String(said[0]?.facts['error']), why)
      const started = await load(url)
      assert.ok(started.path(bad, []), 'the copy serves the next start')
      assert.equal(await copy(), good)
      const last = lines.findLast(({ event }) => event === 'denylist.read-failed')
      assert.equal(last?.facts['instead'], 'the copy of last time')
    })

  for (const [what, wrong] of noLists.filter(([what]) => what !== 'a header without rules'))
    test(`${what} → not accepted as the first list`, async () => {
      answer = wrong
      await assert.rejects(load(url), /the denylist 127\.0\.0\.1:\d+\/list\.deny cannot be read/)
      assert.deepEqual(await readdir(folder), [], 'and no copy of it is kept')
    })

  test('changed list → accepted and stored', async () => {
    const held = await load(url)
    answer = { text: `/ipfs/${cidOf('other')}\n` }
    await again(300_000)
    assert.ok(held.path(cidOf('other'), []))
    assert.equal(held.path(bad, []), undefined)
    assert.equal(await copy(), answer.text)
  })

  test('invalid stored copy → refused', async () => {
    await load(url)
    const [name] = await readdir(join(folder, copies))
    await writeFile(join(folder, copies, String(name)), page)
    answer = { status: 500 }
    await assert.rejects(load(url), /status 500/)
  })
})

describe('denylist file', () => {
  test('emptied briefly → rules stay, logged once', async () => {
    const path = join(folder, 'ours.deny')
    await writeFile(path, good)
    const held = await load(path)
    await writeFile(path, '')
    for (let turn = 0; turn < 3; turn++) await again(2_000)
    assert.ok(held.path(bad, []))
    const said = lines.filter(({ event }) => event === 'denylist.read-failed')
    assert.deepEqual(
      said.map(({ facts }) => facts),
      [{ list: path, error: `the denylist ${path} cannot be read: it has no rule, and had 1` }],
    )
    await writeFile(path, `${good}/ipfs/${cidOf('other')}\n`)
    await again(2_000)
    assert.ok(held.path(cidOf('other'), []))
  })

  test('removed → logged once, with the reason', async () => {
    const path = join(folder, 'ours.deny')
    await writeFile(path, good)
    const held = await load(path)
    await rm(path)
    for (let turn = 0; turn < 3; turn++) await again(2_000)
    assert.ok(held.path(bad, []))
    const said = lines.filter(({ event }) => event === 'denylist.read-failed')
    assert.equal(said.length, 1)
    assert.match(String(said[0]?.facts['error']), /ENOENT/)
  })

  test('many invalid lines → first and number logged', async () => {
    const path = join(folder, 'ours.deny')
    const rows = Array.from({ length: 100 }, (_, row) => (row % 3 === 0 ? 'what' : `/ipfs/${cidOf(String(row))}`))
    await writeFile(path, rows.join('\n'))
    const held = await load(path)
    assert.equal(held.rules, 66)
    assert.equal(lines.filter(({ event }) => event === 'denylist.line').length, 10)
    const { facts } = lines.find(({ event }) => event === 'denylist.lines') as Line
    assert.deepEqual(facts, { list: path, faults: 34 })
  })

  test('no rules at start → accepted', async () => {
    const path = join(folder, 'ours.deny')
    await writeFile(path, '# nothing yet\n')
    assert.equal((await load(path)).rules, 0)
  })
})

describe('log of a denylist URL', () => {
  const told = () => JSON.stringify(lines)

  test('host, path and reason, without query and password', async () => {
    const secret = url.replace('http://', 'http://user:quiet@')
    answer = { status: 500 }
    await assert.rejects(load(secret), (error: Error) => {
      assert.match(error.message, /^the denylist 127\.0\.0\.1:\d+\/list\.deny cannot be read: status 500$/)
      return true
    })
    answer = { text: `${good}what\n` }
    await load(secret)
    answer = { status: 301 }
    await again(300_000)
    assert.match(told(), /status 301/)
    assert.match(told(), /denylist\.line/)
    assert.doesNotMatch(told(), /hush|quiet/)
  })

  test('connection refused → says so', async () => {
    await new Promise((resolve) => server.close(resolve))
    await assert.rejects(load(url), (error: Error) => /ECONNREFUSED/.test(error.message) && !/hush/.test(error.message))
  })
})

describe('list of takedowns', () => {
  const [first, second, third] = [cidOf('first'), cidOf('second'), cidOf('third')]
  const no = { legal: false, reason: undefined }
  const said: string[] = []
  const log = (_level: string, event: string) => void said.push(event)
  const openList = (file: string) => openTakedowns({ file, onChange: () => {}, log })
  const denied = async (file: string) => {
    const list = await openList(file)
    return [first, second, third].map((cid) => list.path(cid, []) !== undefined)
  }

  test('truncated write → acknowledged rules apply, writable', async () => {
    const file = join(folder, 'takedowns.deny')
    await (await openList(file)).takeDown(first, no)
    const kept = (await readFile(file, 'utf8')).length
    await (await openList(file)).takeDown(second, { legal: true, reason: 'court-order' })
    const text = await readFile(file, 'utf8')
    const whole = text.indexOf(`${second}`) + `${second}`.length
    for (let cut = 0; cut < text.length; cut += cut > kept - 2 && cut < kept + 2 ? 1 : 17)
      for (const end of ['', '\0\0\0']) {
        await writeFile(file, text.slice(0, cut) + end)
        // Cut before the end of the first one, that was not acknowledged either.
        const [one, two] = await denied(file)
        if (cut >= kept) assert.equal(one, true, `cut at ${cut}`)
        if (cut < whole) assert.equal(two, false, `cut at ${cut}`)
        await (await openList(file)).takeDown(third, no)
        assert.deepEqual((await denied(file)).slice(cut >= kept ? 0 : 2), cut >= kept ? [true, two, true] : [true])
      }
    assert.ok(said.includes('takedowns.damaged'))
  })

  test('rule removed from the file, then taken down again → in force', async () => {
    const file = join(folder, 'takedowns.deny')
    const list = await openList(file)
    await list.takeDown(first, no)
    const text = await readFile(file, 'utf8')
    await writeFile(file, text.slice(0, text.indexOf('/ipfs/')))
    await list.takeDown(first, no)
    assert.equal(await readFile(file, 'utf8'), text)
    assert.ok(list.path(first, []))
  })

  test('emptied while nobody ran → reported until rewritten', async () => {
    const file = join(folder, 'takedowns.deny')
    await writeFile(file, '')
    const list = await openList(file)
    assert.match(list.damage ?? '', /^denylists\/takedowns\.deny of the data folder is empty/)
    await list.takeDown(first, no)
    assert.equal(list.damage, undefined)
  })

  test('last line truncated → reported until repaired, without CIDs', async () => {
    const file = join(folder, 'takedowns.deny')
    const list = await openList(file)
    for (const cid of [first, second]) await list.takeDown(cid, no)
    assert.equal(list.damage, undefined)
    const text = await readFile(file, 'utf8')
    await writeFile(file, text.slice(0, text.indexOf(`${second}`) + 20))
    await list.refresh()
    assert.match(list.damage ?? '', /^1 invalid line .*: what line 5 denied /)
    assert.doesNotMatch(list.damage ?? '', new RegExp(`${second}`.slice(0, 20)))
    await writeFile(file, text)
    await list.refresh()
    assert.equal(list.damage, undefined)
  })

  test('file lost or invalid → takedowns stay; line removed → lifted', async () => {
    const file = join(folder, 'takedowns.deny')
    const list = await openList(file)
    await list.takeDown(first, no)
    const text = await readFile(file, 'utf8')
    for (const damage of [undefined, '', page, '\0'.repeat(200)]) {
      if (damage === undefined) await rm(file)
      else await writeFile(file, damage)
      await assert.rejects(list.refresh(), /is no longer the list of takedowns/)
      assert.ok(list.path(first, []))
    }
    await writeFile(file, text.replace(/^\/ipfs.*\n/m, ''))
    await list.refresh()
    assert.equal(list.path(first, []), undefined)
  })

  test('repeated takedown → the later one decides, also after reload', async () => {
    const list = await openList(join(folder, 'takedowns.deny'))
    const legal = { legal: true, reason: 'court-order' }
    await Promise.all([list.takeDown(first, no), list.takeDown(first, legal), list.takeDown(second, no)])
    for (const one of [list, await openList(join(folder, 'takedowns.deny'))]) {
      assert.equal(one.path(first, ['a'])?.legal, true)
      await one.refresh()
      assert.equal(one.path(first, [])?.reason, 'court-order')
    }
  })
})
