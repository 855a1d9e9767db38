// Paths, files and directories over blocks in memory; checked against the ecosystem's own reader, and against content
// that was made to be hard to read.
import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import * as dagPb from '@ipld/dag-pb'
import fc from 'fast-check'
import { UnixFS } from 'ipfs-unixfs'
import { CID } from 'multiformats/cid'
import { listDirectory } from '../../src/content/directory.ts'
import { readFile, readSmall } from '../../src/content/file.ts'
import { createJsonJudge, mayBeJson } from '../../src/content/json.ts'
import { parsePath, resolve } from '../../src/content/resolve.ts'
import { blockKey } from '../../src/core/cid.ts'
import { type FailureKind, isFailure } from '../../src/core/failure.ts'
import type { Expected } from '../../src/retrieval/session.ts'
import { addBlock, addNode, type BlockMap, distinctFiles, type Fixtures, fixtures, text } from '../support/fixtures.ts'
import { memorySession } from '../support/memory-session.ts'
import { runs } from '../support/property.ts'

let all: Fixtures
before(async () => {
  all = await fixtures()
})

const rejects = (work: Promise<unknown>, kind: FailureKind) => assert.rejects(work, (error) => isFailure(error, kind))
const open = (path: string, blocks = all.blocks) => resolve(memorySession(blocks), parsePath(path))

async function read(path: string, from?: number, to?: number, blocks = all.blocks) {
  const { entity } = await open(path, blocks)
  return Buffer.concat(await Array.fromAsync(readFile(memorySession(blocks), entity, from, to)))
}

describe('paths', () => {
  const cid = 'bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e'
  const refused: [name: string, path: string][] = [
    ['no CID', 'hello'],
    ['nothing', ''],
    ['a CID cut short', cid.slice(0, -1)],
    ['a digest of one byte', CID.decode(new Uint8Array([1, 0x55, 0x12, 1, 0xff])).toString()],
    ['an identity of 129 bytes', CID.decode(Uint8Array.from([1, 0x55, 0, 0x81, 1, ...new Uint8Array(129)])).toString()],
    [
      'a hash that proves nothing',
      CID.decode(Uint8Array.from([1, 0x55, 0xd5, 1, 16, ...new Uint8Array(16)])).toString(),
    ],
    ['a CID of a megabyte', `b${'a'.repeat(1_000_000)}`],
    ['a key', 'k51qzi5uqu5dhmzyv3zac033i7rl9hkgczxyl81lwoukda2htteop7d3x0y1mf'],
    ['percent without digits', `${cid}/%zz`],
    ['percent-encoded Latin-1', `${cid}/%fc`],
    ['dot segments', `${cid}/a/../b`],
    ['encoded dot segments', `${cid}/%2e%2E/b`],
    ['an encoded slash', `${cid}/a%2Fb`],
    ['an encoded NUL', `${cid}/a%00b`],
    ['a path of 9 KiB', `${cid}/${'a'.repeat(9000)}`],
    ['2,000 segments', `${cid}/${'a/'.repeat(2000)}`],
  ]
  for (const [name, path] of refused) {
    test(`${name} → refused`, () =>
      assert.throws(
        () => parsePath(path),
        (error) => isFailure(error, 'malformed'),
      ))
  }
  test('every base, correctly spelled → accepted', () => {
    const v1 = CID.parse(cid)
    for (const spelled of [
      cid,
      cid.toUpperCase(),
      `f${Buffer.from(v1.bytes).toString('hex')}`,
      `u${Buffer.from(v1.bytes).toString('base64url')}`,
    ]) {
      assert.ok(parsePath(spelled).cid.equals(v1), spelled)
    }
  })
  test('duplicate and trailing slashes → ignored', () => {
    assert.deepEqual(parsePath(`${cid}//a///b/`).segments, ['a', 'b'])
  })
})

