// All metrics of a gateway, in output order.
import type { Reading } from '../observe/metrics.ts'
import type { Announced } from './dashboard/shape.ts'
import { announcedMetrics } from './metrics/announced.ts'
import { type GatewayParts, gatewayMetrics } from './metrics/gateway.ts'
import { type HttpParts, httpMetrics } from './metrics/http.ts'
import { type ProcessParts, processMetrics } from './metrics/processes.ts'
import { type TierParts, tierMetrics } from './metrics/tiers.ts'
import { type UploadParts, uploadMetrics } from './metrics/uploads.ts'
import { type UpstreamParts, upstreamMetrics } from './metrics/upstreams.ts'

export type MetricParts = {
  readonly http: HttpParts
  readonly upstreams: UpstreamParts
  readonly announced?: (() => Announced | undefined) | undefined
  readonly tiers: TierParts
  readonly uploads: UploadParts
  readonly gateway: GatewayParts
  readonly process: { readonly readings: readonly Reading[] }
  /** Undefined for a single process. */
  readonly processes?: (() => ProcessParts) | undefined
}

export const readingsOf = ({
  http,
  upstreams,
  announced,
  tiers,
  uploads,
  gateway,
  process,
  processes,
}: MetricParts): readonly Reading[] => [
  ...httpMetrics(http),
  ...upstreamMetrics(upstreams),
  ...announcedMetrics(announced),
  ...tierMetrics(tiers),
  ...uploadMetrics(uploads),
  ...gatewayMetrics(gateway),
  ...processMetrics(processes),
  ...process.readings,
]
