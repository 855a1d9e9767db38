// A denylist (IPIP-383): parses its lines, and decides if a path or a block is denied, and why. A
// check costs a few map reads, and one hash per function of the double-hashed rules. A login page at
// the URL, or a half-written file, never replaces a list.

import { createHash } from 'node:crypto'
import { setImmediate } from 'node:timers/promises'
import { blake2b } from '@noble/hashes/blake2.js'
import { blake3 } from '@noble/hashes/blake3.js'
import { base58btc } from 'multiformats/bases/base58'
import { CID } from 'multiformats/cid'
import { decode as decodeDigest } from 'multiformats/hashes/digest'
import { parseDocument } from 'yaml'
import { codec, hash, parseKey } from '../core/cid.ts'
import { wordsOf } from '../core/failure.ts'
import { plainValues } from '../core/plain-yaml.ts'
import { decoded } from '../core/wire/http.ts'

export type Denial = {
  readonly list: string
  /** True means 451, if the rule gives a legal reason; otherwise 410. */
  readonly legal: boolean
  readonly reason: string | undefined
}

export type ListFault = { readonly line: number; readonly what: string }

/** A list; lines may be added at any time. */
export interface Denylist {
  readonly name: string
  readonly rules: number
  /** Counts lines that are neither empty nor comments. */
  readonly lines: number
  readonly hasHeader: boolean
  /** Adds complete lines; returns the faults of the lines that it skipped. */
  add(text: string): ListFault[]
  /** The rule that decides, if any. */
  path(cid: SpelledCid, segments: readonly string[]): Rule | undefined
  ipns(name: SpelledName, segments: readonly string[]): Rule | undefined
}

// The YAML parser takes time quadratic in the keys: half a MiB of them took a minute.
const maxHeaderBytes = 16 * 1024
const maxSearchedBytes = 1024 * 1024
const maxLineBytes = 2 * 1024 * 1024

export function createDenylist(name: string): Denylist {
  const spaces = { ipfs: new Map<string, Rule[]>(), ipns: new Map<string, Rule[]>(), hashed: new Map<string, Rule[]>() }
  const codes = new Set<number>()
  let hints: Readonly<Record<string, string>> = {}
  let line = 0
  let rules = 0
  let lines = 0
  let headerSeen = false
  let hasHeader = false

  function readHeader(text: string): string {
    headerSeen = true
    const end = /^---[ \t]*\r?$/m.exec(text.slice(0, maxSearchedBytes))
    if (!end) return text
    if (end.index > maxHeaderBytes) throw new Error(`the header before its --- is longer than ${maxHeaderBytes} bytes`)
    const header = plainYaml(text.slice(0, end.index))
    if (header !== null) {
      if (typeof header !== 'object' || Array.isArray(header))
        throw new Error('the text before its --- is not a header')
      hasHeader = true
      const { version = 1, hints: given } = header as { version?: unknown; hints?: Record<string, unknown> }
      if (version !== 1) throw new Error(`version ${String(version)} is not one this gateway reads`)
      hints = Object.fromEntries(Object.entries(given ?? {}).map(([key, value]) => [key, hintOf(key, value)]))
    }
    line = text.slice(0, end.index).split('\n').length
    return text.slice(end.index + end[0].length + 1)
  }

  const hashedRules = (texts: readonly string[]): Rule[] =>
    [...codes].flatMap((code) =>
      texts.flatMap(
        (text) => spaces.hashed.get(hashedKey(code, doubleHash.get(code)?.(text) ?? new Uint8Array())) ?? [],
      ),
    )

  return {
    name,
    get rules() {
      return rules
    },
    get lines() {
      return lines
    },
    get hasHeader() {
      return hasHeader
    },
    add(text) {
      const faults: ListFault[] = []
      for (const row of (headerSeen ? text : readHeader(text)).replace(/\n$/, '').split('\n')) {
        line++
        const trimmed = row.trim()
        if (trimmed === '' || trimmed.startsWith('#')) continue
        lines++
        try {
          if (row.length > maxLineBytes) throw new Error('the line is too long')
          for (const { space, key, code, rule } of parseRule(trimmed, line, hints)) {
            const held = spaces[space].get(key)
            if (held) held.push(rule)
            else spaces[space].set(key, [rule])
            if (code !== undefined) codes.add(code)
            rules++
          }
        } catch (error) {
          faults.push({ line, what: wordsOf(error) })
        }
      }
      return faults
    },
    path({ hash, v1 }, segments) {
      const path = segments.join('/')
      return last([
        ...matching(spaces.ipfs.get(hash), path),
        ...hashedRules([path === '' ? hash : `${hash}/${path}`, `${v1}/${path}`]),
      ])
    },
    ipns({ key, modern, legacy }, segments) {
      const path = segments.join('/')
      return last([
        ...matching(spaces.ipns.get(key), path),
        ...hashedRules([path === '' ? modern : `${modern}/${path}`, `${legacy}/${path}`]),
      ])
    },
  }
}

