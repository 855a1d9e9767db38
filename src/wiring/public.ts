// Shared by every route of the public address: how a failed request is answered, counted and logged, and which proxies are
// trusted to name the client.
import type { IncomingMessage } from 'node:http'
import { createRequestCounts, type RequestCounts } from '../admin/readings.ts'
import { createForwarded, type Forwarded } from '../http/hosts/forwarded.ts'
import { clientOf } from '../http/limits.ts'
import { createRespond, type Respond } from '../http/wire/respond.ts'
import type { Whole } from './whole.ts'

export type Public = {
  readonly respond: Respond
  readonly requests: RequestCounts
  readonly forwarded: Forwarded
  /** Whose request it is, as far as limits go. */
  readonly clientOf: (request: IncomingMessage) => string
}

export function wirePublic({ config, log, lease }: Whole): Public {
  const requests = lease.take('requests', [], createRequestCounts)
  const respond = createRespond({
    mode: config.responses.types,
    stalledMs: config.limits.stalled,
    onFailed: requests.failed,
    onError: (error, about) =>
      log('error', 'request.error', { ...about, error: error instanceof Error ? error.stack : String(error) }),
  })
  const forwarded = createForwarded(config.trustedProxies)
  return { respond, requests, forwarded, clientOf: (request) => clientOf(forwarded.addressOf(request)) }
}
