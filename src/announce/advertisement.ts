// The three documents that an IPNI indexer fetches, in dag-json: advertisements (each signed, each
// linked to the one before), their lists of multihashes, and the signed head; the key that signs
// them, and the multiaddrs that they name.

import {
  createHash,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  type KeyObject,
  sign,
  verify,
} from 'node:crypto'
import { closeSync, fsyncSync, mkdirSync, openSync, readFileSync, writeSync } from 'node:fs'
import { isIPv4 } from 'node:net'
import { dirname } from 'node:path'
import * as dagCbor from '@ipld/dag-cbor'
import * as dagJson from '@ipld/dag-json'
import { varint as varints } from 'multiformats'
import { base58btc } from 'multiformats/bases/base58'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { codec, hash, parseKey } from '../core/cid.ts'
import { Failure } from '../core/failure.ts'

type Encoded = { readonly cid: CID; readonly bytes: Uint8Array }

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

const topic = '/indexer/ingest/mainnet'
/**
 * The code of `transport-ipfs-gateway-http` and a zero length, without which Go clients ignore the
 * protocol.
 */
export const gatewayMetadata: Uint8Array = Buffer.from('a01200', 'hex')
export const noEntries: CID = CID.decode(Buffer.from('01551210e3b0c44298fc1c149afbf4c8996fb924', 'hex'))
/** The maximum that indexers accept in one list. */
export const maxChunkEntries = 16_384
const maxContextBytes = 64

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

/** Returns the head of this peer's chain. Throws a Failure that names the invalid field. */
export function readHead(bytes: Uint8Array, peerId: string): CID {
  let value: unknown
  try {
    value = dagJson.decode(bytes)
  } catch (cause) {
    throw new Failure('malformed', 'it is no dag-json, and so no head', { source: 'content', cause })
  }
  const { head, pubkey, sig, topic: named } = Object(value) as Readonly<Record<string, unknown>>
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
  return { bytes, cid: CID.createV1(codec.dagJson, sha256(bytes)) }
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
  return sha256(all).bytes
}

const sha256 = (bytes: Uint8Array) => createDigest(hash.sha256, createHash('sha256').update(bytes).digest())

const signedBytes = (payload: Uint8Array): Uint8Array =>
  Buffer.concat([Buffer.from(domain), payloadType, payload].flatMap((part) => [varint(part.byteLength), part]))

/** A libp2p signed envelope: a protobuf of public key, payload type, payload and signature. */
const envelope = ({ message }: PublicKey, payload: Uint8Array, signature: Uint8Array): Uint8Array =>
  Buffer.concat([field(1, message), field(2, payloadType), field(3, payload), field(5, signature)])

const field = (number: number, bytes: Uint8Array): Uint8Array =>
  Buffer.concat([Buffer.from([(number << 3) | 2]), varint(bytes.byteLength), bytes])

const wrong = (name: string): Failure => new Failure('malformed', `its ${name} is wrong`, { source: 'content' })

function must(is: boolean, name: string): void {
  if (!is) throw wrong(name)
}

const isLink = (value: unknown): boolean => CID.asCID(value) !== null

/** Copies a Buffer: the encoders accept Uint8Array only. */
const plain = (bytes: Uint8Array): Uint8Array => Uint8Array.from(bytes)

const seedBytes = 32
const publicPrefix = Buffer.from('302a300506032b6570032100', 'hex')
/** The start of a libp2p PublicKey protobuf: key type Ed25519 and the length of the key. */
const keyPrefix = Buffer.from('08011220', 'hex')
const multihashPrefix = Buffer.from([0x00, keyPrefix.length + seedBytes])

export type Identity = {
  /** In base58btc (`12D3Koo…`), the spelling that every client accepts. */
  readonly peerId: string
  readonly publicKey: PublicKey
  sign(bytes: Uint8Array): Uint8Array
}

type PublicKey = {
  readonly peerId: string
  /** The key as a libp2p protobuf. */
  readonly message: Uint8Array
  /** The multihash that the peer ID spells. */
  readonly multihash: Uint8Array
  verifies(bytes: Uint8Array, signature: Uint8Array): boolean
}

/**
 * Reads the identity from this PEM file (PKCS 8), or creates the file, readable by its owner only.
 * A lost key means a new peer ID. Throws a Failure that names the file and none of its contents.
 */
export function identityIn(file: string): Identity {
  try {
    return identityWith(createPrivateKey(readFileSync(file)))
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code !== 'ENOENT')
      throw new Failure('disk-error', `${file} is no ed25519 key in PEM that can be read`, { source: 'ours' })
  }
  const { privateKey } = generateKeyPairSync('ed25519')
  mkdirSync(dirname(file), { recursive: true })
  const handle = openSync(file, 'wx', 0o600)
  try {
    writeSync(handle, privateKey.export({ format: 'pem', type: 'pkcs8' }) as string)
    fsyncSync(handle)
  } finally {
    closeSync(handle)
  }
  return identityWith(privateKey)
}

