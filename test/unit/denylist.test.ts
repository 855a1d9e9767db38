// Compact denylists (IPIP-383): each kind of rule, as the specification words it, on lists of our own.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { describe, test } from 'node:test'
import { base58btc } from 'multiformats/bases/base58'
import { CID } from 'multiformats/cid'
import { create } from 'multiformats/hashes/digest'
import { createDenylist, createDenylists } from '../../src/deny/denylist.ts'
import { workMs } from '../support/work.ts'

const cidOf = (text: string, code = 0x55): CID =>
  CID.createV1(code, create(0x12, createHash('sha256').update(text).digest()))
const bad = cidOf('bad', 0x70)
const other = cidOf('other', 0x70)
const sha256 = (text: string): Buffer => createHash('sha256').update(text).digest()
const multihash = (cid: CID): string => base58btc.baseEncode(cid.multihash.bytes)

function denies(text: string, cid: CID, path = ''): boolean {
  const list = createDenylist('test')
  assert.deepEqual(list.add(text), [])
  return createDenylists(() => [list]).path(cid, path === '' ? [] : path.split('/')) !== undefined
}

/** As the gateway asks. */
function deniesName(text: string, name: string, path: string): boolean {
  const list = createDenylist('test')
  assert.deepEqual(list.add(text), [])
  return createDenylists(() => [list]).belowName(name, path === '' ? [] : path.split('/')) !== undefined
}

type Row = [rule: string, asked: CID, path: string, denied: boolean]

describe('denylist rules', () => {
  const rows: Row[] = [
    [`/ipfs/${bad}`, bad, '', true],
    [`/ipfs/${bad}`, other, '', false],
    // The multihash counts, not how the CID is written or which codec it has.
    [`/ipfs/${bad.toV0()}`, bad, '', true],
    [`/ipfs/${bad}`, cidOf('bad', 0x55), '', true],
    // A CID alone is that CID; paths below it are their own.
    [`/ipfs/${bad}`, bad, 'a', false],
    [`/ipfs/${bad}/*`, bad, '', true],
    [`/ipfs/${bad}/*`, bad, 'a/b', true],
    [`/ipfs/${bad}/a`, bad, 'a', true],
    [`/ipfs/${bad}/a`, bad, 'a/b', false],
    [`/ipfs/${bad}/a/*`, bad, 'a/b', true],
    [`/ipfs/${bad}/a*`, bad, 'about', true],
    [`/ipfs/${bad}/a%20b`, bad, 'a b', true],
    // What is no percent-encoding is meant as it stands.
    [`/ipfs/${bad}/a%20b/100%`, bad, 'a b/100%', true],
    // The last rule that matches decides.
    [`/ipfs/${bad}/*\n!/ipfs/${bad}/good`, bad, 'good', false],
    [`/ipfs/${bad}/*\n!/ipfs/${bad}/good`, bad, 'evil', true],
    [`!/ipfs/${bad}/good\n/ipfs/${bad}/*`, bad, 'good', true],
    // Double hashes: of the older lists in hex, and as a multihash.
    [`//${sha256(`${bad}/`).toString('hex')}`, bad, '', true],
    [`//${sha256(`${bad}/a/b`).toString('hex')}`, bad, 'a/b', true],
    [`//${sha256(`${bad}/a/b`).toString('hex')}`, bad, 'a', false],
    [`//${base58btc.baseEncode(create(0x12, sha256(multihash(bad))).bytes)}`, bad, '', true],
    [`//${base58btc.baseEncode(create(0x12, sha256(`${multihash(bad)}/a`)).bytes)}`, bad, 'a', true],
    [`//${base58btc.baseEncode(create(0x12, sha256(multihash(bad))).bytes)}`, other, '', false],
    // What stands around rules.
    [`version: 1\nname: ours\nhints:\n  reason: test\n---\n# a comment\n\n/ipfs/${bad} reason=dmca`, bad, '', true],
    // An empty file or folder is in lists by mistake only.
    ['/ipfs/bafkqaaa', CID.parse('bafkqaaa'), '', false],
  ]
  for (const [rule, asked, path, denied] of rows)
    test(`${rule.replace(/\s+/g, ' ').slice(0, 90)} ${denied ? 'denies' : 'lets'} ${asked === bad ? 'it' : asked}/${path}`, () =>
      assert.equal(denies(rule, asked, path), denied))

  const key = 'k51qzi5uqu5dk3v4rmjber23h16xnr23bsggmqqil9z2gduiis5se8dht36dam'
  const peer = '12D3KooWLQzUv2FHWGVPXTXSZpdHs7oHbXub2G5WC8Tx4NQhyd2d'
  const names: [rule: string, name: string, path: string, denied: boolean][] = [
    [`/ipns/${key}`, peer, '', true],
    [`/ipns/${peer}`, key, '', true],
    ['/ipns/Bad.example', 'bad.example', '', true],
    ['/ipns/bad.example', 'bad-example', '', true],
    ['/ipns/bad.example', 'good.example', '', false],
    ['/ipns/bad.example/*', 'bad.example', 'a', true],
    [`//${sha256('bad.example/').toString('hex')}`, 'bad.example', '', true],
    // A name is denied before it is resolved: with its paths, but for exceptions that come later.
    ['/ipns/bad.example', 'bad.example', 'a/b', true],
    [`/ipns/${key}`, peer, 'a', true],
    [`//${sha256('bad.example/').toString('hex')}`, 'bad.example', 'a', true],
    ['/ipns/bad.example', 'good.example', 'a', false],
    ['/ipns/bad.example/a', 'bad.example', 'b', false],
    ['/ipns/bad.example/a*', 'bad.example', 'b', false],
    ['/ipns/bad.example\n!/ipns/bad.example/good', 'bad.example', 'good', false],
    ['/ipns/bad.example/*\n!/ipns/bad.example/good', 'bad.example', 'good', false],
    ['!/ipns/bad.example/good\n/ipns/bad.example', 'bad.example', 'good', true],
    ['/ipns/bad.example\n!/ipns/bad.example', 'bad.example', 'a', false],
    ['/ipns/bad.example/a\n!/ipns/bad.example', 'bad.example', 'a', true],
  ]
  for (const [rule, name, path, denied] of names)
    test(`${rule.replace(/\s+/g, ' ').slice(0, 60)} ${denied ? 'denies' : 'lets'} /ipns/${name}/${path}`, () =>
      assert.equal(deniesName(rule, name, path), denied))
})

