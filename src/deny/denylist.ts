// Decides if the operator's lists deny a path or a block, and why. A check costs a few map reads,
// and one hash per function of the double-hashed rules.
import type { CID } from 'multiformats/cid'
import { parseDocument } from 'yaml'
import { plainValues } from '../core/plain-yaml.ts'
import { doubleHash, hashedKey, parseRule, type Rule } from './rules.ts'
import { createSpelling, type SpelledCid, type SpelledName } from './spelling.ts'

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
const mostHeaderBytes = 16 * 1024
const mostSearchedBytes = 1024 * 1024
const mostLineBytes = 2 * 1024 * 1024

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
    const end = /^---[ \t]*\r?$/m.exec(text.slice(0, mostSearchedBytes))
    if (!end) return text
    if (end.index > mostHeaderBytes)
      throw new Error(`the header before its --- is longer than ${mostHeaderBytes} bytes`)
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
          if (row.length > mostLineBytes) throw new Error('the line is too long')
          for (const { space, key, code, rule } of parseRule(trimmed, line, hints)) {
            const held = spaces[space].get(key)
            if (held) held.push(rule)
            else spaces[space].set(key, [rule])
            if (code !== undefined) codes.add(code)
            rules++
          }
        } catch (error) {
          faults.push({ line, what: error instanceof Error ? error.message : String(error) })
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

/**
 * A rule for a bare name denies it before it is resolved, and so every path below it; a later
 * exception still applies.
 */
function belowName(list: Denylist, name: SpelledName, segments: readonly string[]): Rule | undefined {
  const own = list.ipns(name, segments)
  const bare = segments.length === 0 ? undefined : list.ipns(name, [])
  return last([own, bare?.allow ? undefined : bare].filter((rule) => rule !== undefined))
}

/** Also applies rules for a CID to everything below it. */
function belowCid(list: Denylist, cid: SpelledCid, segments: readonly string[]): Rule | undefined {
  const own = list.path(cid, segments)
  const bare = segments.length === 0 ? undefined : list.path(cid, [])
  return last([own, bare?.allow ? undefined : bare].filter((rule) => rule !== undefined))
}

/** Combines lists in the operator's order: the first one with a matching rule decides. */
export function createDenylists(lists: () => readonly Denylist[]) {
  const spelling = createSpelling()
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
    path(cid: CID, segments: readonly string[]) {
      if (lists().length === 0) return undefined
      const spelled = spelling.cid(cid)
      return decide((list) => list.path(spelled, segments))
    },
    /** Also applies rules for the bare CID. */
    belowCid(cid: CID, segments: readonly string[]) {
      if (lists().length === 0) return undefined
      const spelled = spelling.cid(cid)
      return decide((list) => belowCid(list, spelled, segments))
    },
    /** Applies rules for exactly this path of a name. */
    name(name: string, segments: readonly string[]) {
      const spelled = spelling.name(name)
      return decide((list) => list.ipns(spelled, segments))
    },
    /** Also applies rules for the bare name. */
    belowName(name: string, segments: readonly string[]) {
      const spelled = spelling.name(name)
      return decide((list) => belowName(list, spelled, segments))
    },
  }
}
/** Lists of the operator; `belowCid` is for the gateway's own. */
export type Denylists = Omit<ReturnType<typeof createDenylists>, 'belowCid'>
