// Handles one GET or HEAD of content, from the request to its representation. The order saves work:
// an invalid path costs nothing, a client with a current copy needs no body, a range reads only its
// blocks.

import type { IncomingMessage } from 'node:http'
import { formats } from '../../content/formats/formats.ts'
import type { JsonDetector } from '../../content/json.ts'
import {
  type ContentPath,
  etagOf,
  leafInMemory,
  parsePath,
  type Resolution,
  refuseRemainder,
  resolveSoon,
} from '../../content/resolve.ts'
import { codec } from '../../core/cid.ts'
import { after, type Clock, type Soon } from '../../core/clock.ts'
import { Failure, isFailure, malformed } from '../../core/failure.ts'
import { oneOf } from '../../core/wire/http.ts'
import type { Names } from '../../names/names.ts'
import type { RequestRecord } from '../../observe/requests.ts'
import type { Retrieval } from '../../retrieval/retrieval.ts'
import type { Session, VisitNames } from '../../retrieval/session.ts'
import type { Compression } from '../compression.ts'
import type { ContentPlace } from '../hosts.ts'
import type { Limits } from '../limits.ts'
import { newRecord } from '../wire/exchange.ts'
import type { Mode, Respond } from '../wire/problem.ts'
import type { RequestContext, RequestTarget } from '../wire/request.ts'
import type { PendingResponses } from '../wire/write.ts'
import { type Offer, octets, offerOf, type Tags } from './body.ts'
import { deliver, moved, notModified, sendCached } from './deliver.ts'
import { named } from './name.ts'
import { currentCopy, type Negotiated, negotiate, plainOnly, rangeHint } from './negotiate.ts'
import type { CachedResponses, ResponseCache } from './response-cache.ts'
import { answerOnWeb, type Moved } from './web-body.ts'

export type AnswerDeps = {
  readonly retrieval: Retrieval
  readonly names: Names
  readonly hot: ResponseCache
  readonly cached: Pick<CachedResponses, 'find'>
  readonly compression: Compression
  /** Names, fastest first. */
  readonly tiers: readonly string[]
  readonly clock: Clock
  readonly mode: Mode
  readonly jsonMaxBytes: number
  readonly jsonDetector: JsonDetector
  readonly stalledMs: number
  readonly pendingResponses: PendingResponses
  readonly limits: Pick<Limits, 'charge'>
  /** The client's address, for round-robin between clients at a busy upstream. */
  readonly clientOf: (request: IncomingMessage) => string
  /** Changes with the denylists; undefined if there are none. */
  readonly denyRevision: () => string | undefined
  readonly respond: Respond
}

/** `broke`: the failure itself could not be answered. */
export function answerContent(
  context: RequestContext,
  place: ContentPlace,
  deps: AnswerDeps,
  broke: (error: unknown) => void,
): void {
  const { request, response } = context
  const requestRecord = newRecord(response, deps.tiers)
  const asking: Asking = { ...context, deps, place, requestRecord, epoch: deps.hot.epoch, session: undefined }
  const end = () => asking.session?.end()
  const fail = (error: unknown) => {
    try {
      const shown = place.provider ? notHeld(error, request) : error
      deps.respond.failed(request, response, shown, { requestRecord })
    } catch (unanswered) {
      broke(unanswered)
    } finally {
      end()
    }
  }
  try {
    const cached = deps.cached.find(request, place.cacheKey)
    if (cached) return sendCached(asking, cached)
    const answered = answer(asking)
    if (answered instanceof Promise) answered.then(end, fail)
    else end()
  } catch (error) {
    fail(error)
  }
}

function cacheWishes(header: string | undefined): { onlyIfCached: boolean; noCache: boolean } {
  if (header === undefined) return { onlyIfCached: false, noCache: false }
  const directives = new Set(header.toLowerCase().split(/\s*,\s*/))
  return { onlyIfCached: directives.has('only-if-cached'), noCache: directives.has('no-cache') }
}

type AskedContent = RequestContext & {
  readonly deps: AnswerDeps
  readonly place: ContentPlace
  readonly session: Session
  readonly epoch: number
  readonly requestRecord: RequestRecord
}

