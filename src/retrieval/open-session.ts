// One request among the flights. A block comes from memory; or from an answer under way that will bring it; or from the
// slow tiers, which are waited for as long as they are worth it; or from the upstreams, which are asked beside them then.
import type { CID } from 'multiformats/cid'
import { isIdentity, isProvable } from '../core/block.ts'
import type { Clock } from '../core/clock.ts'
import { orAborted } from '../core/deadline.ts'
import { cancelled, isFailure } from '../core/failure.ts'
import { createGuard } from './policy.ts'
import { createReadAhead, type Room } from './read-ahead.ts'
import { createRequestClock } from './request-clock.ts'
import type { DagWant, Session, SessionOptions } from './session.ts'
import { notCached, notHere, unprovable } from './session-failures.ts'
import type { Found as Held, Look } from './tiers/stack.ts'
import { createUpstreamReader, type Flying, type LastFrom } from './upstream-reader.ts'

/** What all requests share. */
export type Shared = Flying & {
  readonly clock: Clock
  readonly room: Room
  readonly deadlineMs: number
  readonly blockDeadlineMs: number
}

/** What one request asks, until its `end`. */
export function openSession(
  { signal, account, onlyIfCached = false, noCache = false, client = '', ...policy }: SessionOptions,
  shared: Shared,
): Session {
  const { stack, notFound } = shared
  const clock = createRequestClock({ ...shared, signal })
  const { inTime } = clock
  const upstreams = createUpstreamReader({ clock, account, signal, noCache, client }, shared)
  const isHeld = () => wasHeld
  const { check, ...guard } = createGuard(policy)
  const ahead = createReadAhead({ fetch, fetchHeld, isHeld, check, room: shared.room, clock: shared.clock })
  let ended = false
  /** A slow tier had something of it. */
  let wasHeld = false
  let lastFrom: LastFrom = 'nowhere'

  function fromTier({ bytes, tier }: Held): Uint8Array {
    account.tierHit(tier)
    lastFrom = 'tier'
    return bytes
  }

  async function fromUpstreams(cid: CID, around: DagWant | undefined): Promise<Uint8Array> {
    upstreams.refuseRemembered(cid, around)
    // The second look, once, on the only way to a flight. Two requests for one block: the first finds it in no tier and is
    // held up; the second flies for it, gets it, and its flight ends with the block in memory. Without this look the first
    // would find no flight to join and start another one.
    const left = await stack.findFast(cid, signal)
    if (left) return fromTier(left)
    const bytes = await upstreams.get(cid, around, lastFrom)
    lastFrom = 'upstream'
    return bytes
  }

  /** What the slow tiers have, `late` as soon as it is worth asking somebody else too. */
  async function whileWorthIt(cid: CID, look: Look): Promise<Held | undefined | 'late'> {
    if (onlyIfCached) return inTime(cid, () => look.found)
    return inTime(cid, () => Promise.race([look.found, look.overdue.then(() => 'late' as const)]))
  }

  /** Whoever brings it first, and nothing only when nobody has it. */
  async function fromEither(cid: CID, around: DagWant | undefined, look: Look): Promise<Uint8Array> {
    const others = fromUpstreams(cid, around)
    const tiers = look.found.then((held) => held ?? Promise.reject(nothing))
    others.catch(() => {})
    try {
      return await inTime(cid, () => Promise.any([tiers.then(fromTier), others]))
    } catch (error) {
      if (isFailure(error, 'cancelled')) throw error
      return await others
    } finally {
      if (notFound.look(cid, '')) tiers.then(() => notFound.forget(cid)).catch(() => {})
    }
  }

  async function fromSlowTiers(cid: CID, around: DagWant | undefined): Promise<Uint8Array> {
    const outages = stack.outages
    const look = stack.look(cid)
    try {
      const held = await whileWorthIt(cid, look)
      if (held === 'late') return await fromEither(cid, around, look)
      if (held) {
        wasHeld = true
        return fromTier(held)
      }
      if (onlyIfCached) throw notCached(cid)
      return await fromUpstreams(cid, around)
    } catch (error) {
      const late = isFailure(error, 'timeout') ? await fromHere(look) : undefined
      const held = late ?? (stack.outages === outages ? undefined : await lastResort(cid, error))
      if (!held)
        throw isFailure(error, 'unavailable') && error.facts.alone && stack.outages === outages ? notHere(error) : error
      notFound.forget(cid)
      return fromTier(held)
    } finally {
      look.leave()
    }
  }

  /** Time is up, and our own disk has not come to say what it has: no reason to deny what lies here. */
  async function fromHere(look: Look): Promise<Held | undefined> {
    const here = Promise.race([look.found, look.here.then(() => undefined)])
    return orAborted(signal, here).catch(() => undefined)
  }

  /** A tier was passed over because others are quicker. Now there are no others. */
  async function lastResort(cid: CID, error: unknown): Promise<Held | undefined> {
    if (signal.aborted || !isFailure(error, 'unavailable')) return undefined
    return inTime(cid, (own) => stack.findPatiently(cid, 'beyond', own)).catch(() => undefined)
  }

  /** From the tiers alone. Whoever wants it meanwhile joins the same look. */
  async function fetchHeld(cid: CID): Promise<Uint8Array> {
    const near = await stack.findFast(cid, signal)
    if (near) return fromTier(near)
    const look = stack.look(cid)
    try {
      const held = await inTime(cid, () => look.found)
      if (!held) throw nothing
      return fromTier(held)
    } finally {
      look.leave()
    }
  }

  async function fetch(cid: CID, around: DagWant | undefined): Promise<Uint8Array> {
    const near = await stack.findFast(cid, signal)
    if (near) return fromTier(near)
    signal.throwIfAborted()
    if (!around || !upstreams.expects(cid)) return fromSlowTiers(cid, around)
    const flown = await upstreams.follow(cid, around)
    if (!flown) return fromSlowTiers(cid, undefined)
    lastFrom = 'upstream'
    return flown
  }

  return {
    ...guard,
    async get(cid, around) {
      if (ended) throw cancelled('the request is over')
      check(cid)
      if (!isProvable(cid)) throw unprovable(cid)
      if (isIdentity(cid)) return cid.multihash.digest
      return ahead.take(cid) ?? fetch(cid, around)
    },
    expect(next) {
      if (!ended) ahead.expect(next)
    },
    has: async (cid) => isIdentity(cid) || stack.has(cid, signal),
    begun: clock.begun,
    end() {
      ended = true
      ahead.end()
      upstreams.end()
    },
  }
}

const nothing = new Error('no tier has it')
