// Parses one line of a compact denylist (IPIP-383) to a rule: its key, the paths below the key, and
// allow or deny.
import { createHash } from 'node:crypto'
import { blake2b } from '@noble/hashes/blake2.js'
import { blake3 } from '@noble/hashes/blake3.js'
import { base58btc } from 'multiformats/bases/base58'
import { CID } from 'multiformats/cid'
import { decode as decodeDigest } from 'multiformats/hashes/digest'
import { hash, parseKey } from '../core/cid.ts'

export type Rule = {
  /** The position in the list: the last matching rule decides. */
  readonly order: number
  readonly allow: boolean
  /** The paths below the key; undefined for a hashed rule, whose key covers the path. */
  readonly path?: { readonly text: string; readonly prefix: boolean } | undefined
  readonly hints: Readonly<Record<string, string>>
}

export type KeyedRule = {
  readonly space: 'ipfs' | 'ipns' | 'hashed'
  /**
   * The multihash in base58btc, a domain name, or for `hashed` the double hash itself as a
   * multihash.
   */
  readonly key: string
  /** The hash function of a hashed rule. */
  readonly code?: number
  readonly rule: Rule
}

export const doubleHash: ReadonlyMap<number, (text: string) => Uint8Array> = new Map<
  number,
  (text: string) => Uint8Array
>([
  [hash.sha256, (text) => createHash('sha256').update(text).digest()],
  [0x13, (text) => createHash('sha512').update(text).digest()],
  [0x1e, (text) => blake3(new TextEncoder().encode(text))],
  [0xb220, (text) => blake2b(new TextEncoder().encode(text), { dkLen: 32 })],
])

export const keyOf = (multihash: Uint8Array): string => base58btc.baseEncode(multihash)
/** In hex, because base58 takes ten times as long for hundreds of thousands of rules. */
export const hashedKey = (code: number, digest: Uint8Array): string => `${code} ${Buffer.from(digest).toString('hex')}`

// Empty files and folders in every encoding: a list that denies them by mistake would break half of
// all content.
const neverDenied: ReadonlySet<string> = new Set(
  [
    'QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn',
    'bafyaabakaieac',
    'bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku',
    'bafkqaaa',
    'QmbFMke1KXqnYyBBWxB74N4c5SBnJMVAiMNRcGu6x1AwQH',
    'bafyreigbtj4x7ip5legnfznufuopl4sg4knzc2cof6duas4b3q2fy6swua',
    'baguqeeraiqjw7i2vwntyuekgvulpp2det2kpwt6cd7tx5ayqybqpmhfk76fa',
  ].map((text) => keyOf(CID.parse(text).multihash.bytes)),
)

/**
 * Parses a line to its rules (an ambiguous double hash gives two); throws an explanation if it is
 * invalid.
 */
export function parseRule(line: string, order: number, listHints: Readonly<Record<string, string>>): KeyedRule[] {
  const [first = '', ...hintWords] = line.trim().split(/\s+/)
  const allow = /^[!+-]/.test(first)
  const text = allow ? first.slice(1) : first
  const hints: Record<string, string> = { ...listHints }
  for (const word of hintWords) {
    const at = word.indexOf('=')
    if (at > 0) hints[word.slice(0, at)] = word.slice(at + 1)
  }
  const rule = { order, allow, hints }
  if (text.startsWith('//')) return hashedRules(text.slice(2), rule)
  const [, space, name = '', ...rest] = text.split('/')
  if ((space !== 'ipfs' && space !== 'ipns') || name === '') throw new Error('expected /ipfs/…, /ipns/… or //…')
  const path = parsePath(rest.join('/'))
  const cid = parseKey(name)
  if (space === 'ipns')
    return [{ space, key: cid ? keyOf(cid.multihash.bytes) : name.toLowerCase(), rule: { ...rule, path } }]
  if (!cid) throw new Error(`${name} is not a CID`)
  const key = keyOf(cid.multihash.bytes)
  return neverDenied.has(key) ? [] : [{ space, key, rule: { ...rule, path } }]
}

function parsePath(text: string): { text: string; prefix: boolean } {
  const prefix = text.endsWith('*')
  const bare = (prefix ? text.slice(0, -1) : text).replace(/\/+$/, '')
  return { text: bare.split('/').map(decoded).join('/'), prefix }
}

/** Keeps a name that is not valid percent-encoding. */
function decoded(name: string): string {
  try {
    return decodeURIComponent(name)
  } catch {
    return name
  }
}

function hashedRules(text: string, rule: Rule): KeyedRule[] {
  const found: KeyedRule[] = []
  // Base58 has no 0.
  if (!text.includes('0')) {
    try {
      const { code, digest } = decodeDigest(base58btc.baseDecode(text))
      if (doubleHash.has(code)) found.push({ space: 'hashed', key: hashedKey(code, digest), code, rule })
    } catch {
      // Not a multihash: try the older form.
    }
  }
  if (/^[0-9a-f]{64}$/i.test(text)) {
    found.push({ space: 'hashed', key: hashedKey(hash.sha256, Buffer.from(text, 'hex')), code: hash.sha256, rule })
  }
  if (found.length === 0)
    throw new Error('the double hash is neither a multihash of a known function nor a sha2-256 in hex')
  return found
}
