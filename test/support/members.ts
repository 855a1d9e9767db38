// Upstreams as members of a pool, each with a health of its own.
import type { Upstream } from '../../backends/upstreams/contract.ts'
import type { Clock } from '../../src/core/clock.ts'
import { type Log, silentLog } from '../../src/core/log.ts'
import { createLoopScheduler } from '../../src/retrieval/loop-scheduler.ts'
import type { Member } from '../../src/retrieval/upstreams/pool.ts'
import { UpstreamHealth } from '../../src/retrieval/upstreams/upstream-health.ts'

export function membersOf(upstreams: readonly Upstream[], clock: Clock, log: Log = silentLog): Member[] {
  const turns = createLoopScheduler(clock)
  return upstreams.map((upstream) => {
    const { name, traits } = upstream
    return { upstream, health: new UpstreamHealth({ name, clock, turns, log, connections: traits.connections }) }
  })
}