describe('path resolution', () => {
  test('missing block → requested with everything the path needs', async () => {
    const session = memorySession(new Map())
    await rejects(
      resolve(session, parsePath(`${all.directory}/sub/big.bin`), { range: { from: 10, to: 20 } }),
      'not-found',
    )
    assert.deepEqual(session.asked[0]?.around, {
      cid: all.directory,
      segments: ['sub', 'big.bin'],
      scope: 'entity',
      range: { from: 10, to: 20 },
    })
  })
  test('document: link followed, value becomes the remainder', async () => {
    assert.equal((await read(`${all.cbor}/inside/file`)).toString(), 'hello, juror\n')
    assert.deepEqual((await open(`${all.cbor}/inside/number`)).remainder, ['inside', 'number'])
    await rejects(open(`${all.cbor}/inside/absent`), 'path-not-found')
    await rejects(open(`${all.cbor}/__proto__`), 'path-not-found')
    assert.equal((await open(`${all.dagJson}/file`)).entity.kind, 'file')
  })
})

describe('files', () => {
  test('ranges at and around every boundary → right bytes', async () => {
    const { cid, bytes } = all.files.chunkedV0
    const chunk = 256 * 1024
    for (const from of [0, 1, chunk - 1, chunk, chunk + 1, 2 * chunk, bytes.length - 1]) {
      for (const to of [from, from + 1, chunk, chunk + 1, 2 * chunk, bytes.length, bytes.length + 5]) {
        assert.deepEqual(
          new Uint8Array(await read(cid.toString(), from, to)),
          bytes.slice(from, Math.max(from, to)),
          `${from}-${to}`,
        )
      }
    }
  })
  test('slice of the event loop over → no leaf read', async () => {
    const blocks: BlockMap = new Map()
    const [file = assert.fail()] = await distinctFiles(blocks, 1, 2_500_000)
    const own = memorySession(blocks)
    const { entity } = await resolve(own, parsePath(String(file.cid)))
    const turn = Promise.withResolvers<void>()
    let peeks = 0
    const session = {
      ...own,
      yieldIfDue: () => (peeks === 1 ? turn.promise : undefined),
      peek(cid: CID) {
        const bytes = blocks.get(blockKey(cid)) ?? assert.fail()
        peeks++
        return { bytes, size: bytes.byteLength, tier: 'disk' }
      },
    }
    const read = Array.fromAsync(readFile(session, entity))
    await setImmediate()
    assert.equal(peeks, 1)
    peeks++
    turn.resolve()
    assert.equal(Buffer.concat(await read).byteLength, entity.size)
  })

  test('range → reads only the blocks it needs', async () => {
    const session = memorySession(all.blocks)
    const { entity } = await resolve(session, parsePath(all.files.deepV0.cid.toString()))
    await Array.fromAsync(readFile(session, entity, 1_500_000, 1_500_010))
    assert.ok(session.asked.length <= 5, `${session.asked.length} blocks`)
    assert.equal(session.asked.at(-1)?.around?.range?.from, 1_500_000)
  })
  test('small file in one piece; large one not', async () => {
    const { entity } = await open(all.files.json.cid.toString())
    assert.ok(isJson((await readSmall(memorySession(all.blocks), entity, 1000)) as Uint8Array))
    assert.equal(await readSmall(memorySession(all.blocks), entity, 10), undefined)
  })
})

