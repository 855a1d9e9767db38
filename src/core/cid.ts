// CIDs and the blocks that hash to them: codes, parsing and formatting in every multibase, and the
// proof of a block.

import { createHash, hash as digestOf } from 'node:crypto'
import { blake2b } from '@noble/hashes/blake2.js'
import { blake3 } from '@noble/hashes/blake3.js'
import { keccak_256, keccak_512 } from '@noble/hashes/sha3.js'
import { base2 } from 'multiformats/bases/base2'
import { base8 } from 'multiformats/bases/base8'
import { base10 } from 'multiformats/bases/base10'
import { base16, base16upper } from 'multiformats/bases/base16'
import {
  base32,
  base32hex,
  base32hexpad,
  base32hexpadupper,
  base32hexupper,
  base32pad,
  base32padupper,
  base32upper,
  base32z,
} from 'multiformats/bases/base32'
import { base36, base36upper } from 'multiformats/bases/base36'
import { base58btc, base58flickr } from 'multiformats/bases/base58'
import { base64, base64pad, base64url, base64urlpad } from 'multiformats/bases/base64'
import { base256emoji } from 'multiformats/bases/base256emoji'
import { CID } from 'multiformats/cid'
import { Digest, decode as decodeDigest } from 'multiformats/hashes/digest'

/** Codecs of blocks (multicodec table). */
export const codec = {
  cbor: 0x51,
  raw: 0x55,
  dagPb: 0x70,
  dagCbor: 0x71,
  libp2pKey: 0x72,
  dagJson: 0x0129,
  json: 0x0200,
} as const

/** Hash functions that the code names; `hashFunctions` below has all that verify a block. */
export const hash = {
  identity: 0x00,
  sha256: 0x12,
  murmur3x64: 0x22,
} as const

const decoder = [
  base2,
  base8,
  base10,
  base16,
  base16upper,
  base32hex,
  base32hexupper,
  base32hexpad,
  base32hexpadupper,
  base32pad,
  base32padupper,
  base32upper,
  base32z,
  base36,
  base36upper,
  base58btc,
  base58flickr,
  base64,
  base64pad,
  base64url,
  base64urlpad,
].reduce((all, base) => all.or(base.decoder as never), base32.decoder.or(base58btc.decoder))

/** Longer than any CID with a verifiable digest, in the widest base. */
export const maxCidChars = 1024

// Build the string in one piece: V8 keeps one that is concatenated letter by letter as a tree,
// which as a map key takes twenty times the memory.
const letters = Buffer.from('abcdefghijklmnopqrstuvwxyz234567')
const multibasePrefix = 'b'.charCodeAt(0)

/** Multibase base32, five times as fast as multiformats' own encoder. */
function inBase32(bytes: Uint8Array): string {
  const text = Buffer.allocUnsafe(1 + Math.ceil((bytes.byteLength * 8) / 5))
  text[0] = multibasePrefix
  let at = 1
  let bits = 0
  let held = 0
  for (const byte of bytes) {
    held = ((held << 8) | byte) & 0xfff
    for (bits += 8; bits >= 5; bits -= 5) text[at++] = letters[(held >> (bits - 5)) & 31] as number
  }
  if (bits > 0) text[at++] = letters[(held << (5 - bits)) & 31] as number
  return text.toString('latin1', 0, at)
}

/**
 * Formats a CID like `toString`, which caches the text in a WeakMap: with a hundred thousand CIDs
 * in it garbage collection takes seconds.
 */
export const spell = (cid: CID): string => (cid.version === 1 ? inBase32(cid.bytes) : cid.toString())

class SameObject {
  constructor(cid: CID) {
    // biome-ignore lint/correctness/noConstructorReturn: so that the class below puts its private fields on the CID itself.
    return cid as unknown as SameObject
  }
}

/**
 * Caches the text and block key on the CID object: a request asks for the key of its block a dozen
 * times. Private fields stay invisible to comparisons and listings of the CID; a WeakMap costs
 * more, and slows garbage collection.
 */
class Noted extends SameObject {
  #text: string | undefined
  #key: string | undefined

  on(cid: CID): Noted {
    return #text in cid ? (cid as unknown as Noted) : new Noted(cid)
  }

