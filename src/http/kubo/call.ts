// The context of every command of Kubo's RPC: the parsing of its arguments, and its responses.
import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import { type Shape, shapes } from '../../../backends/pinning/contract.ts'
import { type ContentPath, parsePath } from '../../content/resolve.ts'
import { type Failure, malformed } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { Retrieval, Session } from '../../retrieval/session.ts'
import type { Uploader } from '../../upload/quotas.ts'
import type { Uploads } from '../../upload/uploads.ts'
import { pinName, readFlag } from '../add/add.ts'
import type { Reach, Tokens } from '../add/upload-auth.ts'
import type { Limits } from '../limits.ts'
import type { Respond } from '../wire/problem.ts'
import type { RequestContext } from '../wire/request.ts'
import { cutWhenStalled, reset, type WriteOptions, writeAll } from '../wire/write.ts'

export type KuboDeps = WriteOptions & {
  readonly uploads: Uploads
  readonly retrieval: Retrieval
  readonly tokens: Tokens
  readonly reach: Reach
  readonly version: string
  /** Names, fastest first. */
  readonly tiers: readonly string[]
  readonly clientOf: (request: IncomingMessage) => Uploader
  readonly limits: Pick<Limits, 'charge'>
  readonly respond: Respond
  readonly log: Log
}

export type KuboCall = Pick<RequestContext, 'request' | 'response' | 'signal'> & {
  readonly query: URLSearchParams
  readonly session: Session
  readonly deps: KuboDeps
}

export function sendJson({ response, deps }: Pick<KuboCall, 'response' | 'deps'>, ...lines: readonly unknown[]): void {
  response.setHeader('Content-Type', 'application/json')
  response.writeHead(200)
  response.end(lines.map((line) => `${JSON.stringify(line)}\n`).join(''))
  cutWhenStalled(response, deps.stalledMs)
}

/** The single `arg` that most commands have. */
export function argOf(query: URLSearchParams): string {
  const [arg, ...more] = argsOf(query)
  if (more.length > 0) throw malformed('argument "ipfs-path" is required once')
  return arg
}

/** One or more `arg`s, without an optional prefix of the CID. */
export function argsOf(query: URLSearchParams): [string, ...string[]] {
  const [first, ...more] = query.getAll('arg').map(withoutPrefix)
  if (first === undefined) throw malformed('argument "ipfs-path" is required')
  return [first, ...more]
}

