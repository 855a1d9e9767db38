// Reads blocks of one request from the slow tiers: first alone, then beside the upstreams, and once more when no upstream
// could help.
import type { CID } from 'multiformats/cid'
import type { Clock } from '../core/clock.ts'
import { orAborted, withDeadline } from '../core/deadline.ts'
import { isFailure } from '../core/failure.ts'
import type { NotFoundMemory } from './absence/not-found.ts'
import type { DagWant } from './session.ts'
import { notCached, notHere, pinUnreadable, storeFailed } from './session-failures.ts'
import type { Look, TierHit, TierStack } from './tiers/stack.ts'

/** An upstream takes as long: a tier that is passed over is asked beside it, since it may be well by now. */
const secondLookMs = 1000
/** No upstream has it: so long is a tier that is passed over waited for, before the block is denied. */
const lastLookMs = 200

export type TierReaderOptions = {
  readonly clock: Clock
  readonly stack: TierStack
  readonly notFound: NotFoundMemory
  /** Runs `work` until the request is out of time or its client has left; then the work's own signal aborts. */
  readonly inTime: <T>(cid: CID, work: (own: AbortSignal) => Promise<T>) => Promise<T>
  readonly signal: AbortSignal
  readonly onlyIfCached: boolean
  /** It has no upstream. */
  readonly isArchive: boolean
  /** The bytes, noted as a hit of this tier. */
  readonly fromTier: (held: TierHit) => Uint8Array
  readonly fromUpstreams: (cid: CID, around: DagWant | undefined) => Promise<Uint8Array>
  /** Called when a slow tier had a block of this request. */
  readonly onHeld: () => void
}

export interface TierReader {
  /** The block, from the upstreams if no tier has it in time. */
  fromSlowTiers(cid: CID, around: DagWant | undefined): Promise<Uint8Array>
  /** No upstream has it, and no tier was asked, since none has it as far as is known: they are asked after all. */
  afterAll(cid: CID, error: unknown): Promise<Uint8Array>
  /** From the tiers alone. A request that wants it meanwhile joins the same look. */
  fetchHeld(cid: CID): Promise<Uint8Array>
}

export function createTierReader(options: TierReaderOptions): TierReader {
  const { stack, notFound, inTime, signal, onlyIfCached, isArchive, fromTier, fromUpstreams, onHeld } = options
  const { besideTiersPassedOver, lastResort, fromPins } = createSecondLook(options)

  /** The hit of the slow tiers, or `late` as soon as it is worth asking an upstream too. */
  async function whileWorthIt(cid: CID, look: Look): Promise<TierHit | undefined | 'late'> {
    if (onlyIfCached) return inTime(cid, () => look.found)
    return inTime(cid, () => Promise.race([look.found, look.overdue.then(() => 'late' as const)]))
  }

  /** The first of tiers and upstreams that has it; undefined only when none has. */
  async function fromEither(cid: CID, around: DagWant | undefined, look: Look): Promise<Uint8Array> {
    const others = fromUpstreams(cid, around)
    const tiers = look.found.then((held) => held ?? Promise.reject(nothing))
    others.catch(() => {})
    let isUpstreams = false
    const fromLateTier = async () => {
      const held = await tiers
      // Quicker than the upstreams all the same.
      if (!isUpstreams) onHeld()
      return fromTier(held)
    }
    try {
      return await inTime(cid, () => Promise.any([fromLateTier(), others.finally(() => (isUpstreams = true))]))
    } catch (error) {
      if (isFailure(error, 'cancelled')) throw error
      return await others
    } finally {
      if (notFound.look(cid, '')) tiers.then(() => notFound.forget(cid)).catch(() => {})
    }
  }

  async function fromSlowTiers(cid: CID, around: DagWant | undefined): Promise<Uint8Array> {
    const look = stack.look(cid)
    try {
      const held = await whileWorthIt(cid, look)
      if (held === 'late') return await fromEither(cid, around, look)
      if (held) {
        onHeld()
        return fromTier(held)
      }
      if (onlyIfCached) throw notCached(cid)
      if (look.haveAnswered()) return await fromUpstreams(cid, around)
      return await besideTiersPassedOver(cid, around)
    } catch (error) {
      const late = isOutOfTime(error) ? await fromHere(look) : undefined
      const asked = late ?? (look.haveAnswered() ? undefined : await lastResort(cid, error))
      const held = asked ?? (await fromPins(cid, error))
      if (!held) throw inArchive(cid, error, look.haveAnswered())
      notFound.forget(cid)
      return fromTier(held)
    } finally {
      look.leave()
    }
  }

  async function afterAll(cid: CID, error: unknown): Promise<Uint8Array> {
    if (signal.aborted || isFailure(error, 'cancelled')) throw error
    const look = stack.look(cid)
    const held = await fromHere(look).finally(look.leave)
    if (!held) throw inArchive(cid, error, look.haveAnswered())
    onHeld()
    notFound.forget(cid)
    return fromTier(held)
  }

  /** Without upstreams the tiers are all there is to ask: what they said is an absence, what they did not say is none. */
  function inArchive(cid: CID, error: unknown, isSure: boolean): unknown {
    if (isFailure(error, 'unavailable') && error.facts.alone) return isSure ? notHere(error) : storeFailed(cid, error)
    return isArchive && isFailure(error, 'timeout') ? storeFailed(cid, error) : error
  }

  /** The time is up, but our own disk has not answered yet: wait for it rather than deny a block that is here. */
  async function fromHere(look: Look): Promise<TierHit | undefined> {
    const here = Promise.race([look.found, look.here.then(() => undefined)])
    return orAborted(signal, here).catch(() => undefined)
  }

  /** Reads from the tiers alone. A request that wants the block meanwhile joins the same look. */
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

  return { fromSlowTiers, afterAll, fetchHeld }
}