describe('denylist', () => {
  test('reason and legality from the line or the list', () => {
    const list = createDenylist('ours')
    list.add(`version: 1\nhints:\n  reason: whole\n---\n/ipfs/${bad}\n/ipfs/${other} reason=dmca status=451`)
    const all = createDenylists(() => [list])
    assert.deepEqual(all.path(bad, []), { list: 'ours', legal: false, reason: 'whole' })
    assert.deepEqual(all.path(other, []), { list: 'ours', legal: true, reason: 'dmca' })
  })

  test('invalid line → skipped and named', () => {
    const faults = createDenylist('ours').add(`/ipfs/${bad}\n/ipfs/nonsense\n//zz\nwhatever`)
    assert.deepEqual(
      faults.map(({ line }) => line),
      [2, 3, 4],
    )
    const inPieces = createDenylist('ours')
    inPieces.add(`/ipfs/${bad}\n`)
    assert.deepEqual(
      inPieces.add('whatever\n').map(({ line }) => line),
      [2],
    )
  })

  test('rules instead of a header → refused, not ignored', () => {
    const list = createDenylist('ours')
    assert.throws(() => list.add(`/ipfs/${bad}\n---\n`), /is not a header/)
    assert.throws(() => createDenylist('ours').add(`version: 2\n---\n/ipfs/${bad}\n`), /version 2/)
  })

  test('header too long → refused', () => {
    const header = Array.from({ length: 2000 }, (_, key) => `key${key}: 1`).join('\n')
    assert.throws(() => createDenylist('ours').add(`${header}\n---\n/ipfs/${bad}\n`), /longer than 16384 bytes/)
  })

  test('first list with a matching rule decides', () => {
    const [allowing, denying] = [createDenylist('one'), createDenylist('two')]
    allowing.add(`!/ipfs/${bad}`)
    denying.add(`/ipfs/${bad}`)
    assert.equal(createDenylists(() => [allowing, denying]).path(bad, []), undefined)
    assert.equal(createDenylists(() => [denying, allowing]).path(bad, [])?.list, 'two')
  })

  test('tens of thousands of lines → lookups as fast as ten', () => {
    const msOf = (lines: number) => {
      const list = createDenylist('large')
      const said = Array.from({ length: lines }, (_, line) => `//${sha256(String(line)).toString('hex')}`)
      assert.deepEqual(list.add(said.join('\n')), [])
      const all = createDenylists(() => [list])
      return workMs(() => {
        for (let turn = 0; turn < 2000; turn++) all.path(bad, [])
      })
    }
    msOf(10)
    const [few, many] = [msOf(10), msOf(50_000)]
    assert.ok(many < 50 * few, `${many} ms, ${few} ms of ten lines`)
  })
})
