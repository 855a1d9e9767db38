// The fast path: an answer from the response cache is written before Express sees the request. One look at the raw
// headers decides whether the request wants anything but the plain answer; then Express gets it.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Limits } from '../limits.ts'
import type { RequestIds } from '../wire/request-id.ts'
import { cutWhenStalled } from '../wire/write.ts'
import { matches } from './conditional.ts'
import { createAccepts } from './negotiate.ts'
import type { ResponseCache } from './response-cache.ts'

export interface FastPath {
  /** True: answered. */
  take(request: IncomingMessage, response: ServerResponse): boolean
  readonly hits: number
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
  'x-request-id',
])

export function createFastPath({
  hot,
  limits,
  stalledMs,
  requestIds,
  keyOf,
}: {
  readonly hot: ResponseCache
  readonly limits: Limits | undefined
  readonly stalledMs: number
  readonly requestIds: RequestIds
  readonly keyOf: (request: IncomingMessage) => string | undefined
}): FastPath {
  const representation = createAccepts()
  let hits = 0
  return {
    take(request, response) {
      const { method } = request
      if (method !== 'GET' && method !== 'HEAD') return false
      const key = keyOf(request)
      const answer = key === undefined ? undefined : hot.get(key)
      if (!answer) return false
      const { rawHeaders } = request
      let ifNoneMatch: string | undefined
      let hosts = 0
      for (let index = 0; index < rawHeaders.length; index += 2) {
        const name = rawHeaders[index] as string
        // Compares lengths first: most headers of most clients are none of these.
        switch (name.length) {
          case 4:
            if (name.toLowerCase() === 'host') hosts++
            break
          case 5:
            if (name.toLowerCase() === 'range') return false
            break
          case 6:
            if (name.toLowerCase() === 'accept' && representation(rawHeaders[index + 1] as string) !== 'file')
              return false
            break
          case 13: {
            const lower = name.toLowerCase()
            if (lower === 'if-none-match') ifNoneMatch = rawHeaders[index + 1]
            else if (lower === 'cache-control' && (rawHeaders[index + 1] as string).includes('no-cache')) return false
            break
          }
          case 14:
            if (/^(content-length|service-worker)$/i.test(name)) return false
            break
          case 17:
            if (name.toLowerCase() === 'transfer-encoding') return false
            break
        }
      }
      if (hosts !== 1 || limits?.refuses(request)) return false
      hits++
      // Used at once: the next request reuses this list.
      const headers = answer.headersFor(requestIds.next(request))
      if (ifNoneMatch !== undefined && matches(ifNoneMatch, answer.etag)) {
        response.writeHead(304, notModified(headers))
        response.end()
        return true
      }
      response.writeHead(200, headers)
      if (method === 'HEAD') response.end()
      else response.end(answer.body)
      if (!cutWhenStalled(response, stalledMs)) limits?.holdUnread(response)
      return true
    },
    get hits() {
      return hits
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
