// The fast path: an answer from the response cache is written before Express sees the request. One look at the raw
// headers decides whether the request wants anything but the plain answer; then Express gets it.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Clock } from '../../core/clock.ts'
import { createHostCheck } from '../../core/wire/host.ts'
import type { HotCounts } from '../../observe/requests.ts'
import { plainRequest } from '../lanes/plain-request.ts'
import { createHeadWriter, readyHead } from '../lanes/ready-head.ts'
import type { Limits } from '../limits.ts'
import type { HotNotes } from '../traces/request-spans.ts'
import type { RequestIds } from '../wire/request-id.ts'
import { cutWhenStalled, endWith } from '../wire/write.ts'
import { matches } from './conditional.ts'
import { createAccepts } from './negotiate.ts'
import type { ResponseCache } from './response-cache.ts'

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
  limits,
  stalledMs,
  requestIds,
  keyOf,
  counts,
  notes,
  clock,
}: {
  readonly hot: ResponseCache
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

  return {
    take(request, response) {
      const { method } = request
      if (method !== 'GET' && method !== 'HEAD') return false
      const key = keyOf(request)
      const answer = key === undefined ? undefined : hot.get(key)
      if (!answer) return false
      const plain = plainRequest(request.rawHeaders, representation, isHost)
      if (!plain || limits?.refuses(request)) return false
      const requestId = requestIds.next(request)
      if (plain.ifNoneMatch !== undefined && matches(plain.ifNoneMatch, answer.etag)) {
        answer.unchanged ??= readyHead(304, notModified(answer.head.headers))
        writeHead(request, response, answer.unchanged, requestId)
        response.end()
        if (method === 'GET') counts.getUnchanged++
        else counts.headUnchanged++
        if (hotEvery > 0) note(request, requestId, 304, 0)
        return true
      }
      writeHead(request, response, answer.head, requestId)
      if (method === 'GET') {
        counts.get++
        counts.bytes += answer.body.byteLength
        endWith(response, answer.body)
      } else {
        counts.head++
        response.end()
      }
      if (!cutWhenStalled(response, stalledMs)) limits?.holdUnread(response)
      if (hotEvery > 0) note(request, requestId, 200, method === 'GET' ? answer.body.byteLength : 0)
      return true
    },
  }
}

function notModified(headers: readonly string[]): string[] {
  const kept: string[] = []
  for (let index = 0; index < headers.length; index += 2) {
    const name = headers[index] as string
    if (notModifiedHeaders.has(name.toLowerCase())) kept.push(name, headers[index + 1] as string)
  }
  return kept
}