  textOf(cid: CID): string {
    const noted = this.on(cid)
    return (noted.#text ??= spell(cid))
  }

  spelled(cid: CID, text: string): CID {
    this.on(cid).#text = text
    return cid
  }

  keyOf(cid: CID): string {
    const noted = this.on(cid)
    return (noted.#key ??= inBase32(cid.multihash.bytes))
  }
}

// Only the methods are used; the cached values are on the CIDs.
const notes = Noted.prototype

/** Formats a CID like `toString` (v1 in base32), cached on the CID. */
export const textOf = (cid: CID): string => notes.textOf(cid)

const emojiInUrl = /^%f0%9f%9a%80/i

/**
 * Parses a CID, or returns undefined. Accepts base256emoji percent-encoded too, as URLs carry it.
 * Checks the length before it decodes anything.
 */
export function parseCid(text: string): CID | undefined {
  if (text.length > maxCidChars) return undefined
  try {
    if (emojiInUrl.test(text)) return parseCid(decodeURIComponent(text))
    // multiformats' `or` tells bases apart by one UTF-16 unit, and an emoji has two.
    if (text.startsWith(base256emoji.prefix)) return CID.parse(text, base256emoji)
    return CID.parse(text, text.startsWith('Qm') ? undefined : decoder)
  } catch {
    return undefined
  }
}

const commonChars = 59
const commonBytes = 36

/** The value of a base32 letter; -1 for any other character. */
const letterValue = (code: number): number =>
  code >= 97 && code <= 122 ? code - 97 : code >= 50 && code <= 55 ? code - 24 : -1

/**
 * Decodes the most common spelling of a CID ten times faster than `parseCid`: version 1, a one-byte
 * codec, SHA-256, in base32. Undefined for any other text, which may still be a CID.
 */
export function parseCommon(text: string): Uint8Array | undefined {
  if (text.length !== commonChars || text.charCodeAt(0) !== 0x62) return undefined
  const bytes = new Uint8Array(commonBytes)
  let bits = 0
  let held = 0
  let at = 0
  for (let index = 1; index < commonChars; index++) {
    const value = letterValue(text.charCodeAt(index))
    if (value < 0) return undefined
    held = ((held << 5) | value) & 0xfff
    bits += 5
    if (bits < 8) continue
    bits -= 8
    bytes[at++] = held >> bits
  }
  // The remaining bits must be zero, or one CID would have several spellings.
  if ((held & ((1 << bits) - 1)) !== 0) return undefined
  if (bytes[0] !== 1 || (bytes[1] as number) >= 0x80 || bytes[2] !== hash.sha256 || bytes[3] !== 32) return undefined
  return bytes
}

/** Parses a raw leaf in that spelling. */
export function parseLeaf(text: string): CID | undefined {
  const bytes = text.startsWith('bafkrei') ? parseCommon(text) : undefined
  if (bytes?.[1] !== codec.raw) return undefined
  return notes.spelled(new CID(1, codec.raw, decodeDigest(bytes.subarray(2)), bytes), text)
}

/** True if `CID.decode` accepts the bytes: version, codec, hash, and a digest of the declared length. */
export function isCidAt(bytes: Uint8Array, from: number, to: number): boolean {
  // Fast path: common CIDs have numbers of one byte each.
  if (to - from === 34 && bytes[from] === hash.sha256 && bytes[from + 1] === 32) return true
  if (to - from >= 4 && bytes[from] === 1 && ((bytes[from + 1] as number) | (bytes[from + 2] as number)) < 0x80)
    if ((bytes[from + 3] as number) < 0x80) return from + 4 + (bytes[from + 3] as number) === to
  try {
    return CID.inspectBytes(bytes.subarray(from, to)).size === to - from
  } catch {
    return false
  }
}

/**
 * Decodes the CID at these offsets, as `CID.decode` does, but as a view: in a large folder, links
 * with memory of their own would each add work to garbage collection.
 */
export function cidAt(bytes: Uint8Array, from: number, to: number): CID {
  const { buffer, byteOffset } = bytes
  const isV0 = to - from === 34
  const start = isV0 ? from : from + 2
  const code = isV0 ? codec.dagPb : (bytes[from + 1] as number)
  const isCommon = to <= bytes.byteLength && (isV0 || (to - from === commonBytes && bytes[from] === 1 && code < 0x80))
  const isSha256 = bytes[start] === hash.sha256 && bytes[start + 1] === 32
  if (!isCommon || !isSha256 || !(buffer instanceof ArrayBuffer)) return CID.decode(bytes.subarray(from, to))
  const view = (at: number) => new Uint8Array(buffer, byteOffset + at, to - at)
  const multihash = new Digest(hash.sha256, 32, view(start + 2), view(start))
  return isV0 ? new CID(0, code, multihash, multihash.bytes) : new CID(1, code, multihash, view(from))
}

/**
 * Parses the key of an IPNS name: a CID in any base, or a peer ID (a bare multihash). Undefined for
 * a domain.
 */
export function parseKey(text: string): CID | undefined {
  const cid = parseCid(text)
  if (cid || text.length > maxCidChars || !text.startsWith('1')) return cid
  try {
    return CID.createV1(codec.libp2pKey, decodeDigest(base58btc.baseDecode(text)))
  } catch {
    return undefined
  }
}

export type Block = { readonly cid: CID; readonly bytes: Uint8Array }

/**
 * The largest block that may exist anywhere in the system (trustless gateway specification: 2 MiB).
 */
export const maxBlockBytes = 2 * 1024 * 1024

/** The largest content an identity CID may carry in itself (IPIP-512). */
const maxIdentityBytes = 128

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

// The hash functions that Kubo accepts except SHA-1, and only at full length: a short digest can be
// forged, and SHA-1 has collisions.
const hashFunctions: ReadonlyMap<number, HashFunction> = new Map<number, HashFunction>([
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
  hashFunctions.entries().find(([, { name: own }]) => own === name)?.[0]

export const isIdentity = (cid: CID): boolean => cid.multihash.code === hash.identity

/**
 * True if bytes can be verified against this CID: a known function, the full digest, a small
 * identity.
 */
export function isProvable(cid: CID): boolean {
  const { code, digest } = cid.multihash
  if (code === hash.identity) return digest.byteLength <= maxIdentityBytes
  return hashFunctions.get(code)?.length === digest.byteLength
}

/** The digest of these bytes by a trusted function; undefined for any other function. */
export const digestBy = (code: number, bytes: Uint8Array): Uint8Array | undefined =>
  hashFunctions.get(code)?.digest(bytes)

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
export const blockKey = (cid: CID): string => notes.keyOf(cid)

/** The name of a block in a CAR: the same bytes under another codec are another block. */
export const blockName = (cid: CID): string => `${cid.code}:${blockKey(cid)}`