const withoutPrefix = (arg: string): string => arg.replace(/^\/?ipfs\//, '').replace(/^ipfs:\/\//, '')

/** Kubo's arguments are plain text, while a path is percent-encoded. */
export const pathOf = (arg: string): ContentPath =>
  parsePath(
    arg
      .split('/')
      .map((segment) => encodeURIComponent(segment))
      .join('/'),
  )

/** Repeatable options. */
const lists: readonly string[] = ['arg', 'ignore']

/** The options of a request by name. */
export type GivenOptions = ReadonlyMap<string, string>

/** Parses options as Kubo does: by name or alias, each once. Unknown options are ignored. */
export function optionsIn(query: URLSearchParams, aliases: Readonly<Record<string, string>>): GivenOptions {
  const given = new Map<string, string>()
  for (const [key, value] of query) {
    const name = Object.hasOwn(aliases, key) ? (aliases[key] as string) : key
    if (lists.includes(name)) continue
    if ((given.get(name) ?? value) !== value) throw malformed(`${name} is given twice with different values`)
    given.set(name, value)
  }
  return given
}

export function isOn(given: GivenOptions, name: string, otherwise: boolean): boolean {
  const value = given.get(name)
  return value === undefined ? otherwise : readFlag(name, value)
}

export const notDone = (what: string, why: string): Failure =>
  malformed(`${what} is not supported: ${why}. Leave it out`)

/** Refuses booleans for which only false is supported. */
export function refuseOn(given: GivenOptions, off: Readonly<Record<string, string>>): void {
  for (const [name, why] of Object.entries(off)) if (isOn(given, name, false)) throw notDone(`${name}=true`, why)
}

/** Refuses other values than these; empty counts as absent. */
function refuseOthers(given: GivenOptions, only: Readonly<Record<string, readonly string[]>>): void {
  for (const [name, values] of Object.entries(only)) {
    const value = given.get(name)
    if (value && !values.includes(value.toLowerCase()))
      throw notDone(`${name}=${value}`, `it is ${values.join(' or ')}`)
  }
}

/** Formats CIDs in the response: unchanged, or as version 1. */
export function spellingIn(given: GivenOptions): (cid: CID) => string {
  refuseOthers(given, { encoding: ['json'], 'cid-base': ['base32'] })
  const isUpgraded = Boolean(given.get('cid-base')) || isOn(given, 'upgrade-cidv0-in-output', false)
  return (cid) => (isUpgraded ? cid.toV1() : cid).toString()
}

export type AddQuery = {
  /** Undefined means the profile in the configuration. */
  readonly shape: Shape | undefined
  readonly isOnlyHashed: boolean
  /** Returns CIDs as v1. */
  readonly isUpgraded: boolean
  readonly isSilent: boolean
  /** The name of the pins. */
  readonly name: string | undefined
  /**
   * All parts belong to one directory: `around` means a directory that wraps them, `only` one among
   * the parts.
   */
  readonly directory: 'around' | 'only' | undefined
}

/** The profile of a Kubo with default settings: the old one. */
const kubos = shapes['unixfs-v0-2015']

// Smaller chunks cost too much: each is a stored block with a link in a parent node.
const minChunkBytes = 16 * 1024
// Kubo's limit: a block of 2 MiB without the overhead of a node.
const maxChunkBytes = 2 * 1024 * 1024 - 256
const minLinks = 2
const maxLinks = 8192

const aliases: Readonly<Record<string, string>> = {
  n: 'only-hash',
  w: 'wrap-with-directory',
  r: 'recursive',
  s: 'chunker',
  t: 'trickle',
  enc: 'encoding',
}

/** Booleans for which only false is supported. */
const off: Readonly<Record<string, string>> = {
  trickle: 'files are laid out balanced',
  inline: 'small blocks are stored as any other',
  nocopy: 'files are copied',
  'preserve-mode': 'files have no mode here',
  'preserve-mtime': 'files have no modification time here',
}

/** Refused with any value. */
const never: Readonly<Record<string, string>> = {
  mode: 'files have no mode here',
  mtime: 'files have no modification time here',
  'mtime-nsecs': 'files have no modification time here',
  'to-files': 'MFS is not supported',
}

/** The only supported values; empty counts as absent. */
const only: Readonly<Record<string, readonly string[]>> = {
  hash: ['sha2-256'],
  encoding: ['json'],
  'cid-base': ['base32'],
  'max-directory-links': ['0'],
  'max-hamt-fanout': ['256'],
}

export function readAddQuery(query: URLSearchParams): AddQuery {
  const given = optionsIn(query, aliases)
  refuseOn(given, off)
  for (const [name, why] of Object.entries(never)) if (given.get(name)) throw notDone(name, why)
  refuseOthers(given, only)
  return {
    shape: shapeOf(given),
    isOnlyHashed: isOn(given, 'only-hash', false),
    isUpgraded: Boolean(given.get('cid-base')) || isOn(given, 'upgrade-cidv0-in-output', false),
    isSilent: isOn(given, 'silent', false),
    name: pinName(given.get('pin-name')),
    directory: isOn(given, 'wrap-with-directory', false)
      ? 'around'
      : isOn(given, 'recursive', false)
        ? 'only'
        : undefined,
  }
}

/** Missing options have Kubo's defaults. Without any option the operator's profile applies. */
function shapeOf(given: GivenOptions): Shape | undefined {
  const chunker = given.get('chunker')
  if (!chunker && !['cid-version', 'raw-leaves', 'max-file-links'].some((name) => given.has(name))) return undefined
  const cidVersion = numberOf(given, 'cid-version') ?? kubos.cidVersion
  if (cidVersion !== 0 && cidVersion !== 1) throw malformed(`cid-version=${cidVersion} is not 0 or 1`)
  const width = numberOf(given, 'max-file-links') ?? kubos.width
  if (width < minLinks || width > maxLinks)
    throw malformed(`max-file-links=${width} is not from ${minLinks} to ${maxLinks}`)
  return {
    cidVersion,
    isRaw: isOn(given, 'raw-leaves', cidVersion === 1),
    chunkBytes: chunker ? chunkBytesOf(chunker) : kubos.chunkBytes,
    width,
    directorySize: kubos.directorySize,
  }
}

function chunkBytesOf(chunker: string): number {
  if (chunker === 'default') return kubos.chunkBytes
  const bytes = Number(/^size-(\d{1,9})$/.exec(chunker)?.[1])
  if (bytes >= minChunkBytes && bytes <= maxChunkBytes) return bytes
  throw notDone(`chunker=${chunker}`, `it is size-N, with N from ${minChunkBytes} to ${maxChunkBytes}`)
}

export function numberOf(given: GivenOptions, name: string): number | undefined {
  const text = given.get(name)
  if (text === undefined) return undefined
  const value = text.trim() === '' ? Number.NaN : Number(text)
  if (!Number.isSafeInteger(value)) throw malformed(`${name}=${text} is not a number`)
  return value
}

// Streamed responses and their failures after the first byte. Kubo reports those in a trailer, which
// many clients ignore, so the body must also look incomplete.

/** An error in Kubo's format. */
export type KuboError = { readonly Message: string; readonly Code: number; readonly Type: 'error' }

const trailer = 'X-Stream-Error'
const maxTrailerChars = 1024

type To = Pick<KuboCall, 'request' | 'response' | 'session' | 'deps'>
type Pieces = AsyncIterable<Uint8Array> | Iterable<Uint8Array>

/**
 * Reads the first piece before sending headers: until then a failure can still be an error status.
 */
export async function sendPieces({ response, session, deps }: Omit<To, 'request'>, pieces: Pieces): Promise<void> {
  async function* begun() {
    let isFirst = true
    for await (const piece of pieces) {
      if (isFirst) session.begun()
      isFirst = false
      yield piece
    }
  }
  await writeAll(response, begun(), deps)
}

/** Sends one line of JSON for each value. */
export async function sendLines(to: To, values: AsyncIterable<unknown>): Promise<void> {
  to.response.setHeader('Content-Type', 'application/json')
  to.response.setHeader('X-Chunked-Output', '1')
  async function* lines() {
    for await (const value of values) yield Buffer.from(`${JSON.stringify(value)}\n`)
  }
  await sendWithTrailer(to, lines())
}

/** For formats whose truncation is evident: a late failure goes into the trailer. */
export async function sendWithTrailer(to: To, pieces: Pieces): Promise<void> {
  async function* announced() {
    for await (const piece of pieces) {
      // Set only with the first piece, because an error with a length has no trailers. HTTP/1.0 has
      // none at all.
      if (!to.response.headersSent && to.request.httpVersion !== '1.0') to.response.setHeader('Trailer', trailer)
      yield piece
    }
  }
  await sendPieces(to, announced())
}

/**
 * Resets the connection if the client left or stalls, or if there is no trailer. Line formats get
 * one more line, which no client takes for data.
 */
export function endLate({ response, deps }: Omit<To, 'session'>, failure: Failure, error: KuboError): void {
  const hasTrailer = response.getHeader('Trailer') === trailer
  const isStalled = failure.kind === 'timeout' && failure.source === 'client'
  if (!hasTrailer || isStalled || response.destroyed || response.writableEnded) return reset(response)
  if (response.getHeader('Content-Type') === 'application/json') response.write(`${JSON.stringify(error)}\n`)
  response.addTrailers({ [trailer]: error.Message.slice(0, maxTrailerChars).replace(/[^\x20-\x7e]/g, '?') })
  response.end()
  cutWhenStalled(response, deps.stalledMs)
}
