// The name that blocks are kept under: always the same one, and small, because there are as many as there are blocks.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { base32 } from 'multiformats/bases/base32'
import { CID } from 'multiformats/cid'
import { create } from 'multiformats/hashes/digest'
import { blockKey, cidAt, hashCode, isProvable, parseCid, parseLeaf, proves } from '../../src/core/cid.ts'
import { createNodeMemory } from '../../src/ipld/node-memory.ts'
import { addDirectory, addNode, type BlockMap, noise, text } from '../support/fixtures.ts'

const cidOf = (digest: Uint8Array): CID => CID.createV1(0x55, create(0x12, digest))

test('block key is the multihash in base32, any length', () => {
  for (let length = 0; length < 70; length++) {
    const cid = cidOf(noise(length, length + 1))
    assert.equal(blockKey(cid), base32.encode(cid.multihash.bytes))
  }
})

// As `ipfs block put --mhtype=NAME` of Kubo 0.42 names the block `text\n`.
const ofText = {
  'sha2-256': 'bafkreifz42hbx2r6lmm4u2zptc3tuvfxhwvpvisqjbeqfyezqlqhuexhgm',
  'sha2-512':
    'bafkrgqafftzkljqiz2ig2cgq2woyluz3juzez4hrjark55zh44ao3wo4z7townqt4drs6bd6l43m7ufgoy2deust23dcn23nh47xjmup4oid2',
  'sha3-512':
    'bafkriqa23avfslspgxoka26hbf3aysq5xz4vp2smo4pq7nzv5nsp5uuquvfojez2l2fpkikapso6sk4vy7svcgxpg5g6rh6v6kghhottvnbf4',
  'sha3-384': 'bafkrkmggs5hpz6du3veg55qax26j33lempeqeot5ntyyoshj7jj6rvhk724lsjs6q5sfq6y5torwos3pyiga',
  'sha3-256': 'bafkrmigog4cuzym3ysf3lrjnnvqk43tkvdzl4a53qzscfwzwp4midg2gjq',
  'sha3-224': 'bafkrohb6qhf2z6h6ipjt2qqht5jai5bs6vf6s4zivvsuez4i7g4q',
  'shake-256':
    'bafkrsqg2v7dvjjgmoswpzeub6zsmhxnxlxigox43ivhjs7ovm5g4qcumv77rlgmckrddv7lbj6kteiayotpkrsbn6gfq4wgvithvpxy7iwdwk',
  'keccak-256': 'bafkrwicdpzabwpmzm5y3uoqru6ulazcnl4jy7x7s7lt4bfcuv2zmazsknu',
  'keccak-512':
    'bafkr2qe46zgfhzlrjzdtip4e23mqaduvir5ufja2pfiuy2wylom4qwi4o7iwwlqqagrwburmyjcuyk6upudset7y2khqycqpcdvysolyoich6',
  blake3: 'bafkr4iccc45k7fi3cdnxelgebq542vonws424febcsu6cfolotiy465yym',
  'dbl-sha2-256': 'bafkvmidxs4ca3balwk5xt7vclougybtfr5pb2e7uljvw6lhzk5togncnta',
  'blake2b-160': 'bafkzjzacctjjb7q73qoegpagh2son4bsd4bsbif6wy',
  'blake2b-256': 'bafk2bzaced63wlstcuqhh3vyfzneqporibccj2ypsxhtsz3wglsor3mimjtw6',
  'blake2b-512':
    'bafk4bzaciagorcgml3voa346nhw5z2l6b6m4h5gfzino5ku67ymg3addz4p4xthg4mdbcwcchge247zeu3lzvgez7b5hzi7wcd7pexyn5qkocas5',
  'blake2s-256': 'bafk6bzaced5macq6mfraxyh2uzb4kx53gpxitkzwyygjwtwxvowuc2b5lk36o',
}

test("Kubo's hash functions → verified", () => {
  for (const [name, spelled] of Object.entries(ofText)) {
    const cid = CID.parse(spelled)
    assert.equal(hashCode(name), cid.multihash.code, name)
    assert.ok(proves(cid, text('text\n')), name)
    assert.ok(!proves(cid, text('text')), name)
  }
})

