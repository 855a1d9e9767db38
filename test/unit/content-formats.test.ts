// raw and the document formats: the stored bytes under the names they may go by, and nothing converted (IPIP-524).
import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import type { CID } from 'multiformats/cid'
import type { FormatName } from '../../src/content/formats/format.ts'
import { formats } from '../../src/content/formats/formats.ts'
import { parsePath, resolve } from '../../src/content/resolve.ts'
import { blockKey } from '../../src/core/cid.ts'
import { type FailureKind, isFailure } from '../../src/core/failure.ts'
import { addBlock, type BlockMap, type Fixtures, fixtures, text } from '../support/fixtures.ts'
import { memorySession } from '../support/memory-session.ts'

let all: Fixtures
before(async () => {
  all = await fixtures()
})

const rejects = (work: Promise<unknown>, kind: FailureKind) => assert.rejects(work, (error) => isFailure(error, kind))

async function render(path: string, name: FormatName, blocks: BlockMap = all.blocks) {
  const format = formats.get(name)
  assert.ok(format)
  const session = memorySession(blocks)
  const request = { query: new URLSearchParams(), parameters: {} }
  return format.render(session, await resolve(session, parsePath(path), format.wants(request)), request)
}

async function bytesOf(path: string, name: FormatName, from?: number, to?: number, blocks?: BlockMap) {
  const rendering = await render(path, name, blocks)
  assert.ok(rendering)
  return Buffer.concat(await Array.fromAsync(rendering.read(from ?? 0, to ?? rendering.size ?? 0)))
}

describe('raw', () => {
  test('path → its last block, and ranges of it', async () => {
    const block = all.blocks.get(blockKey(all.directory)) as Uint8Array
    assert.ok((await bytesOf(all.directory.toString(), 'raw')).equals(block))
    assert.ok((await bytesOf(all.directory.toString(), 'raw', 3, 9)).equals(block.subarray(3, 9)))
    assert.equal((await bytesOf(`${all.directory}/readme.txt`, 'raw')).toString(), 'read me')
    assert.equal((await bytesOf(all.identity.toString(), 'raw')).toString(), 'carried in the CID')
  })
  test('raw → its headers', async () => {
    const rendering = await render(all.directory.toString(), 'raw')
    assert.equal(rendering?.type, 'application/vnd.ipld.raw')
    assert.equal(rendering?.save?.filename, `${all.directory}.bin`)
    assert.deepEqual(
      [rendering?.etag, rendering?.save?.kind, rendering?.ranges],
      [`"${all.directory}.raw"`, 'attachment', true],
    )
    assert.equal(rendering?.size, all.blocks.get(blockKey(all.directory))?.byteLength)
  })
  test('malformed block → sent as raw', async () => {
    const blocks: BlockMap = new Map()
    const cid = addBlock(blocks, 0x70, text('not dag-pb'))
    assert.equal((await bytesOf(cid.toString(), 'raw', undefined, undefined, blocks)).toString(), 'not dag-pb')
  })
  test('raw → one block fetched', async () => {
    const session = memorySession(all.blocks)
    const wants = formats.get('raw')?.wants({ query: new URLSearchParams(), parameters: {} }) ?? {}
    await resolve(session, parsePath(all.files.deepV0.cid.toString()), wants)
    assert.deepEqual(
      session.asked.map(({ around }) => around?.scope),
      ['block'],
    )
  })
  test('value inside a document → not supported', async () => {
    await assert.rejects(
      render(`${all.cbor}/inside/number`, 'raw'),
      (error) => isFailure(error, 'unsupported') && error.facts['remainder'] === 'inside/number',
    )
  })
})

describe('documents', () => {
  const names: FormatName[] = ['dag-json', 'dag-cbor', 'json', 'cbor']
  const codecs = { 'dag-json': 0x0129, 'dag-cbor': 0x71, json: 0x0200, cbor: 0x51 } as const
  const allowed: Record<string, FormatName[]> = {
    'dag-json': ['dag-json', 'json'],
    'dag-cbor': ['dag-cbor', 'cbor'],
    json: ['json'],
    cbor: ['cbor'],
  }
  for (const [codec, code] of Object.entries(codecs)) {
    for (const name of names) {
      const isAllowed = allowed[codec]?.includes(name)
      test(`${codec} block as ${name} → ${isAllowed ? 'as stored' : '406'}`, async () => {
        const blocks: BlockMap = new Map()
        const stored = codec.endsWith('json') ? text('{ "b":1, "a":2 }') : new Uint8Array([0xa1, 0x61, 0x61, 0x01])
        const cid = addBlock(blocks, code, stored)
        if (!isAllowed) return rejects(render(cid.toString(), name, blocks), 'unsupported')
        const rendering = await render(cid.toString(), name, blocks)
        assert.ok((await bytesOf(cid.toString(), name, undefined, undefined, blocks)).equals(stored))
        assert.equal(rendering?.etag, `"${cid}.${name}"`)
        assert.match(rendering?.type ?? '', new RegExp(`[/.]${name}$`))
        assert.equal(rendering?.save?.kind, name.endsWith('json') ? 'inline' : 'attachment')
        assert.ok(rendering?.save?.filename.endsWith(name.endsWith('json') ? '.json' : '.cbor'))
      })
    }
  }
  test('files and directories → not acceptable as documents', async () => {
    for (const cid of [all.files.json.cid, all.files.jsonV0.cid, all.directory, all.symlink] as CID[]) {
      await rejects(render(cid.toString(), 'dag-json'), 'unsupported')
      await rejects(render(cid.toString(), 'dag-cbor'), 'unsupported')
      assert.equal(await render(cid.toString(), 'json'), undefined, 'json of a file is the answer without a format')
    }
  })
  test('path through links → the document', async () => {
    const { bytes } = all.files.hello
    assert.ok((await bytesOf(`${all.cbor}/inside/file`, 'raw')).equals(bytes))
    await rejects(render(`${all.cbor}/inside/number`, 'dag-cbor'), 'unsupported')
    await rejects(render(`${all.cbor}/inside/absent`, 'dag-cbor'), 'path-not-found')
  })
})
