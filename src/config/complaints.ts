// The mistakes of a configuration, one line each: `config: <key.path>: <what> (expected …)`. A
// value is shown as in the file, never with ${…} substituted, and only where it cannot be a secret.
import { z } from 'zod'
import { isSecretName } from '../core/log.ts'

export type Path = readonly PropertyKey[]

/** A mistake in the configuration as such, at a key, or at a position in the file. */
export type Complaint =
  | string
  | { readonly path: Path; readonly what: string }
  | { readonly position: string; readonly what: string }

/** The position of a value in the file, if known: `cidgate.yaml:3:9`. */
export type PositionOf = (path: Path) => string | undefined

/** An invalid configuration. `lines` names each mistake with the path of its key. */
export class ConfigError extends Error {
  readonly complaints: readonly Complaint[]
  /** A line for each mistake, without its position. */
  readonly lines: readonly string[]
  /** The mistakes as objects, for programs. */
  readonly mistakes: readonly Mistake[]

  constructor(complaints: readonly Complaint[], positionOf: PositionOf = () => undefined) {
    super(complaints.map((one) => `${lineOf(one)}${positionIn(one, positionOf)}`).join('\n'))
    this.name = 'ConfigError'
    this.complaints = complaints
    this.lines = complaints.map(lineOf)
    this.mistakes = complaints.map((one) => mistakeOf(one, positionOf))
  }
}

type Mistake = {
  readonly key?: string | undefined
  readonly what: string
  readonly position?: string | undefined
}

function mistakeOf(one: Complaint, positionOf: PositionOf): Mistake {
  if (typeof one === 'string') return { what: one }
  if ('position' in one) return { what: one.what, position: one.position }
  return { key: keyPath(one.path), what: one.what, position: positionOf(one.path) }
}

function lineOf(one: Complaint): string {
  if (typeof one === 'string') return `config: ${one}`
  if ('position' in one) return `config: ${one.what}`
  return `config: ${keyPath(one.path)}${one.what.startsWith(isCalled) ? '' : ':'} ${one.what}`
}

function positionIn(one: Complaint, positionOf: PositionOf): string {
  const position = typeof one === 'string' ? undefined : 'position' in one ? one.position : positionOf(one.path)
  return position === undefined ? '' : ` [${position}]`
}

type Issue = z.core.$ZodIssue

const typeNames: Readonly<Record<string, string>> = {
  string: 'a string',
  number: 'a number',
  int: 'a whole number',
  boolean: 'true or false',
  object: 'a mapping of keys',
  record: 'a mapping of keys',
  array: 'a list',
}

/** Passed to zod, which knows the valid keys only while it parses. */
export const knownKeys = (issue: z.core.$ZodRawIssue): string | undefined =>
  issue.code === 'unrecognized_keys' && issue.inst instanceof z.ZodObject
    ? Object.keys(issue.inst.shape).join(' ')
    : undefined

/** `tree` is the content of the file before ${…} is substituted. */
export function complaints(issues: readonly Issue[], tree: unknown): Complaint[] {
  return issues.flatMap((issue) => complain(issue, [], tree))
}

function complain(issue: Issue, above: Path, tree: unknown): Complaint[] {
  const path = [...above, ...issue.path]
  if (issue.code === 'unrecognized_keys') {
    return issue.keys.map((key) => unknownKey([...path, key], issue.message.split(' ')))
  }
  if (issue.code === 'invalid_union' && !issue.message.startsWith('expected')) {
    const inside = issue.errors.find((branch) => !branch.some(({ path: at }) => at.length === 0 && isOther(branch)))
    const value = valueAt(tree, path)
    if (inside && typeof value === 'object' && value !== null) return inside.flatMap((one) => complain(one, path, tree))
  }
  if (issue.code === 'invalid_key') return [{ path, what: `is not a key that can be here (${expectation(issue)})` }]
  const what = issue.message.includes('(expected ')
    ? issue.message
    : `${describeValue(valueAt(tree, path), path, issue)} (${expectation(issue)})`
  return [{ path, what }]
}

/** `known`: the valid keys. */
function unknownKey(path: Path, known: readonly string[]): Complaint {
  const name = renamed(path)
  if (name && known.includes(String(name.at(-1)))) return { path, what: `${isCalled}${keyPath(name)}` }
  return { path, what: `unknown key (${suggestion(String(path.at(-1)), known)})` }
}

const isCalled = 'is called '

// A union branch of another type says nothing about the intention.
const isOther = (branch: readonly Issue[]): boolean =>
  branch.some(({ code, path }) => path.length === 0 && code !== 'unrecognized_keys')

