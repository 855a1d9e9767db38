// Archives: read back by a reader that knows only what POSIX says about tar, and refused where unpacking them would write
// somewhere else.
import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import type { PBLink } from '@ipld/dag-pb'
import { UnixFS } from 'ipfs-unixfs'
import type { CID } from 'multiformats/cid'
import { type TarMember, tar, tarHeader } from '../../src/content/formats/tar.ts'
import { parsePath, resolve } from '../../src/content/resolve.ts'
import { blockKey } from '../../src/core/cid.ts'
import { type FailureKind, isFailure } from '../../src/core/failure.ts'
import {
  addBlock,
  addCbor,
  addNode,
  addSymlink,
  type BlockMap,
  type Fixtures,
  fixtures,
  text,
} from '../support/fixtures.ts'
import { memorySession } from '../support/memory-session.ts'

let all: Fixtures
before(async () => {
  all = await fixtures()
})

const rejects = (work: Promise<unknown>, kind: FailureKind) => assert.rejects(work, (error) => isFailure(error, kind))
const request = { query: new URLSearchParams(), parameters: {} }

async function render(path: string, blocks: BlockMap = all.blocks) {
  const session = memorySession(blocks)
  const resolution = await resolve(session, parsePath(path), tar.wants(request))
  const rendering = await tar.render(session, resolution, request)
  assert.ok(rendering)
  return { rendering, session }
}

type Read = { path: string; flag: string; bytes: Buffer; target: string; mode: number; mtime: number; size: number }

function readTar(archive: Buffer): Read[] {
  const members: Read[] = []
  let pax: Record<string, string> = {}
  let at = 0
  for (; at < archive.length && archive[at] !== 0; ) {
    const header = archive.subarray(at, at + 512)
    const field = (from: number, length: number) => header.toString('latin1', from, from + length).replace(/\0.*$/s, '')
    const number = (from: number, length: number) => Number.parseInt(field(from, length).trim() || '0', 8)
    const sum = header.reduce((total, byte, index) => total + (index >= 148 && index < 156 ? 0x20 : byte), 0)
    assert.equal(number(148, 8), sum, 'the checksum')
    assert.equal(header.toString('latin1', 257, 265), 'ustar\x0000')
    const size = Number(pax['size'] ?? number(124, 12))
    const bytes = archive.subarray(at + 512, at + 512 + size)
    const padded = Math.ceil(size / 512) * 512
    assert.ok(
      archive.subarray(at + 512 + size, at + 512 + padded).every((byte) => byte === 0),
      'padding',
    )
    at += 512 + padded
    if (field(156, 1) === 'x') {
      pax = readPax(bytes)
      continue
    }
    const name = [field(345, 155), field(0, 100)].filter((part) => part !== '').join('/')
    members.push({
      path: pax['path'] ?? name,
      flag: field(156, 1),
      bytes,
      target: pax['linkpath'] ?? field(157, 100),
      mode: number(100, 8),
      mtime: Number(pax['mtime'] ?? number(136, 12)),
      size,
    })
    pax = {}
  }
  assert.ok(archive.length - at >= 1024 && archive.subarray(at).every((byte) => byte === 0), 'the end')
  return members
}

function readPax(bytes: Buffer): Record<string, string> {
  const records: Record<string, string> = {}
  for (let at = 0; at < bytes.length; ) {
    const space = bytes.indexOf(' ', at)
    const length = Number(bytes.toString('latin1', at, space))
    const [, key, value] = /^([^=]+)=(.*)\n$/s.exec(bytes.toString('utf8', space + 1, at + length)) ?? []
    assert.ok(key !== undefined && value !== undefined, 'a pax record')
    records[key] = value
    at += length
  }
  return records
}

async function unpacked(path: string, blocks?: BlockMap) {
  const { rendering } = await render(path, blocks)
  const archive = Buffer.concat(await Array.fromAsync(rendering.read(0, 0)))
  return { members: readTar(archive), length: archive.length, size: rendering.size }
}

const directory = (blocks: BlockMap, links: [name: string, cid: CID][]) =>
  addNode(blocks, {
    Data: new UnixFS({ type: 'directory' }).marshal(),
    Links: links.map(([Name, Hash]): PBLink => ({ Name, Hash, Tsize: 1 })),
  })

