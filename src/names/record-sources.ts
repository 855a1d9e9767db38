// Selects the upstreams to ask for an IPNS record. Lookups respect the health of an upstream (rate
// limits, budgets, quarantine) and hardly change it: a missing or slow name says nothing about how
// an upstream serves blocks.
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import { upTo } from '../core/cache.ts'
import { blockKey } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import { Failure, isFailure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Attempt } from '../observe/request-record.ts'
import { Attempts } from '../retrieval/upstreams/attempts.ts'
import type { Member, Pool } from '../retrieval/upstreams/pool.ts'
import type { RecordSource, Sources } from './ipns.ts'

const lieMs = 600_000
const unjudged = new Failure('cancelled', 'a record was asked for, no block', { source: 'ours' })

/**
 * A router that stores records. Its failures here do not affect its health: a name says nothing
 * about its other answers.
 */
export type RecordRouter = {
  readonly name: string
  record(key: CID, signal: AbortSignal): Promise<Uint8Array>
}

export function recordSources(options: {
  readonly pool: Pool
  readonly routers?: readonly RecordRouter[] | undefined
  readonly clock: Clock
  readonly log: Log
}): Sources {
  const { pool, routers = [], clock, log } = options
  // Keyed by upstream and name: one record that this gateway cannot read must not cost the upstream
  // all other names.
  const liars = new LRUCache<string, number>(upTo(10_000))

  const sourceOf = (member: Member, spentOn: string): RecordSource => ({
    name: member.upstream.name,
    async record(key, signal) {
      const { upstream, health } = member
      if (!upstream.record) throw new Failure('not-found', `${upstream.name} has no records`, { source: 'upstream' })
      signal.throwIfAborted()
      const own = new AbortController()
      const { question, slot } = new Attempts(clock).enter(member, 'block', key, own, spentOn)
      const leave = () => own.abort(signal.reason)
      signal.addEventListener('abort', leave, { once: true })
      try {
        await slot
        return await upstream.record(key, own.signal)
      } catch (error) {
        if (isFailure(error, 'throttled')) health.brokeOff(error)
        throw error
      } finally {
        signal.removeEventListener('abort', leave)
        question.failed(unjudged, clock.monotonic())
      }
    },
    lied: (failure) => noteLie(member.upstream.name, spentOn, failure),
  })

  function noteLie(name: string, spentOn: string, failure: Failure): void {
    liars.set(`${name} ${spentOn}`, clock.monotonic() + lieMs)
    log('warn', 'names.invalid-record', { upstream: name, forMs: lieMs, why: failure.message })
  }

  const hasLied = (name: string, spentOn: string): boolean => (liars.get(`${name} ${spentOn}`) ?? 0) > clock.monotonic()

  const routed = (spentOn: string): RecordSource[] =>
    routers.flatMap(({ name, record }) => {
      const as = `router ${name}`
      if (hasLied(as, spentOn)) return []
      return [{ name: as, record, lied: (failure) => noteLie(as, spentOn, failure) }]
    })

  return (key) => {
    const spentOn = blockKey(key)
    const ready: Member[] = []
    const resting: Member[] = []
    const skipped: Attempt[] = []
    for (const member of pool.members) {
      const { upstream, health } = member
      if (!upstream.record) continue
      const state = hasLied(upstream.name, spentOn) ? 'sent-a-false-record' : health.state(spentOn).state
      if (state === 'ready') ready.push(member)
      else if (state === 'unhealthy') resting.push(member)
      else skipped.push({ upstream: upstream.name, outcome: `skipped-${state}`, ms: 0 })
    }
    if (ready.length === 0) ready.push(...resting)
    else
      for (const { upstream } of resting) skipped.push({ upstream: upstream.name, outcome: 'skipped-unhealthy', ms: 0 })
    return { ready: [...ready.map((member) => sourceOf(member, spentOn)), ...routed(spentOn)], skipped }
  }
}
