// What one client, and all of them, may ask, and where instances count together.
import type { IncomingMessage } from 'node:http'
import type { Forwarded } from '../../http/hosts/forwarded.ts'
import { createLimits, type Limits } from '../../http/limits/limits.ts'
import { createTogether, type Together } from '../../http/limits/together.ts'
import { isInner } from '../../team/inner-door.ts'
import { takeTally } from '../backends.ts'
import type { Whole } from '../whole.ts'

export function wireLimits(whole: Whole, forwarded: Forwarded): Limits {
  const { config, clock, lease, team } = whole
  const { inFlight, loopDelay, perClient } = config.limits
  const together = takeTogether(whole)
  return lease.take('limits', [inFlight, loopDelay, perClient, together, config.trustedProxies, team], () =>
    createLimits({
      ...{ inFlight, loopDelay, perClient, together, clock },
      addressOf: forwarded.addressOf,
      budgets: team?.budgets,
      isShared: sharedBy(forwarded),
    }),
  )
}

/** Made here, so that what outlives a gateway holds nothing else of it. */
const sharedBy =
  (forwarded: Forwarded) =>
  (request: IncomingMessage): boolean =>
    isInner(request) || forwarded.isPassedOn(request)

function takeTogether(whole: Whole): Together | undefined {
  const { clock, log, lease } = whole
  const tally = takeTally(whole)
  return (
    tally &&
    lease.take(
      'together',
      [tally],
      () => createTogether({ tally, clock, log }),
      (one) => one.close(),
    )
  )
}
