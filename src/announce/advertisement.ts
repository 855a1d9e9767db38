// The three documents that an IPNI indexer fetches, in dag-json: advertisements (each signed, each
// linked to the one before), their lists of multihashes, and the signed head. Encodes and signs
// them, and reads them with every field checked.
import { createHash } from 'node:crypto'
import * as dagCbor from '@ipld/dag-cbor'
import * as dagJson from '@ipld/dag-json'
import { CID } from 'multiformats/cid'
import { decode as decodeDigest } from 'multiformats/hashes/digest'
import { codec, hash } from '../core/cid.ts'
import { Failure } from '../core/failure.ts'
import { type Identity, type PublicKey, publicKeyOf } from './identity.ts'
import { varint } from './multiaddr.ts'

export type Encoded = { readonly cid: CID; readonly bytes: Uint8Array }

export type Advertisement = {
  readonly PreviousID?: CID | undefined
  /** The peer ID of the provider, in base58btc. */
  readonly Provider: string
  /**
   * Multiaddrs of the provider, best first. Every advertisement repeats them: an indexer keeps the
   * newest.
   */
  readonly Addresses: readonly string[]
  /** The first list of multihashes; `noEntries` where there is none. */
  readonly Entries: CID
  /**
   * Names the set of multihashes. A removed name is never used again: an indexer would restore the
   * removed multihashes.
   */
  readonly ContextID: Uint8Array
  readonly Metadata: Uint8Array
  /** True: the indexer forgets every multihash under this ContextID. */
  readonly IsRm: boolean
}

export type SignedAdvertisement = Advertisement & { readonly Signature: Uint8Array }

export type EntryChunk = { readonly Entries: readonly Uint8Array[]; readonly Next?: CID | undefined }

export const topic = '/indexer/ingest/mainnet'
/**
 * The code of `transport-ipfs-gateway-http` and a zero length, without which Go clients ignore the
 * protocol.
 */
export const gatewayMetadata: Uint8Array = Buffer.from('a01200', 'hex')
export const noEntries: CID = CID.decode(Buffer.from('01551210e3b0c44298fc1c149afbf4c8996fb924', 'hex'))
/** The maximum that indexers accept in one list. */
export const maxChunkEntries = 16_384
const maxContextBytes = 64
const maxMetadataBytes = 1024

const domain = 'indexer'
const payloadType = Buffer.from('/indexer/ingest/adSignature')

export function encodeEntries(multihashes: readonly Uint8Array[], next?: CID): Encoded {
  if (multihashes.length > maxChunkEntries) throw new TypeError(`a list has at most ${maxChunkEntries} multihashes`)
  return asBlock({ Entries: multihashes.map(plain), ...(next && { Next: next }) })
}

export function encodeAdvertisement(advertisement: Advertisement, { publicKey, sign }: Identity): Encoded {
  const { PreviousID, ...rest } = advertisement
  if (rest.ContextID.byteLength > maxContextBytes)
    throw new TypeError(`a ContextID has at most ${maxContextBytes} bytes`)
  const payload = payloadOf(advertisement)
  const signature = sign(signedBytes(payload))
  return asBlock({
    ...rest,
    Addresses: [...rest.Addresses],
    ContextID: plain(rest.ContextID),
    Metadata: plain(rest.Metadata),
    ...(PreviousID && { PreviousID }),
    Signature: plain(envelope(publicKey, payload, signature)),
  })
}

export function encodeHead(head: CID, { publicKey, sign }: Identity): Uint8Array {
  const signature = sign(Buffer.concat([head.bytes, Buffer.from(topic)]))
  return dagJson.encode({ head, pubkey: plain(publicKey.message), sig: plain(signature), topic })
}

/** The body of `PUT /announce`: the head and the multiaddrs that serve it. */
export const encodeAnnouncement = (head: CID, addresses: readonly Uint8Array[]): Uint8Array =>
  dagCbor.encode([head, addresses.map(plain), new Uint8Array()])

/** Throws a Failure that names the invalid field. */
export function readAdvertisement(bytes: Uint8Array): SignedAdvertisement {
  const value = decoded(bytes, 'advertisement')
  const { PreviousID, Provider, Addresses, Entries, ContextID, Metadata, IsRm, Signature } = value
  must(PreviousID === undefined || isLink(PreviousID), 'PreviousID')
  must(typeof Provider === 'string', 'Provider')
  must(Array.isArray(Addresses) && Addresses.every((one) => typeof one === 'string'), 'Addresses')
  must(isLink(Entries), 'Entries')
  must(ContextID instanceof Uint8Array && ContextID.byteLength <= maxContextBytes, 'ContextID')
  must(Metadata instanceof Uint8Array && Metadata.byteLength <= maxMetadataBytes, 'Metadata')
  must(typeof IsRm === 'boolean', 'IsRm')
  must(Signature instanceof Uint8Array, 'Signature')
  const advertisement = value as unknown as SignedAdvertisement
  const signer = opened(advertisement.Signature, payloadOf(advertisement))
  must(signer.peerId === advertisement.Provider, 'Provider')
  return advertisement
}