test('SHA-1, truncated digests, unknown functions → never verified', () => {
  const sha1 = CID.parse('bafkrcffkpbnnzi7437qyqsxiidqty3jjjisbj2a')
  const shake128 = CID.createV1(0x55, create(0x18, new Uint8Array(32)))
  for (const cid of [sha1, shake128, CID.createV1(0x55, create(0x16, new Uint8Array(20)))]) assert.ok(!isProvable(cid))
})

test('base256emoji, plain and percent-encoded → the CID', () => {
  const emoji = '🚀🪐👀💻😅🍺🍑🤞🙏🐸🌸😩🤣😷🙃👌🤫✈✨💋✈😌😰🍎🧡😒😄😀☄💧👈🎂💧💐💻❄😎'
  for (const spelled of [emoji, encodeURIComponent(emoji), encodeURIComponent(emoji).toLowerCase()])
    assert.equal(parseCid(spelled)?.toString(), ofText['sha2-256'])
  for (const bad of ['🚀', `${emoji}a`, '%F0%9F%9A%80%F0', encodeURIComponent(encodeURIComponent(emoji))])
    assert.equal(parseCid(bad), undefined)
})

test('key memory is close to its length', () => {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  const keys = new Set<string>()
  const digest = new Uint8Array(32)
  const most = 20_000
  collect()
  const before = process.memoryUsage().heapUsed
  for (let index = 0; index < most; index++) {
    new DataView(digest.buffer).setUint32(0, index)
    keys.add(blockKey(cidOf(digest)))
  }
  collect()
  const each = (process.memoryUsage().heapUsed - before) / most
  assert.equal(keys.size, most)
  assert.ok(each < 300, `${each.toFixed(0)} bytes a key`)
})

test('fast leaf parser agrees with the general parser', () => {
  for (let seed = 0; seed < 200; seed++) {
    const text = cidOf(noise(32, seed)).toString()
    const [quick, usual] = [parseLeaf(text), parseCid(text)]
    assert.ok(quick && usual?.equals(quick))
    assert.deepEqual([quick.toString(), blockKey(quick)], [text, blockKey(usual as CID)])
    for (const other of [
      text.slice(0, -1),
      `${text}a`,
      text.toUpperCase(),
      text.replace(/.$/, '1'),
      `${text.slice(0, 30)}é${text.slice(31)}`,
    ])
      assert.equal(parseLeaf(other), undefined, other)
    // The last letter holds two bits that mean nothing: they have one spelling.
    const last = 'abcdefghijklmnopqrstuvwxyz234567'.indexOf(text.slice(-1))
    const odd = text.slice(0, -1) + 'abcdefghijklmnopqrstuvwxyz234567'[last | 1]
    assert.equal(parseLeaf(odd), undefined)
    assert.equal(parseCid(odd), undefined)
  }
  for (const cid of [CID.createV1(0x70, create(0x12, noise(32, 1))), CID.createV1(0x55, create(0x13, noise(64, 1)))])
    assert.equal(parseLeaf(cid.toString()), undefined)
})

test("CID in a block → the library's, without own memory", () => {
  const sha256 = create(0x12, noise(32, 1))
  const usual = [CID.createV0(sha256), ...[0x55, 0x70, 0x71].map((code) => CID.createV1(code, sha256))]
  const others = [
    CID.createV1(0x0129, sha256),
    CID.createV1(0x55, create(0x12, noise(31, 1))),
    CID.createV1(0x55, create(0x1b, noise(32, 1))),
    CID.createV1(0x55, create(0x13, noise(64, 1))),
    ...[0, 1, 31, 32, 33, 34, 35].map((length) => CID.createV1(0x55, create(0, noise(length, 1)))),
  ]
  for (const [index, cid] of [...usual, ...others].entries()) {
    const block = Buffer.concat([noise(7, 2), cid.bytes, noise(9, 3)])
    const read = cidAt(block, 7, 7 + cid.bytes.byteLength)
    assert.deepEqual(read, cid)
    if (index >= usual.length) continue
    for (const { buffer } of [read.bytes, read.multihash.bytes, read.multihash.digest])
      assert.equal(buffer, block.buffer)
  }
  for (const { bytes } of [...usual, ...others]) {
    assert.throws(() => cidAt(bytes, 0, bytes.byteLength - 1))
    assert.throws(() => cidAt(Buffer.concat([bytes, bytes]), 0, bytes.byteLength + 1))
    assert.throws(() => cidAt(Buffer.from(bytes).subarray(0, 3), 0, bytes.byteLength))
  }
})