type Asking = Omit<AskedContent, 'session'> & { session: Session | undefined }

function answer(asking: Asking): Soon<void> {
  const { request, target, place, requestRecord, signal, deps } = asking
  const path = place.namespace === 'ipfs' ? parsePath(place.path.slice('/ipfs/'.length)) : undefined
  const negotiated = negotiate(target.query, request.headers.accept)
  if (place.provider && !(path && (negotiated.as === 'raw' || negotiated.as === 'car')))
    throw servesOnly('blocks and CARs of /ipfs/<cid> only: use ?format=raw or car')
  if (place.trustless && !provable.has(negotiated.as))
    throw servesOnly('trustless responses only: use ?format=raw, car or ipns-record')
  const client = deps.clientOf(request)
  const asked = cacheWishes(request.headers['cache-control'])
  const wishes = { signal, requestRecord, client, ...asked, ...(place.provider && { onlyIfCached: true }) }
  const open = (more: { readonly waitedMs?: number; readonly visitNames?: VisitNames }): AskedContent => {
    const session = deps.retrieval.session({
      ...wishes,
      ...more,
      beforeMiss: () => deps.limits.charge('misses', request),
    })
    return Object.assign(asking, { session })
  }
  if (path) {
    const opened = open({})
    if (isUnchanged(opened, path, negotiated)) return undefined
    const leaf = negotiated.as === 'file' && deps.mode === 'api' ? leafInMemory(opened.session, path, lent) : undefined
    if (leaf) return answerPath(opened, path, negotiated, { leaf })
    return after(deps.retrieval.begin(client), () => answerPath(opened, path, negotiated))
  }
  const arrivedAt = deps.clock.monotonic()
  return after(deps.retrieval.begin(client), async () => {
    const waitedMs = deps.clock.monotonic() - arrivedAt
    const what = await named(place, target, negotiated, deps, wishes)
    if (what.kind === 'moved') return deps.respond.send(asking, moved(asking, what))
    // The content deadline starts here, so that resolving the name does not use it up.
    if (what.kind === 'record') return send(open({ waitedMs }), { ...what.body, roots: [], content: () => what.body })
    const { cacheControl, visitNames } = what
    const opened = open({ waitedMs, visitNames })
    const mutable = { cacheControl }
    if (!isUnchanged(opened, what.path, negotiated, mutable))
      await answerPath(opened, what.path, negotiated, { mutable })
  })
}

const lent = { lends: true } as const

type Mutable = { readonly cacheControl: string }

/** True if the CID alone proves that the client's copy is current, and the client got 304. */
function isUnchanged(asked: AskedContent, path: ContentPath, negotiated: Negotiated, mutable?: Mutable): boolean {
  const { request, deps, session } = asked
  const { 'if-match': ifMatch, 'if-none-match': ifNoneMatch } = request.headers
  if (ifNoneMatch === undefined || ifMatch !== undefined) return false
  if (negotiated.as !== 'file' || !hasPlainTag(path, deps.mode)) return false
  const { cid } = path
  const type = deps.jsonDetector.known(cid) === false ? octets : undefined
  const offer = { roots: [cid], etag: etagOf(cid), type, onlyByTag: true, ...mutable }
  const etag = copyOf(asked, offer)
  if (etag === undefined) return false
  session.pass(cid, [])
  notModified(asked, offer, etag)
  return true
}

function answerPath(
  asked: AskedContent,
  path: ContentPath,
  negotiated: Negotiated,
  { leaf, mutable }: { readonly leaf?: Resolution; readonly mutable?: Mutable } = {},
): Soon<void> {
  return after(find(asked, path, negotiated, leaf), (found) =>
    'kind' in found ? asked.deps.respond.send(asked, moved(asked, found)) : send(asked, { ...found, ...mutable }),
  )
}

function send(asked: AskedContent, offer: Offer): Soon<void> {
  const etag = (offer.status ?? 200) === 200 ? copyOf(asked, offer) : undefined
  if (etag !== undefined) return notModified(asked, offer, etag)
  return after(offer.content(), (content) => deliver(asked, { ...offer, ...content }))
}

