// The context of every command of Kubo's RPC: the parsing of its arguments, and its responses.
import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import { type ContentPath, parsePath } from '../../content/resolve.ts'
import { type Failure, malformed } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { Retrieval } from '../../retrieval/retrieval.ts'
import type { Session } from '../../retrieval/session.ts'
import type { Uploader } from '../../upload/quotas.ts'
import type { Uploads } from '../../upload/uploads.ts'
import { type GivenOptions, isOn } from '../add/add.ts'
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

export const notDone = (what: string, why: string): Failure =>
  malformed(`${what} is not supported: ${why}. Leave it out`)

/** Refuses booleans for which only false is supported. */
export function refuseOn(given: GivenOptions, off: Readonly<Record<string, string>>): void {
  for (const [name, why] of Object.entries(off)) if (isOn(given, name)) throw notDone(`${name}=true`, why)
}

/** Refuses other values than these; empty counts as absent. */
export function refuseOthers(given: GivenOptions, only: Readonly<Record<string, readonly string[]>>): void {
  for (const [name, values] of Object.entries(only)) {
    const value = given.get(name)
    if (value && !values.includes(value.toLowerCase()))
      throw notDone(`${name}=${value}`, `it is ${values.join(' or ')}`)
  }
}

/** Formats CIDs in the response: unchanged, or as version 1. */
export function spellingIn(given: GivenOptions): (cid: CID) => string {
  refuseOthers(given, { encoding: ['json'], 'cid-base': ['base32'] })
  const isUpgraded = Boolean(given.get('cid-base')) || isOn(given, 'upgrade-cidv0-in-output')
  return (cid) => (isUpgraded ? cid.toV1() : cid).toString()
}

export function numberOf(given: GivenOptions, name: string): number | undefined {
  const text = given.get(name)
  if (text === undefined) return undefined
  const value = /^-?\d+$/.test(text) ? Number(text) : Number.NaN
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
