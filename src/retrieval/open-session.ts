// The session of one request. A block comes from memory, from a running flight that will bring it, from the slow tiers while
// waiting for them is worth it, or from the upstreams, which are then asked beside the tiers.
import type { CID } from 'multiformats/cid'
import { isIdentity, isProvable } from '../core/block.ts'
import { codec } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import type { AtHand, AtHandOptions } from '../core/disk/at-hand.ts'
import { cancelled } from '../core/failure.ts'
import { largeNodeBytes, type NodeMemory } from '../ipld/node-memory.ts'
import type { LastFrom } from './followed-answer.ts'
import { createGuard } from './policy.ts'
import { createReadAhead, type ReadAhead, type Room } from './read-ahead.ts'
import { createRequestClock } from './request-clock.ts'
import type { DagWant, Session, SessionOptions } from './session.ts'
import { unprovable } from './session-failures.ts'
import { createTierReader } from './tier-reader.ts'
import type { TierHit } from './tiers/stack.ts'
import type { LoopTurns } from './turns/loop-turns.ts'
import { createUpstreamReader, type Flying } from './upstream-reader.ts'

/** The parts that all requests share. */
export type SessionParts = Flying & {
  readonly clock: Clock
  readonly room: Room
  readonly nodes: NodeMemory
  readonly turns: LoopTurns
  readonly deadlineMs: number
  readonly blockDeadlineMs: number
  /** There is no upstream. */
  readonly isArchive: boolean
}

/** Opens the session of one request, until its `end`. */
export function openSession(
  {
    signal,
    account,
    onlyIfCached = false,
    noCache = false,
    client = '',
    waitedMs = 0,
    beforeMiss,
    ...policy
  }: SessionOptions,
  shared: SessionParts,
): Session {
  const { stack, notFound, turns, nodes, isArchive } = shared
  const clock = createRequestClock({ ...shared, signal, waitedMs })
  const { inTime } = clock
  const upstreams = createUpstreamReader({ clock, account, signal, noCache, client, root: () => root }, shared)
  const { fromSlowTiers, withoutLook, fetchHeld } = createTierReader({
    ...{ clock: shared.clock, stack, notFound, inTime, signal, onlyIfCached, isArchive, fromTier, fromUpstreams },
    onHeld: () => (wasHeld = true),
  })
  const isHeld = () => wasHeld
  const { check, ...guard } = createGuard(policy)
  // Made when the reader first says what comes next: a file of one block has nothing ahead.
  let ahead: ReadAhead | undefined
  let ended = false
  let root: CID | undefined
  /** Whether a slow tier had a block of this request. */
  let wasHeld = false
  let hasMissed = false
  let lastFrom: LastFrom = 'nowhere'

  function fromTier({ bytes, tier }: TierHit): Uint8Array {
    account.tierHit(tier)
    lastFrom = 'tier'
    return bytes
  }

  async function fromUpstreams(cid: CID, around: DagWant | undefined): Promise<Uint8Array> {
    upstreams.refuseRemembered(cid, around)
    // The second look, once, on the only way to a flight. Two requests for one block: the first finds it in no tier and is
    // held up; the second flies for it, gets it, and its flight ends with the block in memory. Without this look the first
    // would find no flight to join and start another one.
    const found = stack.findFast(cid, signal)
    const left: TierHit | undefined = found instanceof Promise ? await found : found
    if (left) return fromTier(left)
    clock.refuseLate(cid)
    miss()
    const bytes = await upstreams.get(cid, around, lastFrom)
    lastFrom = 'upstream'
    return bytes
  }

  /** An answer that has begun is not cut for it. */
  function miss(): void {
    if (hasMissed) return
    hasMissed = true
    if (!clock.hasBegun()) beforeMiss?.()
  }

  function atHand(cid: CID, options?: AtHandOptions): AtHand | undefined {
    signal.throwIfAborted()
    const held = stack.atHand(cid, options)
    if (!held) return undefined
    wasHeld ||= !held.isMemory
    fromTier(held)
    return held
  }

  async function fetch(cid: CID, around: DagWant | undefined): Promise<Uint8Array> {
    const found = stack.findFast(cid, signal)
    const near: TierHit | undefined = found instanceof Promise ? await found : found
    if (near) return fromTier(near)
    signal.throwIfAborted()
    if (!around || !upstreams.expects(cid)) return fromElsewhere(cid, around)
    const flown = await upstreams.follow(cid, around)
    if (!flown) return fromElsewhere(cid, undefined)
    lastFrom = 'upstream'
    return flown
  }

  // Thousands of requests that wait for one thing fail in one turn of the loop: their answers take many turns.
  async function afterOthers(error: unknown): Promise<never> {
    if (!clock.hadItsTurn()) await turns.inLine()
    throw error
  }

  const fromElsewhere = (cid: CID, around: DagWant | undefined): Promise<Uint8Array> =>
    !onlyIfCached && stack.slowLack(cid) ? withoutLook(cid, around) : fromSlowTiers(cid, around)

  return {
    ...guard,
    readNode: nodes.readNode,
    readOnce: nodes.readOnce,
    async get(cid, around) {
      const turn = turns.giveWay()
      if (turn !== undefined) await turn
      if (ended) throw cancelled('the request is over')
      check(cid)
      root ??= cid
      if (!isProvable(cid)) throw unprovable(cid)
      if (isIdentity(cid)) return cid.multihash.digest
      const here = ahead?.take(cid) ?? atHand(cid)?.bytes
      if (here) return prepared(cid, await here, shared)
      const fetched = await fetch(cid, around).catch(afterOthers)
      // All that waited for it go on in the moment it comes: each decodes it in a turn that has time for that.
      if (cid.code !== codec.raw && fetched.byteLength >= largeNodeBytes) await turns.inLine()
      return prepared(cid, fetched, shared)
    },
    atHand(cid, options) {
      check(cid)
      root ??= cid
      const isElsewhere = ended || isIdentity(cid) || !isProvable(cid) || ahead?.has(cid)
      return isElsewhere ? undefined : atHand(cid, options)
    },
    expect(next) {
      if (ended) return
      ahead ??= createReadAhead({ fetch, fetchHeld, isHeld, check, room: shared.room, clock: shared.clock })
      ahead.expect(next)
    },
    giveWay: turns.giveWay,
    has: async (cid) => isIdentity(cid) || stack.has(cid, signal),
    begun: clock.begun,
    end() {
      ended = true
      ahead?.end()
      upstreams.end()
    },
  }
}

/** Decoded in pieces, where that takes long. */
async function prepared(cid: CID, bytes: Uint8Array, { nodes, turns }: SessionParts): Promise<Uint8Array> {
  if (cid.code === codec.dagPb && bytes.byteLength >= largeNodeBytes) await nodes.prepare(cid, bytes, turns.giveWay)
  return bytes
}
