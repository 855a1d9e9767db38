// The fast path: an answer from the response cache is written before Express sees the request. One look at the raw
// headers decides whether the request wants anything but the plain answer; then Express gets it.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Clock } from '../../core/clock.ts'
import { createHostCheck } from '../../core/wire/host.ts'
import type { HotCounts } from '../../observe/requests.ts'
import { plainOnly } from '../codings/accept-encoding.ts'
import { type Coding, codedTag } from '../codings/codings.ts'
import type { Compression } from '../codings/compression.ts'
import { plainRequest } from '../lanes/plain-request.ts'
import { createHeadWriter, readyHead } from '../lanes/ready-head.ts'
import type { Limits } from '../limits/limits.ts'
import type { HotNotes } from '../traces/request-spans.ts'
import type { RequestIds } from '../wire/request-id.ts'
import { cutWhenStalled, endWith, reset } from '../wire/write.ts'
import { tagOfCopy } from './conditional.ts'
import { createAccepts } from './negotiate.ts'
import type { ReadyAnswer, ReadyForm, ResponseCache } from './response-cache.ts'

export interface FastPath {
  /** True: answered. */
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

export function createFastPath({
  hot,
  compression,
  limits,
  stalledMs,
  requestIds,
  keyOf,
  counts,
  notes,
  clock,
}: {
  readonly hot: ResponseCache
  readonly compression: Pick<Compression, 'accepted' | 'compress'>
  readonly limits: Limits | undefined
  readonly stalledMs: number
  readonly requestIds: RequestIds
  readonly keyOf: (request: IncomingMessage) => string | undefined
  readonly counts: HotCounts
  readonly notes?: HotNotes | undefined
  readonly clock: Clock
}): FastPath {
  const representation = createAccepts()
  const writeHead = createHeadWriter(clock)
  const hotEvery = notes?.hotEvery ?? 0
  const isHost = createHostCheck()
  let unnoted = 0

  function note(request: IncomingMessage, requestId: string, status: number, bytes: number): void {
    if (++unnoted < hotEvery) return
    unnoted = 0
    notes?.hot(request, requestId, status, bytes)
  }

  function sendUnchanged(request: IncomingMessage, response: ServerResponse, form: ReadyForm, requestId: string): void {
    form.unchanged ??= readyHead(304, notModified(form.head.headers, form.etag))
    writeHead(request, response, form.unchanged, requestId)
    response.end()
    if (request.method === 'GET') counts.getUnchanged++
    else counts.headUnchanged++
    if (hotEvery > 0) note(request, requestId, 304, 0)
  }

  /** True: the system has taken all of it. */
  function send(request: IncomingMessage, response: ServerResponse, form: ReadyForm, requestId: string): boolean {
    const isGet = request.method === 'GET'
    writeHead(request, response, form.head, requestId)
    if (isGet) {
      counts.get++
      counts.bytes += form.body.byteLength
      endWith(response, form.body)
    } else {
      counts.head++
      response.end()
    }
    if (hotEvery > 0) note(request, requestId, 200, isGet ? form.body.byteLength : 0)
    return cutWhenStalled(response, stalledMs)
  }

  /** The form in a coding: at once, or when it is compressed; the plain one where there is no room for that. */
  function formOf(key: string, answer: ReadyAnswer, coding: Coding): ReadyForm | Promise<ReadyForm> {
    const ready = answer.coded[coding]
    if (ready) return ready
    const making = compression.compress(answer.body, coding, codedTag(answer.etag, coding))
    if (!making) return answer
    // Another request for it may have kept it by then.
    return making.then((body) =>
      body ? (hot.get(key)?.coded[coding] ?? hot.addCoded(key, answer, coding, body)) : answer,
    )
  }

  return {
    take(request, response) {
      const { method } = request
      if (method !== 'GET' && method !== 'HEAD') return false
      const key = keyOf(request)
      const answer = key === undefined ? undefined : hot.get(key)
      if (!answer || key === undefined) return false
      const plain = plainRequest(request.rawHeaders, representation, isHost)
      if (!plain || limits?.refuses(request)) return false
      const requestId = requestIds.next(request)
      const accepted = answer.isCompressible ? compression.accepted(plain.acceptEncoding) : plainOnly
      const { best } = accepted
      if (plain.ifNoneMatch !== undefined) {
        const etag = tagOfCopy(plain.ifNoneMatch, answer.etag, accepted)
        if (etag !== undefined) {
          sendUnchanged(request, response, formWith(answer, etag), requestId)
          return true
        }
      }
      const form = best === undefined ? answer : formOf(key, answer, best)
      if (form instanceof Promise) {
        limits?.holdUnread(response)
        form
          .then((made) => {
            if (!response.destroyed) send(request, response, made, requestId)
          })
          .catch(() => reset(response))
      } else if (!send(request, response, form, requestId)) limits?.holdUnread(response)
      return true
    },
  }
}

/** A client may have a coding that is not kept here any more. */
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
