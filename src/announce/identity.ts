// The ed25519 key that signs what this gateway publishes, and the peer ID that names it. Other
// kinds of keys are refused.
import { createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject, sign, verify } from 'node:crypto'
import { closeSync, fsyncSync, mkdirSync, openSync, readFileSync, writeSync } from 'node:fs'
import { dirname } from 'node:path'
import { base36 } from 'multiformats/bases/base36'
import { base58btc } from 'multiformats/bases/base58'
import { CID } from 'multiformats/cid'
import { decode as decodeDigest } from 'multiformats/hashes/digest'
import { codec, hash, parseKey } from '../core/cid.ts'
import { Failure } from '../core/failure.ts'

const seedBytes = 32
const privatePrefix = Buffer.from('302e020100300506032b657004220420', 'hex')
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

export type PublicKey = {
  readonly peerId: string
  /** The key as a libp2p protobuf. */
  readonly message: Uint8Array
  /** The multihash that the peer ID spells. */
  readonly multihash: Uint8Array
  verifies(bytes: Uint8Array, signature: Uint8Array): boolean
}

/** Throws a TypeError for a seed of another length. */
export function identityOf(seed: Uint8Array): Identity {
  if (seed.byteLength !== seedBytes) throw new TypeError(`the seed of a key has ${seedBytes} bytes`)
  return identityWith(createPrivateKey({ key: Buffer.concat([privatePrefix, seed]), format: 'der', type: 'pkcs8' }))
}

/**
 * Reads the identity from this PEM file (PKCS 8), or creates the file, readable by its owner only. A lost key means a new peer ID.
 * Throws a Failure that names the file and none of its contents.
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

function identityWith(key: KeyObject): Identity {
  if (key.asymmetricKeyType !== 'ed25519') throw new TypeError('the key is no ed25519 key')
  const bare = createPublicKey(key).export({ format: 'der', type: 'spki' }).subarray(publicPrefix.length)
  const publicKey = publicKeyOf(Buffer.concat([keyPrefix, bare])) as PublicKey
  return { peerId: publicKey.peerId, publicKey, sign: (bytes) => sign(null, bytes, key) }
}

/** Decodes a libp2p PublicKey protobuf; undefined for a key of another kind. */
export function publicKeyOf(message: Uint8Array): PublicKey | undefined {
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

/** `k51…`: the peer ID as a CID. */
export const peerCid = ({ multihash }: Pick<PublicKey, 'multihash'>): string =>
  CID.createV1(codec.libp2pKey, decodeDigest(multihash)).toString(base36)
