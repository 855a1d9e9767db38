// The Failure that the client gets after every upstream failed: none has it, none was in time, all are overloaded, or none
// could be asked.
import type { CID } from 'multiformats/cid'
import { Failure, isFailure, isUnreachable } from '../../core/failure.ts'
import type { Plan } from './pool.ts'

/**
 * `facts.sure`: every upstream that exists was asked and said no; otherwise the absence is not proved. `facts.alone`: no
 * upstream exists (an archive), so what its tiers say is all there is to know. `facts.unasked`: an upstream that may have it could not
 * be asked, and may be back at any moment.
 */
export function outcomeOf(
  cid: CID,
  failures: readonly unknown[],
  { skipped, isUnasked, soonestMs }: Omit<Plan, 'steps'>,
): Failure {
  const kinds = failures.map((failure) => (isFailure(failure) ? failure.kind : 'internal'))
  const facts = {
    sure: skipped.length === 0 && kinds.every((kind) => kind === 'not-found'),
    unasked: isUnasked || failures.some(wasNotAsked),
  }
  const retryAfterMs = facts.unasked ? earliest([...failures.map(retryOf), soonestMs]) : undefined
  const cause = failures.find((failure) => isFailure(failure)) ?? failures[0]
  // An overloaded upstream may have it: no absence to be remembered.
  const busy = failures.filter((failure) => isFailure(failure, 'overloaded'))
  if (busy.length > 0) return overloaded(cid, busy)
  if (kinds.includes('not-found')) {
    return new Failure('not-found', `no upstream has ${cid} at present`, {
      source: 'upstream',
      facts,
      cause,
      retryAfterMs,
    })
  }
  if (kinds.includes('timeout')) {
    return new Failure('timeout', `no upstream sent ${cid} in time`, { source: 'upstream', facts, cause, retryAfterMs })
  }
  const alone = failures.length === 0 && skipped.length === 0
  const why = alone ? 'it has no upstreams configured' : 'no upstream could be asked for it'
  return new Failure('unavailable', `${cid} is in no tier of this gateway, and ${why}`, {
    source: 'upstream',
    facts: { sure: false, alone },
    cause,
    retryAfterMs: earliest([...failures.map(retryOf), soonestMs]),
  })
}

/** All upstreams that could be asked are overloaded: the client should retry, and this is never an absence. */
export function overloaded(cid: CID, failures: readonly Failure[] = []): Failure {
  return new Failure('overloaded', `all upstreams are overloaded: none could be asked for ${cid} in time; retry`, {
    source: 'upstream',
    facts: { sure: false },
    cause: failures[0],
    retryAfterMs: earliest(failures.map(retryOf)),
  })
}

/** It throttled the question, or did not get it. */
const wasNotAsked = (failure: unknown): boolean =>
  isFailure(failure) && (failure.kind === 'throttled' || failure.kind === 'unavailable' || isUnreachable(failure))

const retryOf = (failure: unknown): number | undefined => (isFailure(failure) ? failure.retryAfterMs : undefined)

function earliest(all: readonly (number | undefined)[]): number | undefined {
  const known = all.filter((ms) => ms !== undefined && ms > 0) as number[]
  return known.length === 0 ? undefined : Math.min(...known)
}
