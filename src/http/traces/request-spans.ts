// The span of a finished request. It has only what leads to its line in the access log: no query,
// header or client, and only content paths, since a service behind `proxy` may take secrets in its
// paths.
import type { Clock } from '../../core/clock.ts'
import type { SpanFacts, Trace } from '../../core/wire/trace.ts'
import type { Answered } from '../../observe/requests.ts'
import { type AccessLog, placeOf } from '../wire/access-log.ts'
import { type Exchange, requestIdOf } from '../wire/exchange.ts'
import type { RequestHead } from '../wire/request-head.ts'

export type HotNotes = Pick<AccessLog, 'hot' | 'hotEvery'>

export interface RequestSpans extends HotNotes {
  over(exchange: Exchange, answered: Answered): void
}

const content: ReadonlySet<string> = new Set(['ipfs', 'ipns'])

export function createRequestSpans(trace: Trace, clock: Clock): RequestSpans {
  return {
    hotEvery: 1,
    hot(request, requestId, status, bytes) {
      const point = trace.of(request)
      if (!point?.isRecorded) return
      const facts = {
        ...factsOf(request, { route: 'ipfs', status, source: 'hot', bytes, requestId }),
        ...pathOf(request, request.url ?? ''),
      }
      const name = nameOf(request, 'ipfs')
      trace.answered(point, { name, began: clock.monotonic(), facts, isError: false })
    },
    over({ request, response, url, began, failure }, answered) {
      const point = trace.of(request)
      if (!point?.isRecorded) return
      const { route, status, source, isWhole, firstByteSeconds, bytesIn, bytesOut: bytes } = answered
      const facts = {
        ...factsOf(request, { route, status, source, bytes, requestId: requestIdOf(response) }),
        ...(content.has(route) && pathOf(request, url)),
        'cidgate.first_byte_ms': firstByteSeconds && Math.round(firstByteSeconds * 1000),
        'cidgate.cut': isWhole ? undefined : true,
        'cidgate.questions_left_out': point.leftOut || undefined,
        'error.type': failure?.kind,
        'http.request.body.size': bytesIn || undefined,
      }
      trace.answered(point, { name: nameOf(request, route), began, facts, isError: status >= 500 })
    },
  }
}

/** Every cached response for the spans, and a sample of them for the access log. */
export function hotNotesOf(access: AccessLog | undefined, spans: RequestSpans | undefined): HotNotes | undefined {
  if (!spans || !access || access.hotEvery === 0) return spans ?? access
  let unnoted = 0
  return {
    hotEvery: 1,
    hot(...answer) {
      spans.hot(...answer)
      if (++unnoted < access.hotEvery) return
      unnoted = 0
      access.hot(...answer)
    },
  }
}

const nameOf = ({ method = '' }: RequestHead, route: string): string => `${method} ${route}`

function factsOf(
  { method }: RequestHead,
  answer: { route: string; status: number; source: string; bytes: number; requestId: string | undefined },
): SpanFacts {
  return {
    'http.request.method': method,
    'http.route': answer.route,
    'http.response.status_code': answer.status,
    'http.response.body.size': answer.bytes,
    'cidgate.source': answer.source,
    'cidgate.request_id': answer.requestId,
  }
}

function pathOf(request: RequestHead, url: string): SpanFacts {
  const { host, path } = placeOf(request, url)
  return { 'server.address': host, 'url.path': path }
}