function plainYaml(text: string): unknown {
  const document = parseDocument(text)
  const [error] = document.errors
  if (error) throw error
  return plainValues(document)
}

/** Refuses collections: aliases of lists could expand without end. */
function hintOf(key: string, value: unknown): string {
  if (typeof value === 'object' && value !== null) throw new Error(`the hint ${key} is no text`)
  return String(value)
}

function matching(rules: readonly Rule[] | undefined, path: string): Rule[] {
  return (rules ?? []).filter(
    (rule) => rule.path && (rule.path.prefix ? path.startsWith(rule.path.text) : path === rule.path.text),
  )
}

const last = (rules: readonly Rule[]): Rule | undefined =>
  rules.reduce<Rule | undefined>((latest, rule) => (latest && latest.order > rule.order ? latest : rule), undefined)

/** A rule for a bare CID or name also denies every path below it; a later exception still applies. */
function below(find: (segments: readonly string[]) => Rule | undefined, segments: readonly string[]): Rule | undefined {
  const own = find(segments)
  const root = segments.length === 0 ? undefined : find([])
  return last([own, root?.allow ? undefined : root].filter((rule) => rule !== undefined))
}

/** Combines lists in the operator's order: the first one with a matching rule decides. */
export function createDenylists(lists: () => readonly Denylist[]) {
  const spellings = new WeakMap<CID, SpelledCid>()
  const spelled = (cid: CID): SpelledCid => {
    const known = spellings.get(cid)
    if (known) return known
    const made = { hash: keyOf(cid.multihash.bytes), v1: CID.createV1(cid.code, cid.multihash).toString() }
    spellings.set(cid, made)
    return made
  }
  const decide = (rule: (list: Denylist) => Rule | undefined): Denial | undefined => {
    for (const list of lists()) {
      const found = rule(list)
      if (!found) continue
      if (found.allow) return undefined
      return { list: list.name, legal: found.hints['status'] === '451', reason: found.hints['reason'] }
    }
    return undefined
  }
  return {
    /** Checks a CID with the path below it, or one resolved component with nothing below. */
    path: (cid: CID, segments: readonly string[]) => decide((list) => list.path(spelled(cid), segments)),
    /** Also applies rules for the bare CID. */
    belowCid: (cid: CID, segments: readonly string[]) =>
      decide((list) => below((rest) => list.path(spelled(cid), rest), segments)),
    /** Also applies rules for the bare name, which is checked before it is resolved. */
    belowName(name: string, segments: readonly string[]) {
      if (lists().length === 0) return undefined
      const spelling = spellName(name)
      return decide((list) => below((rest) => list.ipns(spelling, rest), segments))
    },
  }
}

export type ReadList = {
  readonly list: Denylist
  /** The hash of the text. */
  readonly digest: string
  /** The first of them. */
  readonly faults: readonly ListFault[]
  readonly faultCount: number
}

const maxFaultsReported = 10
const headBytes = 1024 * 1024
const pieceBytes = 256 * 1024

export async function readList(name: string, text: string): Promise<ReadList> {
  const list = createDenylist(name)
  const hash = createHash('sha256')
  const faults: ListFault[] = []
  let faultCount = 0
  for (const piece of pieces(text)) {
    hash.update(piece)
    const found = list.add(piece)
    faultCount += found.length
    faults.push(...found.slice(0, maxFaultsReported - faults.length))
    await setImmediate() // a large list must not block the event loop
  }
  return { list, digest: hash.digest('hex'), faults, faultCount }
}

/**
 * The reason not to replace a list of `rulesBefore` rules with this one; undefined means to accept
 * it.
 */