/** The ETag of the client's copy, if it is current. Throws 412. */
const copyOf = ({ request: { headers }, deps: { compression } }: AskedContent, offer: Tags): string | undefined =>
  currentCopy(
    headers,
    offer.etag,
    () => (compression.covers(offer) ? compression.accepted(oneOf(headers['accept-encoding'])) : plainOnly),
    offer.onlyByTag,
  )

const provable: ReadonlySet<Negotiated['as']> = new Set(['raw', 'car', 'ipns-record'])

const servesOnly = (what: string): Failure =>
  new Failure('unsupported', `this host serves ${what}`, { source: 'client' })

/** Other nodes ask for cached blocks to learn if this one has them, so a miss is a 404. */
function notHeld(error: unknown, { headers }: IncomingMessage): unknown {
  if (!isFailure(error, 'not-found') || !error.facts.onlyIfCached) return error
  if (cacheWishes(headers['cache-control']).onlyIfCached) return error
  return new Failure('not-found', 'this host does not have it, and asks no upstream', { source: 'tier' })
}

/**
 * True if the ETag follows from the CID alone. False for a dag-pb root, which may be a listing, and
 * for a document in `web` mode, which may be a page: those have their own ETags.
 */
const hasPlainTag = ({ cid, segments }: ContentPath, mode: Mode): boolean =>
  segments.length === 0 && (cid.code === codec.raw || (mode === 'api' && cid.code !== codec.dagPb))

// Formats that `web` mode serves as files and pages; every other format requests blocks explicitly.
const forBrowsers: ReadonlySet<Negotiated['as']> = new Set(['file', 'json', 'cbor'])

/**
 * Formats streamed with a check of every part against the denylists. A client's copy is current
 * only for the revision of the denylists it was made with.
 */
const exported: ReadonlySet<Negotiated['as']> = new Set(['car', 'tar'])

function find(
  asked: AskedContent,
  path: ContentPath,
  negotiated: Negotiated,
  leaf: Resolution | undefined,
): Soon<Offer | Moved> {
  const { request, deps, place, session, target, signal } = asked
  if (negotiated.as === 'ipns-record') {
    throw malformed('content has no IPNS record; keys do: /ipns/<key>')
  }
  if (exported.has(negotiated.as) && request.method === 'GET') deps.limits.charge('exports', request)
  const format = negotiated.as === 'file' ? undefined : formats.get(negotiated.as)
  const revision = exported.has(negotiated.as) ? deps.denyRevision() : undefined
  const wanted = { query: target.query, parameters: negotiated.parameters, revision }
  const { jsonDetector, jsonMaxBytes, hot } = deps
  const resolving = { range: bytesWanted(asked), lends: true, ...format?.wants(wanted) }
  const options = {
    jsonDetector,
    jsonMaxBytes,
    maxCompleteBytes: hot.maxItemBytes,
    isPartial: isPartial(asked),
    lends: true,
    signal,
  }
  const rendered = (resolution: Resolution, otherwise: () => Offer): Soon<Offer> => {
    const plain = (): Offer => {
      refuseRemainder(resolution)
      return otherwise()
    }
    if (!format) return plain()
    return format.render(session, resolution, wanted).then((body) => {
      if (!body) return plain()
      const { roots } = resolution
      // A cache that ignores Accept must be able to tell this response from the default one.
      const location = negotiated.byAccept ? place.base + withFormat(target, negotiated) : undefined
      return { ...body, roots, location, onlyByTag: revision !== undefined, content: () => body }
    })
  }
  if (deps.mode === 'web' && forBrowsers.has(negotiated.as)) {
    const { accept, host } = request.headers
    const wanting = { path, place, target, negotiated, accept, host }
    return answerOnWeb(session, wanting, resolving, options).then((web) =>
      web.kind === 'moved' ? web : rendered(web.resolution, () => web.offer),
    )
  }
  return after(leaf ?? resolveSoon(session, path, resolving), (resolution) =>
    rendered(resolution, () => offerOf(session, resolution, target, options)),
  )
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
