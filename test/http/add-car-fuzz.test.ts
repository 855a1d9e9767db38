// CARs that were changed on their way in: an upload that is acknowledged is whole and proved by the blocks that came with it.
import assert from 'node:assert/strict'
import { after, before, describe, it } from 'node:test'
import * as dagCbor from '@ipld/dag-cbor'
import fc from 'fast-check'
import { varint } from 'multiformats'
import { CID } from 'multiformats/cid'
import { type Block, blockKey, proves } from '../../src/core/cid.ts'
import { readCar } from '../../src/core/wire/car-stream.ts'
import { linksOf } from '../../src/ipld/block-links.ts'
import { carSection } from '../../src/ipld/car.ts'
import { type Adding, below, idle, multipart, post, startAdding } from '../support/adding.ts'
import { anyChanges, changed } from '../support/changes.ts'
import { addCbor, addDirectory, type BlockMap, noise } from '../support/fixtures.ts'
import { runs } from '../support/property.ts'

const content: BlockMap = new Map()
const directory = await addDirectory(content, { a: noise(40, 1), b: noise(30, 2) })
const root = addCbor(content, { directory, twice: directory })
const blockOf = (cid: CID): Block => ({ cid, bytes: content.get(blockKey(cid)) as Uint8Array })

/** Each once, parents first. */
function blocksBelow(cid: CID, found = new Map<string, Block>()): Block[] {
  const block = blockOf(cid)
  if (!found.has(blockKey(cid))) {
    found.set(blockKey(cid), block)
    for (const link of linksOf(block)) blocksBelow(link, found)
  }
  return [...found.values()]
}

const blocks = blocksBelow(root)
const sections = blocks.map((block) => Buffer.concat([...carSection(block)]))

function headerOf(value: unknown): Buffer {
  const bytes = dagCbor.encode(value)
  const length = Buffer.alloc(varint.encodingLength(bytes.byteLength))
  return Buffer.concat([varint.encodeTo(bytes.byteLength, length), bytes])
}

const whole = Buffer.concat([headerOf({ roots: [root], version: 1 }), ...sections])

/** The blocks of a CAR that its own CIDs prove, as far as it can be read. */
async function provedIn(car: Uint8Array): Promise<Map<string, Uint8Array>> {
  const found = new Map<string, Uint8Array>()
  async function* chunks() {
    yield car
  }
  try {
    for await (const { cid, bytes } of readCar(chunks())) if (proves(cid, bytes)) found.set(blockKey(cid), bytes)
  } catch {
    // It ends in the middle.
  }
  return found
}

function assertWhole(cid: CID, proved: ReadonlyMap<string, Uint8Array>): void {
  const bytes = cid.multihash.code === 0 ? cid.multihash.digest : proved.get(blockKey(cid))
  assert.ok(bytes, `${cid} is acknowledged, and the CAR does not prove it`)
  for (const link of linksOf({ cid, bytes })) assertWhole(link, proved)
}

const anyHeader = fc.oneof(
  fc.array(fc.constantFrom(...blocks.map(({ cid }) => cid)), { maxLength: 3 }).map((roots) => ({ roots, version: 1 })),
  fc.constantFrom<unknown>(
    ...[null, [], {}, { version: 1 }, { roots: [root] }, { roots: root, version: 1 }, { roots: [root], version: 2 }],
    ...[
      { roots: [1, root, 'x'], version: 1 },
      { roots: [root], version: 1, more: 'x' },
    ],
    ...[
      { roots: [CID.parse('bafkqaaa')], version: 1 },
      { roots: [CID.parse('bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku')], version: 1 },
    ],
  ),
)
/** Some of the sections, in any order, perhaps several times. */
const bySections = fc
  .tuple(anyHeader, fc.oneof(fc.shuffledSubarray(sections, { minLength: 2 }), fc.constant(sections)), anyChanges(1))
  .map(([header, some, changes]) => changes.reduce(changed, Buffer.concat([headerOf(header), ...some])))
const byBytes = anyChanges(3, Buffer.of(0, 1, 0x12, 0x20, 0x55, 0x70, 0x71)).map((changes) =>
  changes.reduce(changed, whole),
)

describe('fuzzed CAR', () => {
  let adding: Adding
  before(async () => {
    adding = await startAdding({ maxBytes: 200_000 })
  })
  after(() => adding?.close())

  it('refused, or acknowledged with CIDs that its blocks prove', async () => {
    const send = (body: Uint8Array) => post(`${adding.url}/add?format=car`, multipart([{ fileName: 'a.car', body }]))
    const tally = new Map<number, number>()
    const property = fc.asyncProperty(fc.oneof(bySections, byBytes), async (car) => {
      const { status, body, json } = await send(car)
      tally.set(status, (tally.get(status) ?? 0) + 1)
      assert.ok([200, 400, 413].includes(status), `${status} ${body}`)
      if (status !== 200) return
      const proved = await provedIn(car)
      const cids = (json['cids'] as string[]).map((path) => CID.parse(path.replace('/ipfs/', '')))
      assert.ok(cids.length > 0)
      for (const cid of cids) assertWhole(cid, proved)
    })
    await fc.assert(property, runs(40))
    for (const status of [200, 400]) assert.ok((tally.get(status) ?? 0) > 3, `${tally.get(status)} of ${status}`)
    await idle(adding)
    assert.deepEqual(await below(`${adding.data}/uploads`), [])
    assert.deepEqual(
      adding.log.filter(({ event }) => event === 'internal'),
      [],
    )
  })
})
