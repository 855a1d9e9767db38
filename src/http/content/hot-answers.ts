// Responses from the response cache, for the front, which writes them itself, and for requests from
// `node:http`. A scan of the headers decides if the request wants the plain response; any other
// takes the normal route.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { createHostCheck } from '../../core/wire/http.ts'
import type { HotCounts } from '../../observe/requests.ts'
import { plainOnly } from '../codings/accept-encoding.ts'
import { type Coding, codedTag } from '../codings/codings.ts'
import type { Compression } from '../codings/compression.ts'
import type { Limits } from '../limits/limits.ts'
import type { HotNotes } from '../traces/request-spans.ts'
import type { RequestHead } from '../wire/request-head.ts'
import { type RequestIds, requestIdHeader } from '../wire/request-id.ts'
import { cutWhenStalled, endWith, reset } from '../wire/write.ts'
import { tagOfCopy } from './conditional.ts'
import { createAccepts, type FormatChoice } from './negotiate.ts'
import { type ReadyAnswer, type ReadyForm, type ResponseCache, readyHead } from './response-cache.ts'

/** A response that is counted already and has to be written. */
export type HotAnswer = {
  /** The status line and the headers, except those about the request or the connection. */
  readonly lines: string
  readonly requestId: string
  /** Undefined means no body. */
  readonly body: Buffer | undefined
  /**
   * Counts a response that its client does not read at once; call the returned function when it was
   * read.
   */
  readonly holdUnread: () => () => void
  /** The write timeout: the maximum time in which the client reads nothing. */
  readonly stalledMs: number
}

export interface HotAnswers {
  /** Undefined if the request needs another response, or the coding has to be made first. */
  find(request: RequestHead): HotAnswer | undefined
  /** Returns true if it sent the response. */
  take(request: IncomingMessage, response: ServerResponse): boolean
}

const notModifiedHeaders: ReadonlySet<string> = new Set([
  'etag',
  'cache-control',
  'vary',
  'x-ipfs-path',
  'x-ipfs-roots',
  'cache-status',
  'access-control-allow-origin',
  'access-control-expose-headers',
])

type Found = {
  readonly form: ReadyForm
  readonly status: 200 | 304
  /** Set if the form has to be compressed first. */
  readonly coding?: Coding
}

export function createHotAnswers({
  hot,
  compression,
  limits,
  stalledMs,
  requestIds,
  keyOf,
  counts,
  notes,
}: {
  readonly hot: ResponseCache
  readonly compression: Pick<Compression, 'accepted' | 'compress'>
  readonly limits: Limits
  readonly stalledMs: number
  readonly requestIds: RequestIds
  readonly keyOf: (request: RequestHead) => string | undefined
  readonly counts: HotCounts
  readonly notes?: HotNotes | undefined
}): HotAnswers {
  const representation = createAccepts()
  const hotEvery = notes?.hotEvery ?? 0
  const isHost = createHostCheck()
  let unnoted = 0

  function look(request: RequestHead): Found | undefined {
    const { method } = request
    if (method !== 'GET' && method !== 'HEAD') return undefined
    const key = keyOf(request)
    const answer = key === undefined ? undefined : hot.get(key)
    if (!answer || key === undefined) return undefined
    const plain = plainRequest(request.rawHeaders, representation, isHost)
    if (!plain) return undefined
    const accepted = answer.isCompressible ? compression.accepted(plain.acceptEncoding) : plainOnly
    const { best } = accepted
    const etag = plain.ifNoneMatch && tagOfCopy(plain.ifNoneMatch, answer.etag, accepted)
    if (etag) return { form: formWith(answer, etag), status: 304 }
    const form = best === undefined ? answer : answer.coded[best]
    return form || best === undefined
      ? { form: form ?? answer, status: 200 }
      : { form: answer, status: 200, coding: best }
  }

  function note(request: RequestHead, { form, status }: Found, requestId: string): void {
    const bytes = request.method === 'GET' && status === 200 ? form.body.byteLength : 0
    if (request.method === 'GET') {
      counts[status === 200 ? 'get' : 'getUnchanged']++
      counts.bytes += bytes
    } else counts[status === 200 ? 'head' : 'headUnchanged']++
    if (hotEvery === 0 || ++unnoted < hotEvery) return
    unnoted = 0
    notes?.hot(request, requestId, status, bytes)
  }

  function send(request: IncomingMessage, response: ServerResponse, found: Found, requestId: string): boolean {
    note(request, found, requestId)
    response.writeHead(found.status, [...headOf(found).headers, requestIdHeader, requestId])
    if (request.method === 'GET' && found.status === 200) endWith(response, found.form.body)
    else response.end()
    return cutWhenStalled(response, stalledMs)
  }

  /** Compresses the form; falls back to identity above the compression limit. */
  function made({ form }: Found, request: RequestHead, coding: Coding): Promise<ReadyForm> | ReadyForm {
    const key = keyOf(request) ?? ''
    const answer = form as ReadyAnswer
    const making = compression.compress(answer.body, coding, codedTag(answer.etag, coding))
    if (!making) return answer
    // Another request may have cached it meanwhile.
    return making.then((body) =>
      body ? (hot.get(key)?.coded[coding] ?? hot.addCoded(key, answer, coding, body)) : answer,
    )
  }

  return {
    find(request) {
      const found = look(request)
      if (!found || found.coding || limits.refuses(request)) return undefined
      const requestId = requestIds.next(request)
      note(request, found, requestId)
      const body = request.method === 'GET' && found.status === 200 ? found.form.body : undefined
      return { lines: headOf(found).lines, requestId, body, holdUnread: limits.holdUnread, stalledMs }
    },
    take(request, response) {
      const found = look(request)
      if (!found || limits.refuses(request)) return false
      const requestId = requestIds.next(request)
      const form = found.coding ? made(found, request, found.coding) : found.form
      if (!(form instanceof Promise)) {
        if (!send(request, response, { ...found, form }, requestId)) response.once('close', limits.holdUnread())
        return true
      }
      response.once('close', limits.holdUnread())
      form
        .then((form) => {
          if (!response.destroyed) send(request, response, { form, status: 200 }, requestId)
        })
        .catch(() => reset(response))
      return true
    },
  }
}

