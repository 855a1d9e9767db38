// A tier that is passed over while it is down or slow. Whether it is back is found out behind the requests, not by one of
// them: nobody waits for a tier that is known to be gone.
import { CID } from 'multiformats/cid'
import type { Tier } from '../../backends/tiers/contract.ts'
import type { Clock } from '../clock.ts'
import { Failure, isFailure } from '../failure.ts'
import type { Log } from '../observe/log.ts'
import { createBreaker } from './breaker.ts'

export interface GuardedTier extends Tier {
  readonly isDown: boolean
  readonly failures: number
}

const failuresToOpen = 3
const trialCid = CID.parse('bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku') // of nothing: an empty block

export function guarded(tier: Tier, { clock, log }: { readonly clock: Clock; readonly log: Log }): GuardedTier {
  let failures = 0
  const breaker = createBreaker({
    failures: failuresToOpen,
    clock,
    onChange: (isOpen) => log(isOpen ? 'warn' : 'info', isOpen ? 'tier.down' : 'tier.back', { tier: tier.name }),
  })

  async function measured<T>(work: () => Promise<T>, signal: AbortSignal | undefined): Promise<T> {
    try {
      const value = await work()
      breaker.succeeded()
      return value
    } catch (error) {
      if (signal?.aborted && !isFailure(error, 'timeout') && !isFailure(error, 'broken')) throw error
      failures++
      breaker.failed()
      throw error
    }
  }

  function guard<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const state = breaker.ask()
    if (state === 'closed') return measured(work, signal)
    if (state === 'trial') measured(() => tier.has(trialCid), undefined).catch(() => {})
    return Promise.reject(new Failure('unavailable', `tier ${tier.name} is down and passed over`, { source: 'tier' }))
  }

  return {
    name: tier.name,
    traits: tier.traits,
    get isDown() {
      return breaker.isOpen
    },
    get failures() {
      return failures
    },
    get: (cid, signal) => guard(() => tier.get(cid, signal), signal),
    put: (cid, bytes, signal) => guard(() => tier.put(cid, bytes, signal), signal),
    has: (cid, signal) => guard(() => tier.has(cid, signal), signal),
    delete: (cid, signal) => guard(() => tier.delete(cid, signal), signal),
    ...(tier.probe && { probe: (signal) => tier.probe?.(signal) ?? Promise.resolve() }),
    close: () => tier.close(),
  }
}
