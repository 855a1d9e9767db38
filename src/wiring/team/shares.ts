// The share of one process in limits that a configuration sets for all.
import { availableParallelism } from 'node:os'
import type { Config } from '../../config/load.ts'

export const processesOf = ({ workers }: Pick<Config, 'workers'>): number =>
  workers === 'auto' ? availableParallelism() : workers

/**
 * Connections are not divided: the kernel chooses who accepts one, and each process has its own
 * descriptors.
 */
export function shareOf(config: Config, size: number): Config {
  if (size === 1) return config
  const part = (most: number): number => Math.max(1, Math.floor(most / size))
  const bytes = (most: number): number => Math.floor(most / size)
  const { cache, limits, retrieval } = config
  return {
    ...config,
    cache: {
      ...cache,
      writeQueueBytes: bytes(cache.writeQueueBytes),
      responses: { ...cache.responses, maxBytes: bytes(cache.responses.maxBytes) },
      tiers: cache.tiers.map((tier) =>
        tier.use === 'memory' ? { ...tier, options: withPart(tier.options, part) } : tier,
      ),
    },
    limits: {
      ...limits,
      maxConcurrentRequests: part(limits.maxConcurrentRequests),
      maxPendingResponseBytes: bytes(limits.maxPendingResponseBytes),
    },
    retrieval: {
      ...retrieval,
      readAhead: bytes(retrieval.readAhead),
      upstreams: retrieval.upstreams.map((one) => ({
        ...one,
        perMinute: one.perMinute && part(one.perMinute),
        perCidPerMinute: one.perCidPerMinute && part(one.perCidPerMinute),
      })),
    },
  }
}

function withPart(options: unknown, part: (most: number) => number): unknown {
  const own = options as { readonly maxBytes: number }
  return { ...own, maxBytes: part(own.maxBytes) }
}
