// The admin side put together: what is counted, what is looked at now and then, and whether this gateway is ready.
import type { RequestListener } from 'node:http'
import type { Provider } from '../../backends/pinning/contract.ts'
import { createAdmin } from '../http/admin.ts'
import { type Looked, startChecks } from '../observe/checks.ts'
import { createMetrics } from '../observe/metrics.ts'
import { readiness } from '../observe/readiness.ts'
import { describeGateway } from '../observe/readings.ts'
import { probeTarget } from '../upload/through-probe.ts'
import type { Front } from './front.ts'
import type { Reading } from './reading.ts'
import type { Tiers } from './tiers.ts'
import type { WriteSide } from './uploads.ts'
import type { Whole } from './whole.ts'

export type Admin = { readonly handler: RequestListener; drain(): void }

export function wireAdmin(
  { config, clock, log, onClose }: Whole,
  parts: {
    readonly providers: readonly Provider[]
    readonly tiers: Tiers
    readonly reading: Reading
    readonly writing: WriteSide
    readonly front: Front
  },
): Admin {
  const { providers, tiers, reading, writing, front } = parts
  const { pool, hot, retrieval, names, denylists } = reading
  const { requests, lane, limits } = front
  const { stack, guards, corrupt } = tiers
  const metrics = createMetrics()
  describeGateway(metrics, { requests, hot, lane, limits, pool, stack, retrieval, names, corrupt, denylists })
  const { through } = config.upload
  const looked: Looked[] = through
    ? [
        {
          name: `through ${new URL(through.url).host}`,
          look: (signal) => probeTarget(through, config.retrieval.userAgent, signal),
        },
      ]
    : providers.map((provider) => ({ name: `provider ${provider.name}`, look: (signal) => provider.probe(signal) }))
  const checks = startChecks(looked, { everyMs: config.pinning.probeEvery, clock, log })
  onClose(() => checks.close())
  const { confirm, queue } = config.pinning
  let draining = false
  const handler = createAdmin({
    metrics,
    uploads: writing.confirmation,
    ready: () =>
      readiness({
        draining,
        providers: looked.length,
        confirm: through ? 1 : confirm,
        queue: !through && queue,
        checks,
        tiers: guards,
        upstreams: pool.members.map(({ upstream: { name }, standing }) => ({ name, state: standing.state('').state })),
      }),
  })
  return {
    handler,
    drain() {
      draining = true
    },
  }
}