export function identityWith(key: KeyObject): Identity {
  if (key.asymmetricKeyType !== 'ed25519') throw new TypeError('the key is no ed25519 key')
  const publicBytes = createPublicKey(key).export({ format: 'der', type: 'spki' }).subarray(publicPrefix.length)
  const publicKey = publicKeyOf(Buffer.concat([keyPrefix, publicBytes])) as PublicKey
  return { peerId: publicKey.peerId, publicKey, sign: (bytes) => sign(null, bytes, key) }
}

/** Decodes a libp2p PublicKey protobuf; undefined for a key of another kind. */
function publicKeyOf(message: Uint8Array): PublicKey | undefined {
  const bytes = Buffer.from(message)
  const isEd25519 =
    bytes.length === keyPrefix.length + seedBytes && bytes.subarray(0, keyPrefix.length).equals(keyPrefix)
  if (!isEd25519) return undefined
  let key: KeyObject | undefined
  const multihash = Buffer.concat([multihashPrefix, bytes])
  return {
    peerId: base58btc.baseEncode(multihash),
    message: bytes,
    multihash,
    verifies(signed, signature) {
      key ??= createPublicKey({
        key: Buffer.concat([publicPrefix, bytes.subarray(keyPrefix.length)]),
        format: 'der',
        type: 'spki',
      })
      return verify(null, signed, key, signature)
    },
  }
}

/** The public key inside an ed25519 peer ID, in any encoding; undefined for other text. */
export function publicKeyIn(peerId: string): PublicKey | undefined {
  const multihash = parseKey(peerId)?.multihash
  return multihash?.code === hash.identity ? publicKeyOf(multihash.digest) : undefined
}

const withText = { dns: 0x35, dns4: 0x36, dns6: 0x37, sni: 0x01c1, 'http-path': 0x01e1 } as const
const valueless = { https: 0x01bb, tls: 0x01c0, http: 0x01e0 } as const

/** Both spellings of an HTTPS server, `/https` and `/tls/http`: some clients know only one. */
export function addressesOf(url: URL): readonly string[] {
  const name = url.hostname
  const port = url.port || (url.protocol === 'https:' ? '443' : '80')
  const host = isIPv4(name) ? `/ip4/${name}` : name.startsWith('[') ? `/ip6/${name.slice(1, -1)}` : `/dns/${name}`
  const at = `${host}/tcp/${port}`
  return url.protocol === 'https:' ? [`${at}/https`, `${at}/tls/http`] : [`${at}/http`]
}

/** The binary form. Throws a TypeError for an unknown or malformed component. */
export function multiaddrBytes(text: string): Uint8Array {
  const [empty, ...words] = text.split('/')
  if (empty !== '') throw new TypeError(`${text} is no multiaddr`)
  const pieces: Uint8Array[] = []
  while (words.length > 0) {
    const kind = words.shift() as string
    if (kind in valueless) pieces.push(varint(valueless[kind as keyof typeof valueless]))
    else pieces.push(component(kind, words.shift() ?? ''))
  }
  return Buffer.concat(pieces)
}

function component(kind: string, value: string): Uint8Array {
  if (kind === 'tcp') return Buffer.from([0x06, Number(value) >> 8, Number(value) & 0xff])
  if (kind === 'ip4') return Buffer.from([0x04, ...value.split('.').map(Number)])
  if (kind === 'ip6') return Buffer.concat([varint(0x29), ip6Bytes(value)])
  if (kind === 'p2p') {
    const key: CID | undefined = parseKey(value)
    if (!key) throw new TypeError(`${value} is no peer ID`)
    return prefixed(0x01a5, key.multihash.bytes)
  }
  if (!(kind in withText)) throw new TypeError(`/${kind} is not known`)
  return prefixed(withText[kind as keyof typeof withText], Buffer.from(decodeURIComponent(value)))
}

const prefixed = (code: number, bytes: Uint8Array): Uint8Array =>
  Buffer.concat([varint(code), varint(bytes.byteLength), bytes])

function ip6Bytes(text: string): Uint8Array {
  const [head = '', tail] = text.split('::')
  const groups = (part: string) => (part === '' ? [] : part.split(':').map((group) => Number.parseInt(group, 16)))
  const [first, last] = [groups(head), groups(tail ?? '')]
  const middle = tail === undefined ? [] : Array.from({ length: 8 - first.length - last.length }, () => 0)
  return Buffer.from([...first, ...middle, ...last].flatMap((group) => [group >> 8, group & 0xff]))
}

const varint = (value: number): Uint8Array => varints.encodeTo(value, new Uint8Array(varints.encodingLength(value)))
