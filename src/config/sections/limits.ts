// The `limits:` section: limits per client and in total.
import { z } from 'zod'
import { duration, size } from '../../core/units.ts'

const count = () => z.int().min(1)

const perClient = z
  .strictObject({
    perMinute: count().optional(),
    burst: count().optional(),
    misses: count().optional(),
    exports: count().optional(),
    uploads: count().optional(),
  })
  .refine((said) => Object.keys(said).length > 0, 'expected at least one of perMinute, misses, exports and uploads')
  .refine(({ burst, perMinute }) => burst === undefined || perMinute !== undefined, {
    path: ['burst'],
    error: 'expected `perMinute` beside it',
  })

/** `sharedStore`: the backends that it can name. */
export const limits = <SharedStore extends z.ZodType>(sharedStore: SharedStore) =>
  z.strictObject({
    maxConcurrentRequests: count()
      .default(4096)
      .describe('Requests being answered at once; the next is answered with 503.'),
    maxEventLoopDelay: duration()
      .prefault('100ms')
      .describe(
        'While the event loop is later than this and more than 128 requests are in progress, fewer requests are let in, and the others answered with 503, so that answers from memory go on. 0: never.',
      ),
    perClient: z
      .union([z.literal('none'), perClient], {
        error: ({ input }) =>
          typeof input === 'object'
            ? undefined
            : `expected none, or requests a minute: { perMinute: ${typeof input === 'number' && input >= 1 ? Math.floor(input) : 600} }, perhaps with burst`,
      })
      .default('none')
      .describe(
        'Of one address (IPv6: of one /64), a minute: requests, how many of them may come at once (burst), and of these those for content that no tier has (misses), for a CAR or tar (exports), and uploads. More is answered with 429. Behind proxies see `trustedProxies`.',
      ),
    sharedStore: sharedStore
      .optional()
      .describe(
        'Redis in which several instances share the counts of `perClient` and of token quotas. No request waits for it: an instance learns the counts of the others within about a second. While it is unreachable, each counts alone.',
      ),
    maxConnections: count()
      .default(8192)
      .describe(
        'Connections of clients at once, and three quarters of the files that this process may open at most. The longest idle one makes room for the next; where none is idle, the next is answered with 503.',
      ),
    maxConnectionsPerClient: z
      .union([z.literal('auto'), count()])
      .default('auto')
      .describe(
        'Of these, at most so many from one address (IPv6: one /64). auto: half of them. Addresses of `trustedProxies` and unix sockets are not limited.',
      ),
    headersTimeout: duration().prefault('10s').describe('A request must have sent its headers by then.'),
    keepAliveTimeout: duration()
      .prefault('75s')
      .describe('How long an idle connection is kept; longer than your load balancer does.'),
    writeTimeout: duration().prefault('60s').describe('A client that reads nothing for this long is cut off.'),
    maxPendingResponseBytes: size()
      .prefault('512MiB')
      .describe(
        'Memory for blocks that wait for their clients, 250 ms and more for 64 KiB; what comes next may take as much again. Beyond that the client that has kept one waiting the longest is cut off.',
      ),
    shutdownTimeout: duration()
      .prefault('30s')
      .describe('How long requests in progress may continue after a stop or a reload.'),
    shutdownDelay: duration()
      .prefault(0)
      .describe(
        'After a stop: how long connections are still accepted while /readyz says 503, so that a load balancer sees it first. Longer than the time between its probes.',
      ),
  })

type Sections = {
  readonly limits: { readonly perClient: unknown; readonly sharedStore?: unknown }
  readonly upload: { readonly auth: string | { readonly tokens: readonly (string | { readonly quota?: unknown })[] } }
}

/** Refuses a shared store without limits to share. */
export function refuseNothingToShare({ limits, upload }: Sections, context: z.RefinementCtx): void {
  const tokens = typeof upload.auth === 'string' ? [] : upload.auth.tokens
  const hasQuota = tokens.some((one) => typeof one === 'object' && one.quota !== undefined)
  if (limits.sharedStore === undefined || limits.perClient !== 'none' || hasQuota) return
  const message = 'there is nothing to count (expected `limits.perClient`, or a token with a quota)'
  context.addIssue({ code: 'custom', path: ['limits', 'sharedStore'], message })
}