function expectation(issue: Issue): string {
  if (issue.message.startsWith('expected ')) return issue.message
  switch (issue.code) {
    case 'invalid_type':
      return `expected ${typeNames[issue.expected] ?? issue.expected}`
    case 'invalid_value':
      return `expected ${oneOf(issue.values.map(String))}`
    case 'invalid_union':
      return issue.discriminator === undefined ? eitherOf(issue.errors) : `expected ${oneOf(choices(issue))}`
    case 'too_small':
      if (issue.minimum === 1 && issue.origin !== 'number' && issue.origin !== 'int')
        return 'expected it not to be empty'
      return `expected at least ${issue.minimum}${unitOf(issue.origin)}`
    case 'too_big':
      return `expected at most ${issue.maximum}${unitOf(issue.origin)}`
    case 'invalid_key':
      return issue.issues[0] ? expectation(issue.issues[0]) : 'expected another key'
    case 'invalid_format':
      return `expected ${issue.format === 'url' ? 'a URL such as https://example.org' : issue.format}`
    default:
      return `expected something else: ${issue.message}`
  }
}

function eitherOf(branches: readonly (readonly Issue[])[]): string {
  const words = branches.map(([first]) => (first ? expectation(first).replace(/^expected /, '') : ''))
  return `expected ${oneOf([...new Set(words.filter(Boolean))])}`
}

const choices = (issue: z.core.$ZodIssueInvalidUnion): string[] =>
  'options' in issue && Array.isArray(issue.options) ? issue.options.filter((one) => typeof one === 'string') : []

const unitOf = (origin: string): string =>
  origin === 'string' ? ' characters' : origin === 'array' || origin === 'set' ? ' of them' : ''

const oneOf = (words: readonly string[]): string =>
  words.length < 2 ? words.join('') : `${words.slice(0, -1).join(', ')} or ${words.at(-1)}`

function describeValue(value: unknown, path: Path, issue: Issue): string {
  if (value === undefined) return 'is missing'
  if (value === null) return 'is empty'
  if (Array.isArray(value)) return 'is a list'
  if (typeof value === 'object') return 'is a mapping'
  return isShown(value, path, issue) ? `${JSON.stringify(value)} is not valid` : 'is not valid'
}

const sizeOrTime = /^\d+(?:\.\d+)? ?(?:ms|[smhd]|seconds?|minutes?|hours?|days?|[KMGT]?i?B)$/i
const variable = /^\$\{[^}]*\}$/

/**
 * A string is shown if only a few words are valid, or if its form rules out a secret: at any other
 * key it may be one.
 */
function isShown(value: unknown, path: Path, issue: Issue): boolean {
  if (isSecret(path, value)) return false
  if (typeof value !== 'string') return issue.code !== 'invalid_type' || issue.expected !== 'string'
  const isChoice = issue.code === 'invalid_value' || ('discriminator' in issue && issue.discriminator !== undefined)
  return isChoice || sizeOrTime.test(value) || variable.test(value)
}

/**
 * `limits.headersTimeout` is a duration, while the `headers` of an upstream may contain a token.
 */
const isTime = (path: Path, value: unknown): boolean =>
  typeof value === 'number' && keyPath(path) === 'limits.headersTimeout'

export const isSecret = (path: Path, value: unknown): boolean => {
  const text = String(value)
  return text.length > 80 || text.includes('@') || path.some((key) => isSecretName(String(key)) && !isTime(path, value))
}

export function valueAt(tree: unknown, path: Path): unknown {
  let node = tree
  for (const key of path) {
    if (typeof node !== 'object' || node === null || !Object.hasOwn(node, key)) return undefined
    node = (node as Record<PropertyKey, unknown>)[key]
  }
  return node
}

/**
 * Formats a path, such as `cache.tiers[1].path`. A long key, or one with spaces, is probably a
 * value, and hidden.
 */
export function keyPath(path: Path): string {
  const text = path.map((key) => (typeof key === 'number' ? `[${key}]` : `.${shown(String(key))}`)).join('')
  return text.replace(/^\./, '') || 'the file'
}

const shown = (key: string): string => (/^[^\s\p{C}]{1,64}$/u.test(key) ? key : '"…"')

function suggestion(key: string, known: readonly string[]): string {
  const meant = nearest(key, known, Math.max(1, key.length / 3))
  return meant === undefined ? `expected ${oneOf(known)}` : `did you mean ${meant}?`
}

/** The known word within `most` edits. */
export function nearest(word: string, known: readonly string[], maxDistance: number): string | undefined {
  const near = known.map((one) => ({ one, far: distance(word.toLowerCase(), one.toLowerCase()) }))
  const [best] = near.sort((a, b) => a.far - b.far)
  return best && best.far <= maxDistance ? best.one : undefined
}