describe('hostile content', () => {
  const file = (sizes: bigint[], data?: Uint8Array) => {
    const node = new UnixFS({ type: 'file', blockSizes: sizes, ...(data && { data }) })
    return node.marshal()
  }
  const link = (Hash: CID) => ({ Name: '', Hash, Tsize: 1 })

  test('six blocks that declare 2^70 bytes → refused', async () => {
    const blocks: BlockMap = new Map()
    let cid = addBlock(blocks, 0x55, new Uint8Array(1024))
    let size = 1024n
    for (let level = 0; level < 6; level++) {
      cid = addNode(blocks, {
        Data: file(Array.from({ length: 1024 }, () => size)),
        Links: Array.from({ length: 1024 }, () => link(cid)),
      })
      size *= 1024n
    }
    await rejects(read(cid.toString(), 0, undefined, blocks), 'malformed')
  })
  test('chain of 20,000 single links → refused', async () => {
    const blocks: BlockMap = new Map()
    let cid = addBlock(blocks, 0x55, text('end'))
    for (let level = 0; level < 20_000; level++) cid = addNode(blocks, { Data: file([3n]), Links: [link(cid)] })
    const session = memorySession(blocks)
    const { entity } = await resolve(session, parsePath(cid.toString()))
    await rejects(Array.fromAsync(readFile(session, entity)), 'malformed')
    assert.ok(session.asked.length < 300)
  })
  test('file of empty blocks → empty parts skipped', async () => {
    const blocks: BlockMap = new Map()
    const empty = addNode(blocks, { Data: file([]), Links: [] })
    const wide = addNode(blocks, {
      Data: file(Array.from({ length: 4000 }, () => 0n)),
      Links: Array.from({ length: 4000 }, () => link(empty)),
    })
    const last = addBlock(blocks, 0x55, text('x'))
    const root = addNode(blocks, { Data: file([0n, 1n]), Links: [link(wide), link(last)] })
    assert.equal((await read(root.toString(), 0, undefined, blocks)).toString(), 'x')
  })
  for (const [name, sizes] of [
    ['too large', [10n]],
    ['too small', [1n]],
  ] as [string, bigint[]][]) {
    test(`part declared ${name} → refused`, async () => {
      const blocks: BlockMap = new Map()
      const root = addNode(blocks, { Data: file(sizes), Links: [link(addBlock(blocks, 0x55, text('four')))] })
      await rejects(read(root.toString(), 0, undefined, blocks), 'malformed')
    })
  }
  test('links without sizes → refused', async () => {
    const blocks: BlockMap = new Map()
    const root = addNode(blocks, { Data: file([]), Links: [link(addBlock(blocks, 0x55, text('four')))] })
    await rejects(open(root.toString(), blocks), 'malformed')
  })
  const shard = (fanout: bigint, links: dagPb.PBLink[]) => ({
    Data: new UnixFS({ type: 'hamt-sharded-directory', data: new Uint8Array([1]), fanout, hashType: 0x22n }).marshal(),
    Links: links,
  })
  for (const fanout of [0n, 3n, 4n, 2048n, 2n ** 40n]) {
    test(`HAMT with a fan-out of ${fanout} → refused`, async () => {
      const blocks: BlockMap = new Map()
      await rejects(open(`${addNode(blocks, shard(fanout, []))}/name`, blocks), 'malformed')
    })
  }
  test('HAMT with repeated shards → bounded', async () => {
    const blocks: BlockMap = new Map()
    let cid = addNode(blocks, shard(256n, [{ Name: '00a', Hash: addBlock(blocks, 0x55, text('a')), Tsize: 1 }]))
    for (let level = 0; level < 4; level++) {
      cid = addNode(
        blocks,
        shard(
          256n,
          Array.from({ length: 256 }, (_, index) => ({
            Name: index.toString(16).toUpperCase().padStart(2, '0'),
            Hash: cid,
            Tsize: 1,
          })),
        ),
      )
    }
    const { entity } = await open(cid.toString(), blocks)
    await rejects(Array.fromAsync(listDirectory(memorySession(blocks), entity)), 'malformed')
  })
  test('block that is not dag-pb → refused', async () => {
    const blocks: BlockMap = new Map()
    await rejects(open(addBlock(blocks, dagPb.code, text('not dag-pb')).toString(), blocks), 'malformed')
  })
})

describe('directories', () => {
  const list = async (cid: CID, limits?: Parameters<typeof listDirectory>[2]) => {
    const session = memorySession(all.blocks)
    const { entity } = await resolve(session, parsePath(cid.toString()))
    return Array.fromAsync(listDirectory(session, entity, limits))
  }
  test('HAMT directory → next shards prefetched together', async () => {
    const session = memorySession(all.blocks)
    const expected = new Set<string>()
    const reader = {
      ...session,
      expect(next: Iterable<Expected>) {
        for (const { cid } of next) expected.add(blockKey(cid))
      },
    }
    const { entity } = await resolve(reader, parsePath(all.hamt.toString()))
    await Array.fromAsync(listDirectory(reader, entity))
    const shards = session.asked.map(({ cid }) => blockKey(cid))
    assert.ok(shards.length > 10)
    assert.ok(shards.filter((key) => expected.has(key)).length > shards.length / 2)
  })
  test('more entries than allowed → failure', async () => {
    await rejects(list(all.hamt, { maxEntries: 100, maxTypeLookups: 0 }), 'too-large')
  })
})

/** Added in pieces of so many bytes, which changes nothing. */
function isJson(bytes: Uint8Array, pieceBytes = Math.max(1, bytes.byteLength)): boolean {
  const judge = createJsonJudge()
  for (let at = 0; at < bytes.byteLength; at += pieceBytes) judge.add(bytes.subarray(at, at + pieceBytes))
  return judge.end()
}