type Again = Pick<
  TierReaderOptions,
  'clock' | 'stack' | 'notFound' | 'inTime' | 'signal' | 'fromTier' | 'fromUpstreams' | 'onHeld'
>

/** Asks tiers that could not be asked at first: they may be well by now, and are passed over still. */
function createSecondLook({ clock, stack, notFound, inTime, signal, fromTier, fromUpstreams, onHeld }: Again) {
  /** From the upstreams, and when they take their time, from a tier that could not be asked before. */
  async function besideTiersPassedOver(cid: CID, around: DagWant | undefined): Promise<Uint8Array> {
    const over = new AbortController()
    const others = fromUpstreams(cid, around).finally(() => over.abort())
    const again = inTime(cid, async (own) => {
      const either = AbortSignal.any([own, over.signal])
      await clock.sleep(secondLookMs, either)
      return (await stack.findPatiently(cid, either)) ?? Promise.reject(nothing)
    })
    const held = again.then((hit) => {
      notFound.forget(cid)
      onHeld()
      return fromTier(hit)
    })
    try {
      return await Promise.any([others, held])
    } catch {
      return await others
    } finally {
      over.abort()
    }
  }

  /**
   * No upstream helped: ask the skipped tiers again. With their full deadline where no upstream could say that it lacks it, and
   * briefly where one did.
   */
  async function lastResort(cid: CID, error: unknown): Promise<TierHit | undefined> {
    const isAbsent = isFailure(error, 'not-found')
    if (signal.aborted || !(isAbsent || isFailure(error, 'unavailable'))) return undefined
    const late = () => notCached(cid)
    const look = inTime(cid, (own) =>
      isAbsent
        ? withDeadline({ ms: lastLookMs, clock, signal: own, late }, (brief) => stack.findPatiently(cid, brief))
        : stack.findPatiently(cid, own),
    )
    return look.catch(() => undefined)
  }

  /**
   * No upstream helped, and a provider of this machine has the block in its keeping: it came just now, or its copy is damaged, which
   * is no absence.
   */
  async function fromPins(cid: CID, error: unknown): Promise<TierHit | undefined> {
    if (signal.aborted || !isFailure(error) || !absences.has(error.kind) || error.facts.onlyIfCached) return undefined
    const briefly = <T>(work: (own: AbortSignal) => Promise<T>) =>
      withDeadline({ ms: lastLookMs, clock, signal, late: () => notCached(cid) }, work).catch(() => undefined)
    if (!(await briefly((own) => stack.isPinned(cid, own)))) return undefined
    const held = await briefly((own) => stack.findPatiently(cid, own))
    if (held) return held
    throw pinUnreadable(cid, error)
  }

  return { besideTiersPassedOver, lastResort, fromPins }
}

/** What a client takes for "not here". */
const absences: ReadonlySet<string> = new Set(['not-found', 'timeout', 'unavailable'])

/** The time was used up by this block or by those before it, or no upstream had a connection left in time. */
const isOutOfTime = (error: unknown): boolean => isFailure(error, 'timeout') || isFailure(error, 'overloaded')

const nothing = new Error('no tier has it')