/** Throws a Failure that names the invalid field. */
export function readEntries(bytes: Uint8Array): EntryChunk {
  const value = decoded(bytes, 'list')
  const { Entries, Next } = value
  must(Array.isArray(Entries) && Entries.length <= maxChunkEntries && Entries.every(isMultihash), 'Entries')
  must(Next === undefined || isLink(Next), 'Next')
  return value as unknown as EntryChunk
}

/** Returns the head of this peer's chain. Throws a Failure that names the invalid field. */
export function readHead(bytes: Uint8Array, peerId: string): CID {
  const { head, pubkey, sig, topic: named } = decoded(bytes, 'head')
  must(isLink(head), 'head')
  must(named === topic, 'topic')
  must(pubkey instanceof Uint8Array, 'pubkey')
  const key = publicKeyOf(pubkey as Uint8Array)
  if (!key || key.peerId !== peerId) throw wrong('pubkey')
  const signed = Buffer.concat([(head as CID).bytes, Buffer.from(topic)])
  must(sig instanceof Uint8Array && key.verifies(signed, sig), 'sig')
  return head as CID
}

function asBlock(value: unknown): Encoded {
  const bytes = dagJson.encode(value)
  return { bytes, cid: CID.createV1(codec.dagJson, decodeDigest(sha256(bytes))) }
}

function payloadOf({ PreviousID, Entries, Provider, Addresses, Metadata, IsRm }: Advertisement): Uint8Array {
  const all = Buffer.concat([
    PreviousID?.bytes ?? Buffer.alloc(0),
    Entries.bytes,
    Buffer.from(Provider),
    Buffer.from(Addresses.join('')),
    Metadata,
    Buffer.from([IsRm ? 1 : 0]),
  ])
  return sha256(all)
}

/** The SHA-256 multihash of the bytes. */
const sha256 = (bytes: Uint8Array): Uint8Array =>
  Buffer.concat([Buffer.from([hash.sha256, 32]), createHash('sha256').update(bytes).digest()])

const signedBytes = (payload: Uint8Array): Uint8Array =>
  Buffer.concat([Buffer.from(domain), payloadType, payload].flatMap((part) => [varint(part.byteLength), part]))

/** A libp2p signed envelope: a protobuf of public key, payload type, payload and signature. */
const envelope = ({ message }: PublicKey, payload: Uint8Array, signature: Uint8Array): Uint8Array =>
  Buffer.concat([field(1, message), field(2, payloadType), field(3, payload), field(5, signature)])

const field = (number: number, bytes: Uint8Array): Uint8Array =>
  Buffer.concat([Buffer.from([(number << 3) | 2]), varint(bytes.byteLength), bytes])

/**
 * Returns the key that signed this payload. The envelope is encoded again and compared, since its
 * encoding is unique.
 */
function opened(signature: Uint8Array, payload: Uint8Array): PublicKey {
  const bytes = Buffer.from(signature)
  const key = publicKeyOf(bytes.subarray(2, 2 + (bytes[1] ?? 0)))
  const own = bytes.subarray(-64)
  if (!key || !bytes.equals(envelope(key, payload, own)) || !key.verifies(signedBytes(payload), own))
    throw wrong('Signature')
  return key
}

function decoded(bytes: Uint8Array, what: string): Readonly<Record<string, unknown>> {
  let value: unknown
  try {
    value = dagJson.decode(bytes)
  } catch (cause) {
    throw new Failure('malformed', `it is no dag-json, and so no ${what}`, { source: 'content', cause })
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw wrong(what)
  return value as Readonly<Record<string, unknown>>
}

const wrong = (name: string): Failure => new Failure('malformed', `its ${name} is wrong`, { source: 'content' })

function must(is: boolean, name: string): void {
  if (!is) throw wrong(name)
}

const isLink = (value: unknown): boolean => CID.asCID(value) !== null

function isMultihash(value: unknown): boolean {
  if (!(value instanceof Uint8Array)) return false
  try {
    return decodeDigest(value) !== undefined
  } catch {
    return false
  }
}

/** Copies a Buffer: the encoders accept Uint8Array only. */
const plain = (bytes: Uint8Array): Uint8Array => Uint8Array.from(bytes)
