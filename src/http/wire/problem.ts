// Converts a Failure to an HTTP error: the only table of statuses, and the only code that writes an
// error (RFC 9457, application/problem+json).
//
// These decide that something is absent, which is 404 here:
//
// - retrieval/reader.ts: `#missed` after the upstreams (whose outcome is `outcomeOf` of attempts.ts;
//   `overloaded`, 503, where they were crowded), `#refuseRemembered` by the negative cache,
//   `#lastChance` after the tiers were asked once more (503 for a damaged pin, or an archive whose
//   tiers failed)
// - content/resolve.ts: no such link; web/site.ts: the site's `_redirects` has no rule, or one with 404
// - names/ipns.ts, names/dnslink.ts, names/lookups.ts: the name leads nowhere
// - http/app.ts, http/hosts.ts: no such path or host; http/routing.ts: no such record

import { randomUUID } from 'node:crypto'
import { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http'
import { Failure, type FailureKind, isFailure } from '../../core/failure.ts'
import { createTrace, type Trace } from '../../core/wire/trace.ts'
import { type Attempt, cacheStatus, type RequestRecord } from '../../observe/requests.ts'
import { contactLink, escaped, pageEnd, pagePolicy, pageTop, shown, whoAnswers } from '../../web/page.ts'
import { corsHeaders } from './cors.ts'
import { exchangeOf, requestIdOf } from './exchange.ts'
import { HttpRefusal, hasBody, type RequestContext, requestIdHeader } from './request.ts'
import { closeAfter, type Document, reset, sendDocument } from './write.ts'

export type Problem = {
  readonly title: string
  readonly status: number
  readonly kind: FailureKind
  readonly detail: string
  /** The seconds of `Retry-After`, if set. */
  readonly retryAfter?: number | undefined
  readonly attempts?: readonly Attempt[] | undefined
  readonly requestId?: string | undefined
  /** The operator's contact address. */
  readonly contact?: string | undefined
}

const pageHeaders = { 'Content-Type': 'text/html; charset=utf-8', 'Content-Security-Policy': pagePolicy } as const

/** The meaning for the visitor; the detail below it is for support. */
const meanings: Readonly<Partial<Record<FailureKind, string>>> = {
  'not-found': 'No server that was asked has this content.',
  'path-not-found': 'There is nothing at this address.',
  timeout: 'This content was not found in the time that a visitor waits.',
  unavailable: 'None of the servers that may have this content could be reached.',
  throttled: 'There were too many requests from your network.',
  refused: 'This gateway does not know you.',
  'upstream-error': 'A server that this gateway needs has failed.',
  'hash-mismatch': 'The bytes that the servers sent do not match this address, so they are not shown.',
  denied: 'The operator of this gateway does not serve this content.',
  overloaded: 'This gateway has too much to do at the moment.',
  internal: 'Something went wrong in this gateway.',
}

const hasNot = 'This gateway does not have this content.'

const stepsOf: Readonly<Record<number, string>> = {
  400: 'Check the address: a letter may be missing at its beginning or end.',
  401: 'Ask the operator of this gateway for access.',
  404: 'Check the address. New content may take a minute to be found.',
  406: 'Ask for it without a format, or for its blocks with ?format=raw or ?format=car.',
  410: 'Another address on this gateway will not help. The operator can say why.',
  412: 'Ask again without If-Match, or Cache-Control: only-if-cached.',
  451: 'Another address on this gateway will not help. The operator can say why.',
  500: 'If this happens again, contact the operator of this gateway.',
  502: 'If this persists, contact the operator of this gateway.',
  504: 'It may exist and be slow to find.',
}

/** Statuses whose next step is to ask the operator. */
const forOperator: ReadonlySet<number> = new Set([401, 410, 451, 500, 502])

// A path that is proved not to exist will not appear later.
const mayComeLater = ({ kind, retryAfter }: Problem): boolean => kind !== 'path-not-found' && retryAfter !== undefined

/** Sentences; the one that may lead to the operator comes first. */
function nextSteps(problem: Problem): string[] {
  const { kind, status, retryAfter = 0, attempts = [] } = problem
  if (kind === 'path-not-found') return ['Check the address: this path is proved not to exist.']
  if (kind === 'malformed' && status === 500)
    return ['The content was published with this mistake: only its author can fix it.']
  const again = mayComeLater(problem) ? `Try again in ${inWords(retryAfter)}.` : undefined
  const searches = [404, 504].includes(status) && attempts.length > 0 ? 'This gateway continues to search.' : undefined
  return [stepsOf[status], searches, again].filter((text) => text !== undefined)
}

const asksOperator = ({ status, kind }: Problem): boolean => forOperator.has(status) && kind !== 'malformed'

function inWords(seconds: number): string {
  if (seconds < 90) return seconds === 1 ? 'a second' : `${seconds} seconds`
  const minutes = Math.ceil(seconds / 60)
  return minutes < 90 ? `${minutes} minutes` : `${Math.ceil(minutes / 60)} hours`
}

/** Words for the outcome at an upstream; others are shown as they are. */
const outcomes: Readonly<Record<string, string>> = {
  'not-found': 'Does not have it',
  timeout: 'Did not answer in time',
  unavailable: 'Cannot be reached',
  throttled: 'Takes no more requests now',
  refused: 'Refused',
  'upstream-error': 'Failed',
  'hash-mismatch': 'Sent something else',
  cancelled: 'No longer needed',
  lost: 'Another was faster',
  won: 'Sent it',
}

/** Capitalizes the first word, but not a CID or name. */
const capital = (text: string): string =>
  /^[a-z]{1,15}(?:[ ,:-]|$)/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text
const asSentence = (text: string): string => (/[.!?:…]$/.test(text) ? capital(text) : `${capital(text)}.`)
const outcomeText = (outcome: string): string => outcomes[outcome] ?? capital(outcome)

export function problemPage(problem: Problem): string {
  const { title, status, kind, detail, attempts = [], requestId, contact } = problem
  const rows = attempts.map(
    ({ upstream, outcome, ms }) =>
      `<tr><td>${shown(upstream)}</td><td>${shown(outcomeText(outcome))}</td><td>${Math.round(ms)} ms</td></tr>\n`,
  )
  const heads =
    '<thead><tr><th scope="col">Server</th><th scope="col">Result</th><th scope="col">Time</th></tr></thead>'
  const asked =
    rows.length > 0 ? `<h2>Servers that were asked</h2>\n<table class="list">${heads}\n${rows.join('')}</table>\n` : ''
  const meaning = kind === 'not-found' && attempts.length === 0 ? hasNot : meanings[kind]
  const steps = nextSteps(problem).map(escaped)
  const again = mayComeLater(problem) ? ' <a href="">Try again</a>' : ''
  const request = requestId === undefined ? '' : `<p class="dim">Request <code>${shown(requestId)}</code></p>\n`
  const operator = contact === undefined ? '' : contactLink(contact)
  if (operator !== '' && asksOperator(problem)) steps.splice(1, 0, operator)
  const answers = operator !== '' && !asksOperator(problem) ? `<p class="dim">${whoAnswers} ${operator}</p>\n` : ''
  const details = `<p${meaning === undefined ? '' : ' class="dim"'}>${shown(asSentence(detail))}</p>\n`
  return `${pageTop(`${status} ${title}`)}<h1>${status} ${escaped(title)}</h1>
${meaning === undefined ? '' : `<p>${escaped(meaning)}</p>\n`}${details}${steps.length === 0 ? '' : `<h2>What you can do</h2>\n<p>${steps.join(' ')}${again}</p>\n`}${asked}${answers}${request}${pageEnd}`
}

/**
 * The problem as plain text, with the outcomes as codes for programs such as the conformance suite.
 */
export function problemText(problem: Problem): string {
  const { title, status, detail, attempts = [], requestId, contact } = problem
  const next = nextSteps(problem).join(' ')
  const asked = attempts.map(({ upstream, outcome, ms }) => `${upstream}: ${outcome}, ${Math.round(ms)} ms`)
  const request = requestId === undefined ? [] : [`Request ${requestId}`]
  const operator = contact === undefined ? [] : [asksOperator(problem) ? contact : `${whoAnswers} ${contact}`]
  const lines = [`${status} ${title}`, detail, ...(next === '' ? [] : [next]), ...operator]
  return `${[...lines, ...asked, ...request].join('\n')}\n`
}

export type Mode = 'api' | 'web'

type ProblemTitle = { readonly title: string; readonly api: number; readonly web: number }

/**
 * In `api` mode what is absent, late or unreachable is 404: its clients poll, and read 404 as "not
 * here yet". Overload is 503, a bad answer 502.
 */
export const table: Readonly<Record<FailureKind, ProblemTitle>> = {
  'not-found': { title: 'Not found', api: 404, web: 404 },
  'path-not-found': { title: 'No such path', api: 404, web: 404 },
  'upload-too-slow': { title: 'Upload too slow', api: 408, web: 408 },
  timeout: { title: 'Not found in time', api: 404, web: 504 },
  unavailable: { title: 'No upstream could be reached', api: 404, web: 502 },
  throttled: { title: 'Too many requests', api: 429, web: 429 },
  refused: { title: 'Not allowed', api: 401, web: 401 },
  'upstream-error': { title: 'An upstream or provider failed', api: 502, web: 502 },
  'hash-mismatch': { title: 'Content does not match its CID', api: 502, web: 502 },
  'too-large': { title: 'Too large', api: 413, web: 413 },
  denied: { title: 'Denied by the operator', api: 410, web: 410 },
  malformed: { title: 'Malformed', api: 400, web: 400 },
  unsupported: { title: 'Not supported', api: 406, web: 406 },
  overloaded: { title: 'Overloaded', api: 503, web: 503 },
  'disk-full': { title: 'Disk full', api: 507, web: 507 },
  'disk-error': { title: 'Disk error', api: 500, web: 500 },
  cancelled: { title: 'The client left', api: 499, web: 499 },
  internal: { title: 'Internal error', api: 500, web: 500 },
}

/** Statuses caused by other services: the response lists the upstreams that were asked. */
const withAttempts: ReadonlySet<number> = new Set([404, 502, 503, 504])
const retryableStatuses: ReadonlySet<number> = new Set([404, 429, 502, 503, 504])
const defaultRetryMs = 5_000

export function statusOf(failure: Failure, mode: Mode): number {
  if (failure instanceof HttpRefusal) return failure.status
  if (failure.facts.onlyIfCached) return 412
  if (failure.kind === 'denied' && failure.facts.legal) return 451
  // Malformed content is not the client's mistake.
  if (failure.kind === 'malformed' && failure.source === 'content') return mode === 'api' ? 422 : 500
  if (failure.kind === 'upstream-error' && failure.source === 'provider') return 502
  if (isStoreFailure(failure)) return 503
  // A path that ends at a value inside a document, which this gateway does not support.
  if (failure.kind === 'unsupported' && failure.facts.remainder !== undefined) return 501
  return table[failure.kind][mode]
}

/**
 * A failing tier may have the content, and there is no upstream to ask, so a 404 would claim too
 * much.
 */
const isStoreFailure = ({ kind, source }: Failure): boolean => kind === 'unavailable' && source === 'tier'

function titleOf(failure: Failure, status: number): string {
  if (failure.facts.onlyIfCached) return 'Not in the cache'
  if (status === 412) return 'Precondition failed'
  return isStoreFailure(failure) ? 'A store could not be asked' : table[failure.kind].title
}

/**
 * An error that is not a Failure is a bug: the client gets `internal`, never the error's own
 * message.
 */
export function asFailure(error: unknown): Failure {
  if (isFailure(error)) return error
  return new Failure('internal', 'internal error; the log of this gateway has the details, under the request id', {
    source: 'ours',
    cause: error,
  })
}

function sendProblem(
  request: IncomingMessage,
  response: ServerResponse,
  failure: Failure,
  how: How & RespondOptions & { readonly common: readonly string[] },
): void {
  const { mode, requestRecord, headers = {}, contact, trace } = how
  const { kind, message: detail, facts } = failure
  const status = statusOf(failure, mode)
  const title = titleOf(failure, status)
  const attempts = withAttempts.has(status) ? requestRecord?.attempts : undefined
  const form = formFor(mode, 'accept' in how ? how.accept : request.headers.accept)
  const requestId = requestIdOf(response)
  // In thin mode, the other service reports when its limit ends.
  const isLater = retryableStatuses.has(status) || (status === 413 && failure.retryAfterMs !== undefined)
  const retryAfter = isLater ? seconds(failure.retryAfterMs ?? defaultRetryMs) : undefined
  const problem = { title, status, kind, detail, retryAfter, attempts, requestId, contact }
  const { outcomes, quota, errors } = facts
  const more = { traceId: trace?.idOf(request), attempts, outcomes, quota, errors }
  const text = form.write?.(problem) ?? `${jsonOf(problem, more)}\n`
  const all = {
    ...form.headers,
    'Cache-Control': cacheControl(failure, status),
    ...(mode === 'web' && { Vary: 'Accept' }),
    ...(requestRecord && { 'Cache-Status': cacheStatus(requestRecord) }),
    ...(retryAfter !== undefined && { 'Retry-After': String(retryAfter) }),
    ...(failure instanceof HttpRefusal && failure.headers),
    ...headers,
    ...(status === 400 && { Connection: 'close' }),
  }
  // Set before writing: bytes after a malformed request must not be handled as another one.
  if (status === 400) response.shouldKeepAlive = false
  sendDocument({ request, response }, { status, headers: all, body: text }, how)
}

/** `detail` is sent a second time as `message`, which older clients read. */
const jsonOf = ({ kind, title, status, detail, requestId }: Problem, more: object = {}): string =>
  JSON.stringify({
    ...{ type: `urn:problem-type:cidgate:${kind}`, title, status, detail, message: detail, requestId },
    ...more,
  })

/**
 * The complete response to a request that has no ServerResponse, as text; its connection closes. Every
 * 503 is to be tried again in a second.
 */
export function problemMessage(
  status: number,
  kind: FailureKind,
  detail: string,
  requestId: string = randomUUID(),
): string {
  const title = STATUS_CODES[status] ?? ''
  const body = jsonOf({ kind, title, status, detail, requestId })
  const headers = {
    ...ofAll,
    ...asJson.headers,
    'Content-Length': Buffer.byteLength(body),
    'Cache-Control': 'no-store',
    [requestIdHeader]: requestId,
    Connection: 'close',
    ...(status === 503 && { 'Retry-After': '1' }),
  }
  const lines = Object.entries(headers)
    .map(([name, value]) => `${name}: ${value}\r\n`)
    .join('')
  return `HTTP/1.1 ${status} ${title}\r\n${lines}\r\n${body}`
}

type ProblemForm = {
  readonly headers: Readonly<Record<string, string>>
  readonly write?: (problem: Problem) => string
}

const nosniff = { 'X-Content-Type-Options': 'nosniff' } as const
const ofAll = { ...corsHeaders, ...nosniff } as const

const asJson: ProblemForm = { headers: { 'Content-Type': 'application/problem+json' } }
const asPage: ProblemForm = { headers: pageHeaders, write: problemPage }
const asText: ProblemForm = { headers: { 'Content-Type': 'text/plain; charset=utf-8' }, write: problemText }

/** In `web` mode a client without an Accept header gets plain text. */
function formFor(mode: Mode, accept: string | undefined): ProblemForm {
  if (mode === 'api') return asJson
  if (accept === undefined) return asText
  return /\btext\/html\b/i.test(accept) ? asPage : asJson
}

const seconds = (ms: number): number => Math.max(1, Math.ceil(ms / 1000))

/**
 * Downstream caches may keep a 404 for as long as the negative cache of this gateway; every other
 * error is no-store.
 */
function cacheControl({ kind, facts, retryAfterMs }: Failure, status: number): string {
  if (status !== 404 || kind === 'unavailable' || facts.unasked) return 'no-store'
  if (kind === 'path-not-found') return 'public, max-age=60'
  return retryAfterMs === undefined || retryAfterMs < 1000
    ? 'no-store'
    : `public, max-age=${Math.floor(retryAfterMs / 1000)}`
}

/** Facts about the request for the log line. */
export type RequestFacts = { readonly request: string | undefined; readonly method: string; readonly path: string }

type RespondOptions = {
  readonly mode: Mode
  /** Every origin may read the responses. Default: true. */
  readonly isPublic?: boolean
  /** The write timeout. */
  readonly stalledMs: number
  /** The operator's contact address, for pages. */
  readonly contact?: string | undefined
  /** Called for a bug of the gateway. */
  readonly onError: (error: unknown, about: RequestFacts) => void
  readonly onFailed?: (failure: Failure) => void
  /** Default: only a trace that the client began is shown. */
  readonly trace?: Pick<Trace, 'idOf'>
}

export type How = {
  readonly requestRecord?: RequestRecord
  readonly headers?: Readonly<Record<string, string>> | undefined
  /** The Accept header to use. Default: the client's. */
  readonly accept?: string | undefined
  /** Writes an error in another format (Kubo's). */
  readonly write?: (failure: Failure) => void
  /** Ends a response that failed after its first byte. Default: resets the connection. */
  readonly late?: (failure: Failure) => void
}

export type Respond = ReturnType<typeof createRespond>

/** Sends the complete responses of one address: its own documents, and failures. */
export function createRespond({ trace = createTrace(), isPublic = true, ...given }: RespondOptions) {
  const options = { ...given, trace, common: Object.entries(isPublic ? ofAll : nosniff).flat() }
  return {
    stalledMs: options.stalledMs,
    send(to: Pick<RequestContext, 'request' | 'response'>, document: Document): void {
      sendDocument(to, document, options)
    },
    failed(request: IncomingMessage, response: ServerResponse, error: unknown, how: How = {}): Failure {
      const exchange = exchangeOf(response)
      const failure = exchange?.refusal ?? asFailure(error)
      if (!exchange?.refusal) options.onFailed?.(failure)
      if (exchange) exchange.failure = failure
      if (failure.kind === 'internal') options.onError(failure.cause ?? failure, aboutOf(request, response))
      if (response.headersSent && how.late && !exchange?.refusal) how.late(failure)
      else if (response.headersSent) reset(response)
      else if (failure.kind === 'cancelled' || exchange?.refusal || response.destroyed) response.destroy()
      else {
        // Node would read the rest of the body before the next request.
        if (hasBody(request) && !request.complete) closeAfter(request, response)
        if (how.write) how.write(failure)
        else sendProblem(request, response, failure, { ...options, ...how })
      }
      return failure
    },
  }
}

/** Without the query, which is private to the client. */
const aboutOf = ({ method = '', url = '' }: IncomingMessage, response: ServerResponse): RequestFacts => ({
  request: requestIdOf(response),
  method,
  path: url.split('?')[0] ?? '',
})