export function objection(
  { list, faults, faultCount }: ReadList,
  { rulesBefore, isEmptyOdd }: { readonly rulesBefore: number; readonly isEmptyOdd: boolean },
): string | undefined {
  if (faultCount * 2 > list.lines) {
    const [{ line, what } = { line: 0, what: '' }] = faults
    return `${faultCount} of its ${list.lines} lines are invalid, first line ${line} (${what})`
  }
  if (list.rules > 0) return undefined
  if (rulesBefore > 0) return `it has no rule, and had ${rulesBefore}`
  if (isEmptyOdd && !list.hasHeader) return 'it has neither a rule nor a header'
  return undefined
}

/** Splits at line ends; the first piece is large enough for the header of a list. */
function* pieces(text: string): Generator<string> {
  for (let from = 0; from < text.length; ) {
    const end = text.indexOf('\n', from + (from === 0 ? headBytes : pieceBytes))
    const to = end === -1 ? text.length : end + 1
    yield text.slice(from, to)
    from = to
  }
}

type Rule = {
  /** The position in the list: the last matching rule decides. */
  readonly order: number
  readonly allow: boolean
  /** The paths below the key; undefined for a hashed rule, whose key covers the path. */
  readonly path?: { readonly text: string; readonly prefix: boolean } | undefined
  readonly hints: Readonly<Record<string, string>>
}

type KeyedRule = {
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

const doubleHash: ReadonlyMap<number, (text: string) => Uint8Array> = new Map<number, (text: string) => Uint8Array>([
  [hash.sha256, (text) => createHash('sha256').update(text).digest()],
  [0x13, (text) => createHash('sha512').update(text).digest()],
  [0x1e, (text) => blake3(new TextEncoder().encode(text))],
  [0xb220, (text) => blake2b(new TextEncoder().encode(text), { dkLen: 32 })],
])

const keyOf = (multihash: Uint8Array): string => base58btc.baseEncode(multihash)
/** In hex, because base58 takes ten times as long for hundreds of thousands of rules. */
const hashedKey = (code: number, digest: Uint8Array): string => `${code} ${Buffer.from(digest).toString('hex')}`

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
function parseRule(line: string, order: number, listHints: Readonly<Record<string, string>>): KeyedRule[] {
  const [first = '', ...hintWords] = line.trim().split(/\s+/)
  const allow = /^[!+-]/.test(first)
  const text = allow ? first.slice(1) : first
  const hints: Record<string, string> = { ...listHints }
  for (const word of hintWords) {
    const at = word.indexOf('=')
    if (at > 0) hints[word.slice(0, at)] = word.slice(at + 1)
  }
  const rule = { order, allow, hints }
  if (text.startsWith('//')) return parseHashed(text.slice(2), rule)
  const [, space, name = '', ...rest] = text.split('/')
  if ((space !== 'ipfs' && space !== 'ipns') || name === '') throw new Error('expected /ipfs/…, /ipns/… or //…')
  const path = rulePath(rest.join('/'))
  const cid = parseKey(name)
  if (space === 'ipns')
    return [{ space, key: cid ? keyOf(cid.multihash.bytes) : name.toLowerCase(), rule: { ...rule, path } }]
  if (!cid) throw new Error(`${name} is not a CID`)
  const key = keyOf(cid.multihash.bytes)
  return neverDenied.has(key) ? [] : [{ space, key, rule: { ...rule, path } }]
}

function rulePath(text: string): { text: string; prefix: boolean } {
  const prefix = text.endsWith('*')
  const root = (prefix ? text.slice(0, -1) : text).replace(/\/+$/, '')
  return {
    text: root
      .split('/')
      // A name that is not valid percent-encoding is kept.
      .map((name) => decoded(name) ?? name)
      .join('/'),
    prefix,
  }
}

function parseHashed(text: string, rule: Rule): KeyedRule[] {
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

type SpelledCid = { readonly hash: string; readonly v1: string }
type SpelledName = { readonly key: string; readonly modern: string; readonly legacy: string }

function spellName(asked: string): SpelledName {
  const cid = parseKey(asked)
  if (cid) {
    const key = keyOf(cid.multihash.bytes)
    return { key, modern: key, legacy: CID.createV1(codec.libp2pKey, cid.multihash).toString() }
  }
  const domain = domainOf(asked)
  return { key: domain, modern: `/ipns/${domain}`, legacy: domain }
}

/** Converts a DNSLink name inlined as one label (`en-wikipedia--on--ipfs-org`) to its domain. */
function domainOf(name: string): string {
  const lower = name.toLowerCase().replace(/\.$/, '')
  if (lower.includes('.')) return lower
  return lower.replaceAll('--', '\0').replaceAll('-', '.').replaceAll('\0', '-')
}
