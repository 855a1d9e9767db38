// Writes an acknowledged upload into every gateway of this process.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../core/cid.ts'
import { Failure } from '../core/failure.ts'
import type { Retrieval } from '../retrieval/session.ts'
import { isOwner } from '../team/team.ts'
import type { Everywhere } from '../upload/fill-tiers.ts'
import type { Whole } from './whole.ts'

/**
 * Covers all tiers and memories of this process, including those of a gateway created during the
 * upload or about to end: an upload acknowledged by one must be readable from the others at once.
 */
export function takeEverywhere({ lease, team }: Whole, retrieval: Retrieval): Everywhere {
  const all = lease.take('every retrieval', [], () => ({ now: new Set<Retrieval>(), joined: 0 }))
  lease.take(
    'retrieval that is written to',
    [retrieval],
    () => {
      all.now.add(retrieval)
      all.joined++
      return { retrieval }
    },
    () => all.now.delete(retrieval),
  )
  // Sibling processes ask this one for the block, even before the upload is acknowledged.
  const tell = (cid: CID): void => {
    if (isOwner(team)) team.arrivals.note(blockKey(cid))
  }
  return lease.take('everywhere', [team], () => ({
    get joined() {
      return all.joined
    },
    async store(cid, bytes, signal) {
      tell(cid)
      const lacking = await Promise.all([...all.now].map((one) => one.store(cid, bytes, signal)))
      return [...new Set(lacking.flat())]
    },
    get sharedTiers() {
      return [...new Set([...all.now].flatMap((one) => one.sharedTiers))]
    },
    async bring(tier, cid, bytes, signal) {
      const having = [...all.now].filter((one) => one.sharedTiers.includes(tier))
      if (having.length === 0) throw new Failure('unavailable', `there is no shared tier ${tier}`, { source: 'tier' })
      await Promise.all(having.map((one) => one.bring(tier, cid, bytes, signal)))
    },
    forget(cid) {
      tell(cid)
      for (const one of all.now) one.forget(cid)
    },
  }))
}