function headOf({ form, status }: Found): ReadyForm['head'] {
  if (status === 200) return form.head
  form.unchanged ??= readyHead(304, notModified(form.head.headers, form.etag))
  return form.unchanged
}

/** The client's copy may be in a coding that is no longer cached. */
function formWith(answer: ReadyAnswer, etag: string): ReadyForm {
  if (etag === answer.etag) return answer
  const coded = Object.values(answer.coded).find((form) => form.etag === etag)
  return coded ?? { ...answer, etag, unchanged: undefined }
}

function notModified(headers: readonly string[], etag: string): string[] {
  const kept: string[] = []
  for (let index = 0; index < headers.length; index += 2) {
    const name = headers[index] as string
    if (name === 'ETag') kept.push(name, etag)
    else if (notModifiedHeaders.has(name.toLowerCase())) kept.push(name, headers[index + 1] as string)
  }
  return kept
}

type PlainRequest = { readonly ifNoneMatch: string | undefined; readonly acceptEncoding: string | undefined }

/** Undefined if it asks for something else, or has headers that need full validation. */
function plainRequest(
  rawHeaders: readonly string[],
  representation: (accept: string) => FormatChoice,
  isHost: (host: string) => boolean,
): PlainRequest | undefined {
  let ifNoneMatch: string | undefined
  let acceptEncoding: string | undefined
  let hosts = 0
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const name = rawHeaders[index] as string
    // Compares lengths first: most headers match none of these.
    switch (name.length) {
      case 4:
        if (name.toLowerCase() === 'host') {
          if (!isHost(rawHeaders[index + 1] as string)) return undefined
          hosts++
        }
        break
      case 5:
        if (name.toLowerCase() === 'range') return undefined
        break
      case 6: {
        const lower = name.toLowerCase()
        if (lower === 'accept' && representation(rawHeaders[index + 1] as string) !== 'file') return undefined
        if (lower === 'expect') return undefined
        break
      }
      case 13: {
        const lower = name.toLowerCase()
        if (lower === 'if-none-match') ifNoneMatch = rawHeaders[index + 1]
        else if (lower === 'cache-control' && (rawHeaders[index + 1] as string).includes('no-cache')) return undefined
        break
      }
      case 14:
        if (/^(content-length|service-worker)$/i.test(name)) return undefined
        break
      case 15:
        if (name.toLowerCase() === 'accept-encoding') {
          // Node joins repeated headers, which the fast path does not.
          if (acceptEncoding !== undefined) return undefined
          acceptEncoding = rawHeaders[index + 1]
        }
        break
      case 17:
        if (name.toLowerCase() === 'transfer-encoding') return undefined
        break
    }
  }
  return hosts === 1 ? { ifNoneMatch, acceptEncoding } : undefined
}
