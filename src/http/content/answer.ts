// Handles one GET or HEAD of content, from the request to its representation. The order saves work:
// an invalid path costs nothing, a client with a current copy needs no body, a range reads only its
// blocks.

import type { IncomingMessage } from 'node:http'
import type { ContentPath } from '../../content/entity.ts'
import { refuseRemainder } from '../../content/formats/format.ts'
import { formats } from '../../content/formats/formats.ts'
import { parsePath } from '../../content/path.ts'
import { etagOf, type Representation } from '../../content/representation.ts'
import { resolve } from '../../content/resolve.ts'
import { codec } from '../../core/cid.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure, isFailure } from '../../core/failure.ts'
import { oneOf } from '../../core/header.ts'
import type { LookupRequest, Names } from '../../names/names.ts'
import { type Account, createAccount } from '../../observe/account.ts'
import type { Retrieval, Session } from '../../retrieval/session.ts'
import { type Accepted, plainOnly } from '../codings/accept-encoding.ts'
import type { AboutBody } from '../codings/compressible.ts'
import type { Compression } from '../codings/compression.ts'
import type { CostlyKind } from '../limits/client-budgets.ts'
import type { Limits } from '../limits/limits.ts'
import type { Unread } from '../unread.ts'
import { exchangeOf } from '../wire/exchange.ts'
import type { Mode } from '../wire/problem.ts'
import { HttpRefusal } from '../wire/refusal.ts'
import type { RequestContext } from '../wire/request-context.ts'
import type { RequestTarget } from '../wire/request-target.ts'
import type { Respond } from '../wire/respond.ts'
import { aboutPlain, bodyOf, tagsOf } from './body.ts'
import { tagOfCopy } from './conditional.ts'
import type { ContentPlace } from './content-place.ts'
import { deliver, moved, notModified, type OutgoingAnswer } from './deliver.ts'
import { octets } from './file-body.ts'
import type { JsonRule } from './json-rule.ts'
import { type Named, named } from './name.ts'
import { type Negotiated, negotiate } from './negotiate.ts'
import { rangeHint } from './range.ts'
import type { ResponseCache } from './response-cache.ts'
import { answerOnWeb, type Moved } from './web-body.ts'

export type AnswerDeps = {
  readonly retrieval: Retrieval
  readonly names: Names
  readonly hot: ResponseCache
  readonly compression: Compression
  /** Names, fastest first. */
  readonly tiers: readonly string[]
  readonly clock: Clock
  readonly mode: Mode
  readonly jsonMaxBytes: number
  readonly jsonRule: JsonRule
  readonly stalledMs: number
  readonly unread: Unread
  readonly limits: Pick<Limits, 'charge'>
  /** The client's address, for round-robin between clients at a busy upstream. */
  readonly clientOf: (request: IncomingMessage) => string
  /** Changes with the denylists; undefined if there are none. */
  readonly denyRevision: () => string | undefined
  readonly respond: Respond
}

export async function answerContent(context: RequestContext, place: ContentPlace, deps: AnswerDeps): Promise<void> {
  const { request, response, signal } = context
  const { epoch } = deps.hot
  const account = createAccount(deps.tiers)
  const exchange = exchangeOf(response)
  if (exchange) exchange.account = account
  let session: Session | undefined
  try {
    const client = deps.clientOf(request)
    const cameAt = deps.clock.monotonic()
    const turn = deps.retrieval.begin(client)
    if (turn !== undefined) await turn
    const waitedMs = turn === undefined ? 0 : deps.clock.monotonic() - cameAt
    const asked = cacheWishes(request.headers['cache-control'])
    const wishes = { signal, account, client, ...asked, ...(place.provider && { onlyIfCached: true }) }
    const about = await aboutOf(context, place, deps, wishes)
    // The content deadline starts here, so that resolving the name does not use it up.
    const visitNames = about.what.kind === 'content' ? about.what.visitNames : undefined
    session = deps.retrieval.session({
      ...wishes,
      waitedMs,
      visitNames,
      beforeMiss: () => charge('misses', request, deps),
    })
    await answer({ ...context, deps, place, session, account, epoch }, about)
  } catch (error) {
    const told = place.provider ? notHeld(error, request) : error
    deps.respond.failed(request, response, told, { account, headers: rangeHeaders(error) })
  } finally {
    session?.end()
  }
}

/** Throws if the client's budget is empty. */
function charge(kind: CostlyKind, request: IncomingMessage, { limits }: AnswerDeps): void {
  const refused = limits.charge(kind, request)
  if (refused) throw refused
}