describe('content of an archive', () => {
  test('file → archive with it, named by its CID', async () => {
    const { cid, bytes } = all.files.chunkedV0
    const { members, length, size } = await unpacked(cid.toString())
    assert.deepEqual(
      members.map(({ path, flag }) => [path, flag]),
      [[cid.toString(), '0']],
    )
    assert.ok(members[0]?.bytes.equals(bytes))
    assert.equal(size, length)
  })
  test('directory → archive with every name and byte', async () => {
    const { members, length, size } = await unpacked(all.directory.toString())
    const files = members.filter(({ flag }) => flag === '0')
    const expected = Object.entries(all.names).map(([name, bytes]) => [`${all.directory}/${name}`, bytes] as const)
    assert.deepEqual(files.map(({ path }) => path).sort(), expected.map(([path]) => path).sort())
    for (const [path, bytes] of expected) assert.ok(files.find((file) => file.path === path)?.bytes.equals(bytes), path)
    assert.ok(members.some(({ path, flag }) => flag === '5' && path === `${all.directory}/sub/`))
    assert.equal(size, length, 'the length that was said')
  })
  test('HAMT directory → archive of unknown length', async () => {
    const { members, size } = await unpacked(all.hamt.toString())
    assert.equal(members.length, 1501)
    assert.equal(size, undefined)
  })
  test('symlink → symlink of the archive', async () => {
    const { members } = await unpacked(all.linked.toString())
    assert.deepEqual(members.map(({ path, flag, target }) => [path, flag, target])[1], [
      `${all.linked}/link`,
      '2',
      'hello.txt',
    ])
  })
  test('modes without setuid, and times → kept', async () => {
    const blocks: BlockMap = new Map()
    const data = new UnixFS({ type: 'file', data: text('x'), mode: 0o4755, mtime: { secs: 1_700_000_000n } }).marshal()
    const { members } = await unpacked(addNode(blocks, { Data: data, Links: [] }).toString(), blocks)
    assert.deepEqual([members[0]?.mode, members[0]?.mtime], [0o755, 1_700_000_000])
  })
  test('document in a directory → file', async () => {
    const blocks: BlockMap = new Map()
    const document = addCbor(blocks, { a: 1 })
    const { members } = await unpacked(directory(blocks, [['a.cbor', document]]).toString(), blocks)
    assert.ok(members[1]?.bytes.equals(blocks.get(blockKey(document)) as Uint8Array))
  })
  test('single document → not acceptable', () => rejects(render(all.cbor.toString()), 'unsupported'))
  test('repeated → same bytes', async () => {
    const { rendering } = await render(all.directory.toString())
    const [one, other] = await Promise.all([
      Array.fromAsync(rendering.read(0, 0)),
      Array.fromAsync(rendering.read(0, 0)),
    ])
    assert.ok(Buffer.concat(one).equals(Buffer.concat(other)))
  })
  test('not in a tier → not fetched for the length', async () => {
    const blocks = new Map(all.blocks)
    const first = await render(all.directory.toString())
    const child = first.session.asked.at(-1)?.cid as CID
    blocks.delete(blockKey(child))
    const { rendering } = await render(all.directory.toString(), blocks)
    assert.equal(rendering.size, undefined)
    await rejects(Array.fromAsync(rendering.read(0, 0)), 'not-found')
  })
})

describe('headers', () => {
  const roundTrip = (member: Partial<TarMember>): Read => {
    const full: TarMember = { path: 'a', type: 'file', size: 0, mode: 0o644, mtime: 0, ...member }
    const [read] = readTar(Buffer.concat([tarHeader(full), Buffer.alloc(1024)]))
    assert.ok(read)
    return read
  }
  const paths = [
    'x'.repeat(100),
    'x'.repeat(101),
    `${'d'.repeat(150)}/${'f'.repeat(100)}`,
    `${'d'.repeat(156)}/f`,
    `${'d/'.repeat(90)}f`,
    'ą/ę/file-źł.txt',
    'line\nbreak',
    `${'ä'.repeat(300)}/b`,
    '99 '.repeat(33),
  ]
  for (const path of paths)
    test(`path ${JSON.stringify(path.slice(0, 30))} of ${path.length} → fits`, () =>
      assert.equal(roundTrip({ path }).path, path))
  test('directory whose slash exceeds the name field → fits', () => {
    assert.equal(roundTrip({ path: 'x'.repeat(100), type: 'directory' }).path, `${'x'.repeat(100)}/`)
  })
  for (const target of ['t'.repeat(100), 't'.repeat(101), '../ü']) {
    test(`symlink to ${target.slice(0, 10)}… of ${target.length} → fits`, () =>
      assert.equal(roundTrip({ type: 'symlink', target }).target, target))
  }
  test('size of 9 GiB → fits', () => {
    const header = tarHeader({ path: 'big', type: 'file', size: 9 * 1024 ** 3, mode: 0o644, mtime: 0 })
    assert.equal(readPax(Buffer.from(header.subarray(512, 1024)).subarray(0, 19))['size'], String(9 * 1024 ** 3))
  })
  test('time before 1970 → fits', () => assert.equal(roundTrip({ mtime: -5 }).mtime, -5))
})

