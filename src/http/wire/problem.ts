// Converts a Failure to an HTTP error: the only table of statuses, and the only code that writes an
// error (RFC 9457, application/problem+json).
import type { ServerResponse } from 'node:http'
import { Failure, type FailureKind, isFailure } from '../../core/failure.ts'
import type { Account } from '../../observe/account.ts'
import { cacheStatus } from './cache-status.ts'
import { corsHeaders } from './cors.ts'
import { requestIdOf } from './exchange.ts'
import { type Problem, pageHeaders, problemPage, problemText } from './problem-page.ts'
import { HttpRefusal } from './refusal.ts'
import { cutWhenStalled } from './write.ts'

export type Mode = 'api' | 'web'

type ProblemTitle = { readonly title: string; readonly api: number; readonly web: number }

/**
 * In `api` mode every "not available now" is 404, whatever the reason: its clients poll, and read
 * 404 as "not here yet".
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
  if (status === 412) return 'Not in the cache'
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

export type ProblemContext = {
  readonly mode: Mode
  /** The write timeout: the maximum time in which the client reads nothing. */
  readonly stalledMs: number
  readonly account?: Account | undefined
  /** Additional headers, such as Content-Range with 416. */
  readonly headers?: Readonly<Record<string, string>> | undefined
  readonly head?: boolean
  /** The id of the trace that the client began. */
  readonly traceId?: string | undefined
  /** The operator's contact address, for pages. */
  readonly contact?: string | undefined
  /** The client's Accept header: in `web` mode a browser gets a page. */
  readonly accept?: string | undefined
}

export function sendProblem(response: ServerResponse, failure: Failure, context: ProblemContext): void {
  const { mode, stalledMs, account, headers = {}, head = false, accept, contact } = context
  const status = statusOf(failure, mode)
  const detail = failure.message
  const title = titleOf(failure, status)
  const attempts = withAttempts.has(status) ? account?.attempts : undefined
  const form = formFor(mode, accept)
  const body: Record<string, unknown> = {
    type: `urn:problem-type:cidgate:${failure.kind}`,
    title,
    status,
    detail,
    message: detail,
  }
  const requestId = requestIdOf(response)
  if (requestId !== undefined) body['requestId'] = requestId
  if (context.traceId !== undefined) body['traceId'] = context.traceId
  if (attempts) body['attempts'] = attempts
  if (failure.facts.outcomes) body['outcomes'] = failure.facts.outcomes
  if (failure.facts.quota) body['quota'] = failure.facts.quota
  if (failure.facts.errors) body['errors'] = failure.facts.errors
  // In thin mode, the other service reports when its limit ends.
  const isLater = retryableStatuses.has(status) || (status === 413 && failure.retryAfterMs !== undefined)
  const retryAfter = isLater ? seconds(failure.retryAfterMs ?? defaultRetryMs) : undefined
  const problem = { title, status, kind: failure.kind, detail, retryAfter, attempts, requestId, contact }
  const text = form.write?.(problem) ?? `${JSON.stringify(body)}\n`
  const all: Record<string, string | number> = {
    ...constant.get(form),
    'Content-Length': Buffer.byteLength(text),
    'Cache-Control': cacheControl(failure, status),
    ...(mode === 'web' && { Vary: 'Accept' }),
    ...(account && { 'Cache-Status': cacheStatus(account) }),
    ...(retryAfter !== undefined && { 'Retry-After': retryAfter }),
    ...headers,
    ...(status === 400 && { Connection: 'close' }),
  }
  // Set before writing: bytes after a malformed request must not be handled as another one.
  if (status === 400) response.shouldKeepAlive = false
  // A list and a string, which Node validates and sends at once: under overload a gateway has no
  // time for more.
  const list: (string | number)[] = []
  for (const name in all) list.push(name, all[name] as string | number)
  response.writeHead(status, list as string[])
  response.end(head ? undefined : text)
  cutWhenStalled(response, stalledMs)
}

type ProblemForm = {
  readonly headers: readonly (readonly [name: string, value: string])[]
  readonly write?: (problem: Problem) => string
}

const asJson: ProblemForm = { headers: [['Content-Type', 'application/problem+json']] }
const asPage: ProblemForm = { headers: pageHeaders, write: problemPage }
const asText: ProblemForm = { headers: [['Content-Type', 'text/plain; charset=utf-8']], write: problemText }

/** The headers that all problems of a form share. */
const constant: ReadonlyMap<ProblemForm, Readonly<Record<string, string>>> = new Map(
  [asJson, asPage, asText].map((form) => [
    form,
    Object.fromEntries([...corsHeaders, ...form.headers, ['X-Content-Type-Options', 'nosniff']]),
  ]),
)

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