/** What the rule means, by the platform's own parser, with no regard for memory and time. */
function isJsonByParser(bytes: Uint8Array): boolean {
  try {
    const parsed: unknown = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes))
    return typeof parsed === 'object' && parsed !== null
  } catch {
    return false
  }
}

describe('JSON detection', () => {
  const cases: [text: string | Uint8Array, expected: boolean][] = [
    ['{}', true],
    ['[]', true],
    [' \n{"a":1}\n', true],
    ['', false],
    ['1', false],
    ['"text"', false],
    ['null', false],
    ['{', false],
    ['{"a":1}x', false],
    ['<html>', false],
    ['\ufeff{}', true],
    ['\ufeff [1]\n', true],
    ['\ufeff', false],
    ['\ufeff1', false],
    ['\ufeff\ufeff{}', false],
    ['{}\ufeff', false],
    [new Uint8Array([0xef, 0xbb, 0x7b, 0x7d]), false],
    [new Uint8Array([0xff, 0xfe, 0x7b, 0x00, 0x7d, 0x00]), false],
    [new Uint8Array([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]), false],
  ]
  for (const [value, expected] of cases) {
    const bytes = typeof value === 'string' ? text(value) : value
    test(`${JSON.stringify(Buffer.from(bytes).toString())}: ${expected}`, () => assert.equal(isJson(bytes), expected))
  }

  const documents = [
    '{"a":[1,-0.5e+3,{"b":null}],"":"\\u00e9\\n é 😀","c":true}',
    ' [ [ ] , { } , "x" , false , 10 ] ',
    '\ufeff{"key":{"key":[[[1E9]]]}}',
    '[0,"\\ud800","\\\\\\"",12.25]',
  ]
  test('documents and mutations, any pieces → agrees with JSON.parse', () => {
    const change = fc.tuple(fc.nat(), fc.oneof(fc.nat(255), fc.constantFrom(...Buffer.from('{}[],:"\\\\u0e-.5 tn'))))
    fc.assert(
      fc.property(
        fc.constantFrom(...documents),
        fc.array(change, { maxLength: 3 }),
        fc.integer({ min: 1, max: 9 }),
        (json, changes, piece) => {
          const bytes = Buffer.from(json)
          for (const [at, byte] of changes) bytes[at % bytes.byteLength] = byte
          const expected = isJsonByParser(bytes)
          assert.equal(isJson(bytes), expected, bytes.toString('latin1'))
          assert.equal(isJson(bytes, piece), expected, bytes.toString('latin1'))
        },
      ),
      runs(3000),
    )
  })

  test('any bytes after a bracket → agrees with JSON.parse', () => {
    const letters = fc.constantFrom(
      ...Buffer.from('{}[],:""\\/u0019aF+-.eE \n\ttruefalsn'),
      0xc3,
      0xa9,
      0xed,
      0xa0,
      0xf0,
      0x9f,
      0x98,
      0x80,
      0xff,
    )
    fc.assert(
      fc.property(
        fc.constantFrom('[', '{', '["', '[-', '{"a":', '\ufeff['),
        fc.array(letters, { maxLength: 12 }),
        fc.constantFrom('', ']', '"]', '}'),
        (begin, middle, end) => {
          const bytes = Buffer.concat([Buffer.from(begin), Buffer.from(middle), Buffer.from(end)])
          assert.equal(isJson(bytes), isJsonByParser(bytes), bytes.toString('latin1'))
        },
      ),
      runs(3000),
    )
  })

  test('nesting as deep as the bytes', () => {
    const levels = 100_000
    assert.ok(isJson(Buffer.from('['.repeat(levels) + ']'.repeat(levels)), 4096))
    assert.ok(!isJson(Buffer.from('['.repeat(levels) + ']'.repeat(levels + 1)), 4096))
  })

  test('byte order mark split between pieces → may be JSON', () => {
    const whole = text('\ufeff{}')
    for (let cut = 0; cut <= whole.byteLength; cut++) assert.ok(mayBeJson(whole.subarray(0, cut)), `${cut} bytes`)
    assert.equal(mayBeJson(new Uint8Array([0xef, 0xbb, 0x20])), false)
  })
})