type Wishes = LookupRequest & { readonly account: Account }

function cacheWishes(header: string | undefined): { onlyIfCached: boolean; noCache: boolean } {
  if (header === undefined) return { onlyIfCached: false, noCache: false }
  const directives = new Set(header.toLowerCase().split(/\s*,\s*/))
  return { onlyIfCached: directives.has('only-if-cached'), noCache: directives.has('no-cache') }
}

const rangeHeaders = (error: unknown): Record<string, string> =>
  error instanceof HttpRefusal && error.size !== undefined ? { 'Content-Range': `bytes */${error.size}` } : {}

type AskedContent = RequestContext & {
  readonly deps: AnswerDeps
  readonly place: ContentPlace
  readonly session: Session
  readonly epoch: number
  readonly account: Account
}

type About = {
  readonly negotiated: Negotiated
  readonly what: Named | { readonly kind: 'path'; readonly path: ContentPath }
}

async function aboutOf(
  { request, target }: RequestContext,
  place: ContentPlace,
  deps: AnswerDeps,
  wishes: Wishes,
): Promise<About> {
  const path = place.namespace === 'ipfs' ? parsePath(place.path.slice('/ipfs/'.length)) : undefined
  const negotiated = negotiate(target.query, request.headers.accept)
  if (place.provider && !(path && (negotiated.as === 'raw' || negotiated.as === 'car'))) throw notProvided()
  if (place.trustless && !provable.has(negotiated.as)) throw notProvable()
  if (path) return { negotiated, what: { kind: 'path', path } }
  return { negotiated, what: await named(place, target, negotiated, deps, wishes) }
}

async function answer(asked: AskedContent, { negotiated, what }: About): Promise<void> {
  const { request, deps } = asked
  if (what.kind === 'moved') return moved(asked, what)
  if (what.kind === 'record') return answerWith({ ...asked, roots: [] }, what.body, async () => what.body)
  const { path } = what
  const cacheControl = what.kind === 'content' ? what.cacheControl : undefined
  const mutable = cacheControl === undefined ? undefined : { cacheControl }
  const ifNoneMatch = request.headers['if-none-match']
  if (negotiated.as === 'file' && hasPlainTag(path, deps.mode) && !isAny(ifNoneMatch)) {
    const etag = tagOfCopy(ifNoneMatch, etagOf(path.cid), acceptedBy(asked))
    if (etag !== undefined) {
      asked.session.pass(path.cid, [])
      const type = deps.jsonRule.known(path.cid) === false ? octets : undefined
      return notModified({ ...asked, roots: [path.cid] }, { etag, type, ...mutable })
    }
  }
  const found = await find(asked, path, negotiated)
  if (found.kind === 'moved') return moved(asked, found)
  const { tags, delivery, body } = found
  if (mutable) return answerWith(delivery, { ...tags, ...mutable }, async () => ({ ...(await body()), ...mutable }))
  return answerWith(delivery, tags, body)
}

async function answerWith(delivery: OutgoingAnswer, tags: Tags, body: () => Promise<Representation>): Promise<void> {
  const { request, status = 200 } = delivery
  const ifNoneMatch = request.headers['if-none-match']
  const isTold = !(tags.onlyByTag && isAny(ifNoneMatch))
  const etag = status === 200 && isTold ? tagOfCopy(ifNoneMatch, tags.etag, acceptedBy(delivery, tags)) : undefined
  if (etag !== undefined) return notModified(delivery, { ...tags, etag })
  await deliver(delivery, await body())
}

/** The codings that the client accepts, if the response has coded variants. */
function acceptedBy({ request, deps }: Pick<OutgoingAnswer, 'request' | 'deps'>, about: AboutBody = {}): Accepted {
  if (request.headers['if-none-match'] === undefined || !deps.compression.covers(about)) return plainOnly
  return deps.compression.accepted(oneOf(request.headers['accept-encoding']))
}

const provable: ReadonlySet<Negotiated['as']> = new Set(['raw', 'car', 'ipns-record'])

const notProvable = (): Failure =>
  new Failure('unsupported', 'this host gives trustless answers only: ask for ?format=raw, car or ipns-record', {
    source: 'client',
  })

const notProvided = (): Failure =>
  new Failure('unsupported', 'this host gives blocks and CARs of /ipfs/<cid> only: ask for ?format=raw or car', {
    source: 'client',
  })

/** Other nodes ask for cached blocks to learn if this one has them, so a miss is a 404. */
function notHeld(error: unknown, { headers }: IncomingMessage): unknown {
  if (!isFailure(error, 'not-found') || !error.facts.onlyIfCached) return error
  if (cacheWishes(headers['cache-control']).onlyIfCached) return error
  return new Failure('not-found', 'this host does not hold it, and asks nobody else for it', { source: 'tier' })
}