test('many links → decoded once; malformed → refused each time', async () => {
  const blocks: BlockMap = new Map()
  const names = Object.fromEntries(
    Array.from({ length: 50 }, (_, index) => [`file ${index}`, text(`content ${index}`)]),
  )
  const cid = await addDirectory(blocks, names)
  const bytes = blocks.get(blockKey(cid)) ?? assert.fail()
  const { readNode } = createNodeMemory()
  const large = new Uint8Array(100_000)
  large.set(bytes)
  const node = readNode(cid, large.subarray(0, bytes.byteLength))
  assert.equal(node.links.length, 50)
  assert.ok((node.links.at(0)?.Hash.bytes.buffer.byteLength ?? 0) < large.byteLength)
  assert.equal(readNode(cid, bytes), node)
  // Of a quarter of a million links none is kept as an object.
  const wide = addNode(blocks, { Links: Array.from({ length: 30_000 }, () => ({ Hash: cidOf(noise(32, 1)) })) })
  const wideBytes = blocks.get(blockKey(wide)) ?? assert.fail()
  assert.equal(readNode(wide, wideBytes), readNode(wide, wideBytes))
  const other = cidOf(noise(32, 1))
  for (let turn = 0; turn < 2; turn++) assert.throws(() => readNode(other, noise(2000, 1)), /not a dag-pb block/)
})

test('readOnce uses prepared nodes and leaves them cached', async () => {
  const blocks: BlockMap = new Map()
  const linked = (count: number, seed: number): CID =>
    addNode(blocks, { Links: Array.from({ length: count }, (_, at) => ({ Hash: cidOf(noise(32, seed + at)) })) })
  const bytesOf = (cid: CID): Uint8Array => blocks.get(blockKey(cid)) ?? assert.fail()
  const { readNode, readOnce, prepare } = createNodeMemory()
  const large = linked(20_000, 1)
  await prepare(large, bytesOf(large), () => undefined)
  const prepared = readNode(large, bytesOf(large))
  for (let seed = 0; seed < 80; seed++) {
    const small = linked(174, 1000 * seed)
    assert.notEqual(readOnce(small, bytesOf(small)), readOnce(small, bytesOf(small)))
  }
  assert.equal(readOnce(large, bytesOf(large)), prepared)
})

test('large node prepared in slices → same result or refusal', async () => {
  const blocks: BlockMap = new Map()
  const cid = addNode(blocks, { Links: Array.from({ length: 30_000 }, () => ({ Hash: cidOf(noise(32, 1)) })) })
  const bytes = blocks.get(blockKey(cid)) ?? assert.fail()
  const { readNode, prepare } = createNodeMemory()
  let turns = 0
  const yieldIfDue = () => {
    turns++
    return undefined
  }
  const large = new Uint8Array(2 * bytes.byteLength)
  large.set(bytes)
  await prepare(cid, large.subarray(0, bytes.byteLength), yieldIfDue)
  assert.ok(turns >= 3, `${turns} turns`)
  turns = 0
  await prepare(cid, bytes, yieldIfDue)
  assert.equal(turns, 0, 'once')
  const another = createNodeMemory()
  await Promise.all(Array.from({ length: 20 }, () => another.prepare(cid, bytes, yieldIfDue)))
  assert.ok(turns < 10, `${turns} turns for all who wait for it`)
  const prepared = readNode(cid, bytes)
  assert.equal(readNode(cid, bytes), prepared)
  assert.deepEqual(
    [...prepared.links].map(({ Hash }) => String(Hash)).slice(-2),
    Array(2).fill(String(cidOf(noise(32, 1)))),
  )
  assert.ok((prepared.links.at(0)?.Hash.bytes.buffer.byteLength ?? 0) < large.byteLength)
  const other = cidOf(noise(32, 1))
  await prepare(other, noise(2000, 1), yieldIfDue)
  assert.throws(() => readNode(other, noise(2000, 1)), /not a dag-pb block/)
})
