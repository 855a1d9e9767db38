// A block: bytes and the CID that they hash to. `proves` verifies every block of the gateway.
import { createHash, hash as digestOf } from 'node:crypto'
import { blake2b } from '@noble/hashes/blake2.js'
import { blake3 } from '@noble/hashes/blake3.js'
import { keccak_256, keccak_512 } from '@noble/hashes/sha3.js'
import type { CID } from 'multiformats/cid'
import { hash, inBase32, keptKey } from './cid.ts'

export type Block = { readonly cid: CID; readonly bytes: Uint8Array }

/**
 * The largest block that may exist anywhere in the system (trustless gateway specification: 2 MiB).
 */
export const maxBlockBytes = 2 * 1024 * 1024

/** The largest content an identity CID may carry in itself (IPIP-512). */
export const maxIdentityBytes = 128

type HashFunction = {
  readonly name: string
  readonly length: number
  readonly digest: (bytes: Uint8Array) => Uint8Array
}

const sha256 = (bytes: Uint8Array): Uint8Array => digestOf('sha256', bytes, 'buffer')

const shake256 = (bytes: Uint8Array): Uint8Array => createHash('shake256', { outputLength: 64 }).update(bytes).digest()

const native = (name: string, length: number, algorithm = name): HashFunction => ({
  ...{ name, length },
  digest: (bytes) => digestOf(algorithm, bytes, 'buffer'),
})

/** Each length from 160 bits on has a multicodec code of its own. */
const blake2bs = Array.from({ length: 45 }, (_, at): [number, HashFunction] => {
  const length = 20 + at
  const digest = (bytes: Uint8Array) => blake2b(bytes, { dkLen: length })
  return [0xb200 + length, { name: `blake2b-${8 * length}`, length, digest }]
})

// The functions that Kubo accepts except SHA-1, and only at full length: a short digest can be
// forged, and SHA-1 has collisions.
const functions: ReadonlyMap<number, HashFunction> = new Map<number, HashFunction>([
  [hash.sha256, { name: 'sha2-256', length: 32, digest: sha256 }],
  [0x13, native('sha2-512', 64, 'sha512')],
  [0x14, native('sha3-512', 64)],
  [0x15, native('sha3-384', 48)],
  [0x16, native('sha3-256', 32)],
  [0x17, native('sha3-224', 28)],
  [0x19, { name: 'shake-256', length: 64, digest: shake256 }],
  [0x1b, { name: 'keccak-256', length: 32, digest: (bytes) => keccak_256(bytes) }],
  [0x1d, { name: 'keccak-512', length: 64, digest: (bytes) => keccak_512(bytes) }],
  [0x1e, { name: 'blake3', length: 32, digest: (bytes) => blake3(bytes) }],
  [0x56, { name: 'dbl-sha2-256', length: 32, digest: (bytes) => sha256(sha256(bytes)) }],
  ...blake2bs,
  [0xb260, native('blake2s-256', 32, 'blake2s256')],
])

/** The code of a hash function that proves blocks, by its name in the multicodec table. */
export const hashCode = (name: string): number | undefined =>
  functions.entries().find(([, { name: own }]) => own === name)?.[0]

export const isIdentity = (cid: CID): boolean => cid.multihash.code === hash.identity

/**
 * True if bytes can be verified against this CID: a known function, the full digest, a small
 * identity.
 */
export function isProvable(cid: CID): boolean {
  const { code, digest } = cid.multihash
  if (code === hash.identity) return digest.byteLength <= maxIdentityBytes
  return functions.get(code)?.length === digest.byteLength
}

/** The digest of these bytes by a trusted function; undefined for any other function. */
export const digestBy = (code: number, bytes: Uint8Array): Uint8Array | undefined => functions.get(code)?.digest(bytes)

/**
 * True if `bytes` hash to `cid`. False for a CID that cannot be verified and for a block over the
 * limit.
 */
export function proves(cid: CID, bytes: Uint8Array): boolean {
  if (bytes.byteLength > maxBlockBytes || !isProvable(cid)) return false
  const { code, digest } = cid.multihash
  const hashed = code === hash.identity ? bytes : digestBy(code, bytes)
  return hashed !== undefined && Buffer.compare(hashed, digest) === 0
}

/**
 * The key of a block in every tier: its multihash in base32, without codec and CID version, so that
 * v0, v1, raw and dag-pb readers of the same bytes share one copy.
 */
export const blockKey = (cid: CID): string => keptKey(cid, keyOf)

const keyOf = ({ multihash: { bytes } }: CID): string => inBase32(bytes)