describe('paths that leave the archive', () => {
  const hidden = (blocks: BlockMap, name: string) =>
    directory(blocks, [['safe', directory(blocks, [[name, addBlock(blocks, 0x55, text('x'))]])]])
  for (const name of [
    '../../x',
    '../../../etc/passwd',
    '/etc/passwd',
    '',
    'a\0b',
    '..\\..\\x',
    '../..',
    'deep/../../../../x',
  ]) {
    test(`${JSON.stringify(name)} → refused before the first byte`, async () => {
      const blocks: BlockMap = new Map()
      await rejects(render(hidden(blocks, name).toString(), blocks), 'malformed')
    })
  }
  test("sibling with the archive's name as prefix → refused", async () => {
    const blocks: BlockMap = new Map()
    const file = addBlock(blocks, 0x55, text('x'))
    const root = directory(blocks, [['../bafy', file]])
    await rejects(render(root.toString(), blocks), 'malformed')
  })
  test('.. that stays inside → normalized', async () => {
    const blocks: BlockMap = new Map()
    const root = hidden(blocks, '../file')
    const { members } = await unpacked(root.toString(), blocks)
    assert.equal(members.at(-1)?.path, `${root}/file`)
  })
  test('path through a symlink of the archive → refused', async () => {
    const blocks: BlockMap = new Map()
    const file = addBlock(blocks, 0x55, text('x'))
    for (const links of [
      [
        ['a', addSymlink(blocks, '/etc')],
        ['a', directory(blocks, [['passwd', file]])],
      ],
      [
        ['a', addSymlink(blocks, '/etc')],
        ['a/passwd', file],
      ],
      [
        ['a', addSymlink(blocks, '/etc/passwd')],
        ['a', file],
      ],
      [
        ['a', addSymlink(blocks, '/etc')],
        ['b', directory(blocks, [['../a/passwd', file]])],
      ],
    ] as [string, CID][][]) {
      await rejects(render(directory(blocks, links).toString(), blocks), 'malformed')
    }
  })
})

describe('hostile trees', () => {
  test('endless directories → refused', async () => {
    const blocks: BlockMap = new Map()
    let cid = directory(blocks, [])
    for (let level = 0; level < 300; level++) cid = directory(blocks, [['d', cid]])
    const { rendering } = await render(cid.toString(), blocks)
    await rejects(Array.fromAsync(rendering.read(0, 0)), 'malformed')
  })
  test('file that declares more than the limit → refused', async () => {
    const blocks: BlockMap = new Map()
    const leaf = addBlock(blocks, 0x55, text('x'))
    const data = new UnixFS({ type: 'file', blockSizes: [2n ** 50n] }).marshal()
    const bomb = addNode(blocks, { Data: data, Links: [{ Name: '', Hash: leaf, Tsize: 1 }] })
    await rejects(render(directory(blocks, [['bomb', bomb]]).toString(), blocks), 'malformed')
  })
  test('file shorter than declared → never looks complete', async () => {
    const blocks: BlockMap = new Map()
    const leaf = addBlock(blocks, 0x55, text('x'))
    const data = new UnixFS({ type: 'file', blockSizes: [100n] }).marshal()
    const liar = addNode(blocks, { Data: data, Links: [{ Name: '', Hash: leaf, Tsize: 1 }] })
    const { rendering } = await render(directory(blocks, [['liar', liar]]).toString(), blocks)
    await rejects(Array.fromAsync(rendering.read(0, 0)), 'malformed')
  })
})