/** Damerau–Levenshtein distance: insertions, deletions, changes and swaps of neighbours. */
function distance(one: string, other: string): number {
  const rows = [Array.from({ length: other.length + 1 }, (_, column) => column)]
  const at = (row: number, column: number): number => rows[row]?.[column] ?? Number.POSITIVE_INFINITY
  for (let row = 1; row <= one.length; row++) {
    const line = [row]
    rows.push(line)
    for (let column = 1; column <= other.length; column++) {
      const same = one[row - 1] === other[column - 1]
      const swapped = row > 1 && column > 1 && one[row - 1] === other[column - 2] && one[row - 2] === other[column - 1]
      const changed = at(row - 1, column - 1) + (same ? 0 : 1)
      line.push(
        Math.min(
          changed,
          at(row - 1, column) + 1,
          (line[column - 1] ?? 0) + 1,
          swapped ? at(row - 2, column - 2) + 1 : changed,
        ),
      )
    }
  }
  return at(one.length, other.length)
}

/** Renamed keys: an old one is refused with the name of the new one. */
export const renamedKeys: Readonly<Record<string, string>> = {
  'upload.idle': 'upload.idleTimeout',
  'upload.mostBytes': 'upload.maxPendingBytes',
  'upload.rpc': 'upload.kuboRpc',
  'upload.through': 'upload.forwardTo',
  'pinning.confirm': 'pinning.minConfirmations',
  'pinning.queue': 'pinning.acceptWhileUnavailable',
  'pinning.providers[].connect': 'pinning.providers[].connectTimeout',
  'pinning.providers[].how': 'pinning.providers[].uploadAs',
  'pinning.providers[].idle': 'pinning.providers[].idleTimeout',
  'pinning.providers[].patience': 'pinning.providers[].cidTimeout',
  'pinning.providers[].pieceBytes': 'pinning.providers[].chunkBytes',
  'retrieval.blockDeadline': 'retrieval.blockTimeout',
  'retrieval.deadline': 'retrieval.timeout',
  'retrieval.hedge': 'retrieval.hedgeDelay',
  'retrieval.keepLooking': 'retrieval.backgroundSearch',
  'retrieval.notFound': 'retrieval.negativeCache',
  'retrieval.negativeCache.first': 'retrieval.negativeCache.initialTtl',
  'retrieval.negativeCache.most': 'retrieval.negativeCache.maxTtl',
  'retrieval.upstreams[].connect': 'retrieval.upstreams[].connectTimeout',
  'retrieval.upstreams[].connections': 'retrieval.upstreams[].maxConnections',
  'retrieval.upstreams[].firstByte': 'retrieval.upstreams[].firstByteTimeout',
  'retrieval.upstreams[].idle': 'retrieval.upstreams[].bodyTimeout',
  'cache.fillBytes': 'cache.writeQueueBytes',
  'cache.hot': 'cache.responses',
  'cache.responses.maxItem': 'cache.responses.maxItemBytes',
  'cache.tiers[].missing403': 'cache.tiers[].treat403AsMissing',
  'names.deadline': 'names.timeout',
  'names.links': 'names.static',
  'names.most': 'names.maxEntries',
  'names.notFound': 'names.negativeTtl',
  'names.sites': 'names.dnslinkSites',
  'names.ttl.least': 'names.ttl.min',
  'names.ttl.most': 'names.ttl.max',
  'limits.connections': 'limits.maxConnections',
  'limits.connectionsPerClient': 'limits.maxConnectionsPerClient',
  'limits.grace': 'limits.shutdownTimeout',
  'limits.headers': 'limits.headersTimeout',
  'limits.inFlight': 'limits.maxConcurrentRequests',
  'limits.keepAlive': 'limits.keepAliveTimeout',
  'limits.lameDuck': 'limits.shutdownDelay',
  'limits.loopDelay': 'limits.maxEventLoopDelay',
  'limits.sharedBy': 'limits.sharedStore',
  'limits.stalled': 'limits.writeTimeout',
  'limits.unread': 'limits.maxPendingResponseBytes',
}

/**
 * The path of the new key, with the list indexes of `path`; undefined if the key was not renamed.
 */
function renamed(path: readonly PropertyKey[]): PropertyKey[] | undefined {
  const pattern = path.map((key) => (typeof key === 'number' ? '[]' : `.${String(key)}`)).join('')
  const old = pattern.slice(1)
  const name = Object.hasOwn(renamedKeys, old) ? renamedKeys[old] : undefined
  return name === undefined ? undefined : [...path.slice(0, -1), name.slice(name.lastIndexOf('.') + 1)]
}