/**
 * True if the ETag follows from the CID alone. False for a dag-pb root, which may be a listing, and
 * for a document in `web` mode, which may be a page: those have their own ETags.
 */
const hasPlainTag = ({ cid, segments }: ContentPath, mode: Mode): boolean =>
  segments.length === 0 && (cid.code === codec.raw || (mode === 'api' && cid.code !== codec.dagPb))

const isAny = (ifNoneMatch: string | undefined): boolean => ifNoneMatch?.trim() === '*'

// Formats that `web` mode serves as files and pages; every other format requests blocks explicitly.
const forBrowsers: ReadonlySet<Negotiated['as']> = new Set(['file', 'json', 'cbor'])

/**
 * Formats streamed with a check of every part against the denylists. A client's copy is current
 * only for the revision of the denylists it was made with.
 */
const exported: ReadonlySet<Negotiated['as']> = new Set(['car', 'tar'])

type Tags = Pick<Representation, 'etag' | 'cacheControl' | 'varies'> &
  AboutBody & {
    /** `If-None-Match: *` is not enough for a 304. */
    readonly onlyByTag?: boolean
  }

type Answerable = {
  readonly kind: 'content'
  readonly tags: Tags
  readonly delivery: OutgoingAnswer
  readonly body: () => Promise<Representation>
}

async function find(asked: AskedContent, path: ContentPath, negotiated: Negotiated): Promise<Answerable | Moved> {
  const { request, deps, place, session, target, signal } = asked
  if (negotiated.as === 'ipns-record') {
    throw new Failure('malformed', 'content has no IPNS record; keys do: /ipns/<key>', { source: 'client' })
  }
  if (exported.has(negotiated.as) && request.method === 'GET') charge('exports', request, deps)
  const format = negotiated.as === 'file' ? undefined : formats.get(negotiated.as)
  const revision = exported.has(negotiated.as) ? deps.denyRevision() : undefined
  const wanted = { query: target.query, parameters: negotiated.parameters, revision }
  const { jsonRule, jsonMaxBytes, hot } = deps
  const resolving = { range: bytesWanted(asked), lends: true, ...format?.wants(wanted) }
  const options = { jsonRule, jsonMaxBytes, wholeBytes: hot.maxItem, isPartial: isPartial(asked), lends: true, signal }
  const { accept, host } = request.headers
  const web =
    deps.mode === 'web' && forBrowsers.has(negotiated.as)
      ? await answerOnWeb(session, { path, place, target, negotiated, accept, host }, resolving, options)
      : undefined
  if (web?.kind === 'moved') return web
  const resolution = web?.resolution ?? (await resolve(session, path, resolving))
  const body = await format?.render(session, resolution, wanted)
  const { roots } = resolution
  if (body) {
    const tags = { ...body, onlyByTag: revision !== undefined }
    // A cache that ignores Accept must be able to tell this response from the default one.
    const location = negotiated.byAccept ? place.base + withFormat(target, negotiated) : undefined
    return { kind: 'content', tags, delivery: { ...asked, roots, location }, body: async () => body }
  }
  refuseRemainder(resolution)
  if (web) {
    const { tags, status, body } = web
    return { kind: 'content', tags, delivery: { ...asked, roots, status }, body }
  }
  return {
    kind: 'content',
    tags: { ...tagsOf(resolution), ...aboutPlain(resolution, jsonRule) },
    delivery: { ...asked, roots },
    body: () => bodyOf(session, resolution, target, options),
  }
}

const isPartial = ({ request: { method, headers } }: AskedContent): boolean =>
  method === 'HEAD' || headers.range !== undefined

/**
 * The bytes to request from upstreams along with the path: none for HEAD or a conditional request.
 */
function bytesWanted({ request: { method, headers } }: AskedContent): { from: number; to?: number } | undefined {
  return method === 'HEAD' || headers['if-none-match'] !== undefined ? { from: 0, to: 0 } : rangeHint(headers.range)
}

const carParameters = ['version', 'order', 'dups'] as const

function withFormat({ path, query }: RequestTarget, { as, parameters }: Negotiated): string {
  const named = new URLSearchParams(query)
  named.set('format', as)
  for (const name of as === 'car' ? carParameters : []) {
    // The query overrides Accept.
    if (parameters[name] && !named.get(`car-${name}`)) named.set(`car-${name}`, parameters[name])
  }
  return `${path}?${named}`
}
