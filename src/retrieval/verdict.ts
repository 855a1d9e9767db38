// What follows for the client from how every upstream failed: nobody has it, nobody was in time, or nobody could be asked.
import type { CID } from 'multiformats/cid'
import { Failure, isFailure } from '../failure.ts'

/**
 * `facts.sure`: every upstream that exists was asked and said no; otherwise the absence is not proved. `facts.alone`: no
 * upstream exists (an archive), so what its tiers say is all there is to know.
 */
export function verdict(cid: CID, failures: readonly unknown[], skipped: number, soonestMs?: number): Failure {
  const kinds = failures.map((failure) => (isFailure(failure) ? failure.kind : 'internal'))
  const facts = { missing: cid.toString(), sure: skipped === 0 && kinds.every((kind) => kind === 'not-found') }
  const cause = failures.find((failure) => isFailure(failure)) ?? failures[0]
  if (kinds.includes('not-found')) {
    return new Failure('not-found', `no upstream has ${cid} at present`, { source: 'upstream', facts, cause })
  }
  if (kinds.includes('timeout')) {
    return new Failure('timeout', `no upstream sent ${cid} in time`, { source: 'upstream', facts, cause })
  }
  const alone = failures.length === 0 && skipped === 0
  const why = alone ? 'it has no upstream to ask' : 'no upstream could be asked for it'
  return new Failure('unavailable', `${cid} is in no tier of this gateway, and ${why}`, {
    source: 'upstream',
    facts: { ...facts, sure: false, alone },
    cause,
    retryAfterMs: soonestMs || undefined,
  })
}
