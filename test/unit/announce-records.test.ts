// The documents that indexers read: the golden vectors of a reference publisher, and heads with one
// wrong field.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { describe, it } from 'node:test'
import * as dagJson from '@ipld/dag-json'
import { CID } from 'multiformats/cid'
import {
  addressesOf,
  encodeAdvertisement,
  encodeAnnouncement,
  encodeEntries,
  encodeHead,
  gatewayMetadata,
  multiaddrBytes,
  noEntries,
  publicKeyIn,
  readHead,
} from '../../src/announce/advertisement.ts'
import { identityOf, peerCid } from '../support/identity.ts'

const identity = identityOf(Buffer.alloc(32, 7))
const peerId = '12D3KooWRawPbxPtP1eZaJpumGnyWX2DcUyd3RQnydr3eAto4Az7'
const hello = Buffer.concat([Buffer.from([0x12, 32]), createHash('sha256').update('hello').digest()])
const chunk = encodeEntries([hello])
const first = {
  Provider: peerId,
  Addresses: ['/dns/gw.example.net/tcp/443/https'],
  Entries: chunk.cid,
  ContextID: Buffer.from('root-1'),
  Metadata: gatewayMetadata,
  IsRm: false,
}
const ad1 = encodeAdvertisement(first, identity)
const base64 = (bytes: Uint8Array) => Buffer.from(bytes).toString('base64').replace(/=+$/, '')

describe('announcement records: golden vectors', () => {
  it('seed → peer ID, in base58btc and as a CID', () => {
    assert.equal(identity.peerId, peerId)
    const cid = 'k51qzi5uqu5dm0t4vbwri4lkg76q03b4x9tsvekgvbu4zli6454ff7w8wdosa4'
    assert.equal(peerCid(identity), cid)
    for (const spelled of [peerId, cid]) assert.equal(publicKeyIn(spelled)?.peerId, peerId)
    assert.equal(publicKeyIn('QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG'), undefined)
  })

  it('multihash → list of entries', () => {
    assert.equal(
      Buffer.from(chunk.bytes).toString(),
      '{"Entries":[{"/":{"bytes":"EiAs8k26X7CjDiboOyrFueKeGxYeXB+nQl5zBDNik4uYJA"}}]}',
    )
    assert.equal(chunk.cid.toString(), 'baguqeerargluinlseqc2vrk6byjp5d7rguez5zfsggec7ymevaqrshrcfwpq')
  })

  it('advertisement → its signature and CID', () => {
    assert.equal(ad1.cid.toString(), 'baguqeera5bjvwbsgfdco32fxyia53wkcis7tdcihtmdtc6jc2u4ie6rc7dva')
    assert.equal(
      base64(dagJson.decode<{ Signature: Uint8Array }>(ad1.bytes).Signature),
      'CiQIARIg6kpsY+KcUgq+9VB7Ey7F+ZVHdq6+vnuSQh7qaRRG0iwSGy9pbmRleGVyL2luZ2VzdC9hZFNpZ25hdHVyZRoiEiCK/sUPazeI90G1n87P7uMgV69Jd806dEHsSifTqjFG+CpADCnBy0v7fy0GptwpiptS6mHXDN/XE32iWG7/QKvWyNLBT5+vEqfR1ha0Ors2gow7hMKC5UUOa36dn4kYNgWFAQ',
    )
  })

  it('removal advertisement → its CID', () => {
    const removal = encodeAdvertisement(
      {
        PreviousID: ad1.cid,
        Provider: peerId,
        Addresses: [],
        Entries: noEntries,
        ContextID: Buffer.from('root-1'),
        Metadata: new Uint8Array(),
        IsRm: true,
      },
      identity,
    )
    assert.equal(removal.cid.toString(), 'baguqeeracvmroku32xhe7crwpfpcdpnqrvx2bpvmxuddopxokpydl3lsh7ba')
  })

  it('head → its signature', () => {
    const head = encodeHead(ad1.cid, identity)
    const { sig } = dagJson.decode<{ sig: Uint8Array }>(head)
    assert.equal(base64(sig), 'iDb6q48NcQTs44CSf3oDe6PSbIWWfkHJzys/DhzjZwYVApj2xJ9WdRiso+0IjCgP7hThTahJU1KUeSi6hVRmDg')
    assert.equal(readHead(head, peerId).toString(), ad1.cid.toString())
  })

  it('announcement → its CBOR', () => {
    const address = multiaddrBytes(`/dns/gw.example.net/tcp/443/https/p2p/${peerId}`)
    assert.equal(
      Buffer.from(address).toString('base64'),
      'NQ5ndy5leGFtcGxlLm5ldAYBu7sDpQMmACQIARIg6kpsY+KcUgq+9VB7Ey7F+ZVHdq6+vnuSQh7qaRRG0iw=',
    )
    assert.equal(
      Buffer.from(encodeAnnouncement(ad1.cid, [address])).toString('hex'),
      '83d82a58260001a9021220e8535b064628c4ede8b7c201ddd94244bf3189079b07317922d538827a22f8ea81583e350e67772e6578616d706c652e6e65740601bbbb03a50326002408011220ea4a6c63e29c520abef5507b132ec5f9954776aebebe7b92421eea691446d22c40',
    )
  })
})

describe('announcement records: one wrong field', () => {
  const changed = (bytes: Uint8Array, change: Record<string, unknown>) =>
    dagJson.encode({ ...dagJson.decode<Record<string, unknown>>(bytes), ...change })
  const other = identityOf(Buffer.alloc(32, 8))
  const link = CID.parse('bafkqaaa')
  it('head with another CID, topic, key or signature → refused', () => {
    const head = encodeHead(ad1.cid, identity)
    const wrong = { head: link, topic: '/other', pubkey: new Uint8Array(36), sig: new Uint8Array(64) }
    for (const [name, value] of Object.entries(wrong))
      assert.throws(() => readHead(changed(head, { [name]: value }), peerId), /is wrong/, name)
    assert.throws(() => readHead(encodeHead(ad1.cid, other), peerId), /pubkey is wrong/)
  })

  it('not dag-json, a list, or empty → refused', () => {
    for (const text of ['', '[]', 'null', '{', '7'])
      assert.throws(() => readHead(Buffer.from(text), peerId), { name: 'Failure' }, text)
  })
})

describe('addresses of an HTTP server', () => {
  it('URL → both spellings, with explicit port', () => {
    assert.deepEqual(addressesOf(new URL('https://gw.example')), [
      '/dns/gw.example/tcp/443/https',
      '/dns/gw.example/tcp/443/tls/http',
    ])
    assert.deepEqual(addressesOf(new URL('http://127.0.0.1:8080')), ['/ip4/127.0.0.1/tcp/8080/http'])
    assert.deepEqual(addressesOf(new URL('http://[::1]:81')), ['/ip6/::1/tcp/81/http'])
  })

  it('IPv6 → sixteen bytes', () => {
    assert.equal(
      Buffer.from(multiaddrBytes('/ip6/2001:db8::7/tcp/81/http')).toString('hex'),
      '2920010db8000000000000000000000007060051e003',
    )
  })
})
