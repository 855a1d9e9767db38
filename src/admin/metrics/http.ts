// Metrics of requests and responses.
import type { Reading } from '../../observe/metrics.ts'
import type { RequestCounts } from '../../observe/requests.ts'

export type ConnectionCounts = {
  readonly size: number
  readonly most: number
  /** Connections paused to throttle their client. */
  readonly held: number
  /** By the limit that was reached. */
  readonly tally: Readonly<Record<string, { readonly ended: number; readonly refused: number }>>
}

/** Undefined `connections` if another program opened the address. */
export type ServerParts = { connections?: ConnectionCounts }

export type HttpParts = {
  readonly server: ServerParts
  readonly requests: RequestCounts
  readonly limits: {
    readonly inFlight: number
    readonly room: number
    readonly shed: number
    readonly throttled: number
    readonly throttledBy: Readonly<Record<string, number>>
    readonly isAlone: boolean
  }
  readonly unread: { readonly bytes: number; readonly cut: number }
  readonly hot: { readonly bytes: number; readonly items: number; readonly maxBytes: number }
  readonly compressions: { readonly made: Readonly<Record<string, number>>; readonly busy: number }
}

export const httpMetrics = ({ requests, limits, unread, hot, compressions, server }: HttpParts): readonly Reading[] => [
  {
    name: 'cidgate_http_requests_total',
    labels: ['route', 'method', 'status', 'source'],
    kind: 'counter',
    help: 'Requests by the route that answered, method, status (499: the client left before) and source of the bytes: hot, a tier, upstream or none.',
    read: requests.requests,
  },
  {
    name: 'cidgate_http_requests_in_progress',
    kind: 'gauge',
    isSum: true,
    help: 'Requests being answered.',
    read: () => limits.inFlight,
  },
  {
    name: 'cidgate_http_concurrency_limit',
    kind: 'gauge',
    isSum: true,
    help: 'The most requests that may be in progress now: limits.maxConcurrentRequests, or fewer while the event loop is late (limits.maxEventLoopDelay).',
    read: () => limits.room,
  },
  {
    name: 'cidgate_http_responses_aborted_total',
    labels: ['route'],
    kind: 'counter',
    help: 'Requests whose client did not get the whole answer: it left, stood still, or the bytes could not be had.',
    read: requests.cut,
  },
  {
    name: 'cidgate_http_time_to_first_byte_seconds',
    labels: ['route', 'source'],
    kind: 'histogram',
    help: 'From the request to the status of its answer. Without hot answers, which are written at once.',
    read: requests.firstByte,
  },
  {
    name: 'cidgate_http_request_duration_seconds',
    labels: ['route', 'source'],
    kind: 'histogram',
    help: 'From the request to the end of its answer, at the pace of the client. Without hot answers.',
    read: requests.duration,
  },
  {
    name: 'cidgate_http_request_body_bytes_total',
    labels: ['route'],
    kind: 'counter',
    help: 'Bytes of request bodies that arrived.',
    read: requests.bytesIn,
  },
  {
    name: 'cidgate_http_response_body_bytes_total',
    labels: ['route', 'source'],
    kind: 'counter',
    help: 'Bytes of response bodies that were written, without headers.',
    read: requests.bytesOut,
  },
  {
    name: 'cidgate_failures_total',
    labels: ['kind'],
    kind: 'counter',
    help: 'Requests that failed, those of programs included, by kind of failure.',
    read: requests.failures,
  },
  {
    name: 'cidgate_http_requests_shed_total',
    kind: 'counter',
    help: 'Requests answered with 503 because limits.maxConcurrentRequests was reached, or the event loop was late.',
    read: () => limits.shed,
  },
  {
    name: 'cidgate_http_requests_rate_limited_total',
    labels: ['limit'],
    kind: 'counter',
    help: 'Requests answered with 429 because their client was over limits.perClient, by what it had too many of: requests, misses, exports or uploads.',
    read: () => Object.entries(limits.throttledBy).map(([limit, value]) => ({ labels: { limit }, value })),
  },
  {
    name: 'cidgate_rate_limit_store_up',
    kind: 'gauge',
    help: '1: limits.sharedStore can be reached, or is not set. 0: this instance counts its clients alone.',
    read: () => (limits.isAlone ? 0 : 1),
  },
  {
    name: 'cidgate_http_connections_paused_total',
    kind: 'counter',
    help: 'How often a connection was not read for a while, because its client asked again at once after each 503 or 429.',
    read: () => server.connections?.held ?? 0,
  },
  {
    name: 'cidgate_http_pending_response_bytes',
    kind: 'gauge',
    isSum: true,
    help: 'Memory that answers hold because their clients read slowly.',
    read: () => unread.bytes,
  },
  {
    name: 'cidgate_http_slow_clients_closed_total',
    kind: 'counter',
    help: 'Clients that were cut off because answers held limits.maxPendingResponseBytes.',
    read: () => unread.cut,
  },
  ...connectionMetrics(server),
  {
    name: 'cidgate_library_reads_total',
    labels: ['source'],
    kind: 'counter',
    help: 'What a program read with get(), by source.',
    read: requests.programReads,
  },
  {
    name: 'cidgate_response_cache_bytes',
    kind: 'gauge',
    isSum: true,
    help: 'Bytes of complete answers in memory.',
    read: () => hot.bytes,
  },
  {
    name: 'cidgate_response_cache_limit_bytes',
    kind: 'gauge',
    isSum: true,
    help: 'The most that complete answers may take (cache.responses.maxBytes).',
    read: () => hot.maxBytes,
  },
  {
    name: 'cidgate_response_cache_items',
    kind: 'gauge',
    isSum: true,
    help: 'Complete answers in memory.',
    read: () => hot.items,
  },
  {
    name: 'cidgate_compressions_total',
    labels: ['coding'],
    kind: 'counter',
    help: 'Answers that were compressed. One that is hot is compressed once for each coding.',
    read: () => Object.entries(compressions.made).map(([coding, value]) => ({ labels: { coding }, value })),
  },
  {
    name: 'cidgate_compressions_skipped_total',
    kind: 'counter',
    help: 'Answers that went out plain although their clients take a coding, because enough others were being compressed.',
    read: () => compressions.busy,
  },
]

const connectionMetrics = (server: ServerParts): readonly Reading[] => {
  const one = (read: 'size' | 'most') => () => (server.connections ? [{ value: server.connections[read] }] : [])
  const byLimit = (read: 'ended' | 'refused') => () =>
    Object.entries(server.connections?.tally ?? {}).map(([limit, tally]) => ({ labels: { limit }, value: tally[read] }))
  return [
    {
      name: 'cidgate_connections',
      kind: 'gauge',
      isSum: true,
      help: 'Open connections at the public address.',
      read: one('size'),
    },
    {
      name: 'cidgate_connections_limit',
      kind: 'gauge',
      isSum: true,
      help: 'The most there may be: limits.maxConnections, or three quarters of the file descriptors of this process.',
      read: one('most'),
    },
    {
      name: 'cidgate_connections_refused_total',
      labels: ['limit'],
      kind: 'counter',
      help: 'Connections that were answered with 503 and closed, because all were busy, by the setting that was reached: maxConnections or maxConnectionsPerClient.',
      read: byLimit('refused'),
    },
    {
      name: 'cidgate_connections_ended_total',
      labels: ['limit'],
      kind: 'counter',
      help: 'Idle connections that were closed to make room for a new one, by the setting that was reached.',
      read: byLimit('ended'),
    },
  ]
}
