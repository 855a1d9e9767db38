// What every route of the public address shares: how a request that failed is answered, counted and logged, and whose word
// is taken for where it came from.
import { createForwarded, type Forwarded } from '../http/forwarded.ts'
import { createRespond, type Respond } from '../http/respond.ts'
import { createRequestCounts, type RequestCounts } from '../observe/readings.ts'
import type { Whole } from './whole.ts'

export type Public = {
  readonly respond: Respond
  readonly requests: RequestCounts
  readonly forwarded: Forwarded
}

export function wirePublic({ config, log, lease }: Whole): Public {
  const requests = lease.take('requests', [], createRequestCounts)
  const respond = createRespond({
    mode: config.responses.types,
    stalledMs: config.limits.stalled,
    onFailed: requests.failed,
    onError: (error, about) =>
      log('error', 'request.broke', { ...about, error: error instanceof Error ? error.stack : String(error) }),
  })
  return { respond, requests, forwarded: createForwarded(config.trustedProxies) }
}
