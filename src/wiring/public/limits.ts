// Limits per client and in total, and the store in which instances count together.
import type { IncomingMessage } from 'node:http'
import type { Forwarded } from '../../http/hosts/forwarded.ts'
import { createLimits, type Limits } from '../../http/limits/limits.ts'
import { createTogether } from '../../http/limits/together.ts'
import type { RequestHead } from '../../http/wire/request-head.ts'
import { isInner } from '../../team/inner-door.ts'
import { takeTelling } from '../telling.ts'
import type { Whole } from '../whole.ts'

export function wireLimits(whole: Whole, forwarded: Forwarded): Limits {
  const { config, clock, lease, team } = whole
  const { maxConcurrentRequests: inFlight, maxEventLoopDelay: loopDelay, perClient } = config.limits
  const telling = takeTelling(whole)
  const together = telling && lease.take('together', [telling], () => createTogether({ telling, clock }))
  const isAnnouncing = config.announce !== false
  return lease.take(
    'limits',
    [inFlight, loopDelay, perClient, together, config.trustedProxies, team, isAnnouncing],
    () =>
      createLimits({
        ...{ inFlight, loopDelay, perClient, together, clock },
        isAlone: () => telling?.isAlone ?? false,
        addressOf: forwarded.addressOf,
        budgets: team?.budgets,
        isShared: sharedBy(forwarded),
        isExempt: isAnnouncing ? isOfChain : undefined,
      }),
  )
}

/** An indexer that is refused one advertisement gives up the whole chain. */
const isOfChain = ({ url }: RequestHead): boolean => url?.startsWith('/ipni/v1/ad/') ?? false

/** A separate function, so that the closure holds nothing else of this gateway. */
const sharedBy =
  (forwarded: Forwarded) =>
  (request: IncomingMessage): boolean =>
    isInner(request) || forwarded.isPassedOn(request)
