// Keys and the records they sign, made with the `ipns` package and the keys of node:crypto.
import { generateKeyPairSync, sign } from 'node:crypto'
import { createIPNSRecordWithExpiration, marshalIPNSRecord } from 'ipns'
import { varint } from 'multiformats'
import { base36 } from 'multiformats/bases/base36'
import { base58btc } from 'multiformats/bases/base58'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'

export type RecordFacts = {
  readonly sequence?: number
  readonly ttlMs?: number
  /** From now; negative: it is past its end. */
  readonly lifetimeMs?: number
}

export interface TestKey {
  readonly cid: CID
  /** As gateways spell it. */
  readonly name: string
  /** As peers are written: the bare multihash in base58btc. */
  readonly peer: string
  record(value: string, facts?: RecordFacts): Promise<Uint8Array>
  /** A record with this data, whatever it says. */
  signed(data: Uint8Array): Uint8Array
}

const libp2pKey = 0x72
/** Their tags in the protobuf of a record. */
const tags = { signature: 8, data: 9 } as const
const field = (number: number, bytes: Uint8Array): Uint8Array[] => [
  Buffer.of((number << 3) | 2),
  varint.encodeTo(bytes.byteLength, Buffer.alloc(varint.encodingLength(bytes.byteLength))),
  bytes,
]
const ed25519Protobuf = Uint8Array.from([0x08, 0x01, 0x12, 0x20])

export function createKey(): TestKey {
  const { publicKey, privateKey } = generateKeyPairSync('ed25519')
  const raw = Buffer.from(publicKey.export({ format: 'jwk' }).x ?? '', 'base64url')
  const digest = createDigest(0x00, Buffer.concat([ed25519Protobuf, raw]))
  const cid = CID.createV1(libp2pKey, digest)
  const signer = {
    type: 'Ed25519',
    publicKey: { type: 'Ed25519', toMultihash: () => digest },
    sign: (bytes: Uint8Array) => new Uint8Array(sign(null, bytes, privateKey)),
  } as unknown as Parameters<typeof createIPNSRecordWithExpiration>[0]
  return {
    cid,
    name: cid.toString(base36),
    peer: base58btc.baseEncode(digest.bytes),
    async record(value, { sequence = 1, ttlMs = 60_000, lifetimeMs = 86_400_000 } = {}) {
      const end = new Date(Date.now() + lifetimeMs).toISOString().replace('Z', '000000Z')
      const facts = { ttlNs: BigInt(ttlMs) * 1_000_000n }
      return marshalIPNSRecord(await createIPNSRecordWithExpiration(signer, value, sequence, end, facts))
    },
    signed(data) {
      const signature = sign(null, Buffer.concat([Buffer.from('ipns-signature:'), data]), privateKey)
      return Buffer.concat([...field(tags.signature, signature), ...field(tags.data, data)])
    },
  }
}
