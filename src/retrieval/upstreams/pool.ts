// The pool of upstreams for the race: which may be asked for a CID now, in which order, and after
// what delay.
import type { CID } from 'multiformats/cid'
import type { Upstream } from '../../../backends/upstreams/contract.ts'
import { blockKey } from '../../core/cid.ts'
import type { Clock } from '../../core/clock.ts'
import { createTokenBucket } from '../../core/counting/token-bucket.ts'
import type { Failure } from '../../core/failure.ts'
import type { Attempt } from '../../observe/requests.ts'
import type { AskKind } from './attempts.ts'
import { guessedFirstMs } from './estimates.ts'
import type { UpstreamHealth } from './upstream-health.ts'

export type Member = {
  readonly upstream: Upstream
  readonly health: UpstreamHealth
  /** A router named it: it is asked beside others within a budget of its own. */
  readonly isFound?: boolean
}

/** A look-up at the routers, for a root. */
export interface Finding {
  readonly isOver: boolean
  readonly attempts: readonly Attempt[]
  /** Why it brought nobody, where it did not. */
  readonly failure: Failure | undefined
  onNews(tell: () => void): () => void
}

/** Gateways that routers name. */
type MoreMembers = {
  find(root: CID): Finding
  known(root: CID): readonly Member[]
}

export type Hedge = 'auto' | number

type Candidate<Who> = {
  readonly who: Who
  /** Expected cost of asking; the smallest goes first. */
  readonly load: number
  /** Its first byte is late after this; undefined while nothing is known. */
  readonly typicalMs: number | undefined
  /**
   * Nothing is known of it, or nothing new: it is asked once beside another one, so that no reader waits for the
   * lesson.
   */
  readonly isUntried?: boolean
}

export type Step<Who> = {
  readonly who: Who
  /** The next one starts this long after this one did, unless this one failed before. */
  readonly hedgeDelayMs: number
}

export type Plan = {
  readonly steps: readonly Step<Member>[]
  /** The upstreams that may not be asked now, as attempts name them. */
  readonly skipped: readonly Attempt[]
  /** A skipped one may have the content, and be asked again before long. */
  readonly isUnasked: boolean
  /** When the first of those that are out may be asked again, for a `Retry-After`. */
  readonly retryAfterMs: number | undefined
  /** Until one may be asked for this; Infinity: it is not worth waiting. */
  readonly backInMs: number
}

export type Pool = ReturnType<typeof createPool>

// A hedge has to be earned: ten flights earn one, and time a trickle more, so that a general
// slowdown does not double the load.
const hedgeShare = 0.1
const hedgeBudget = { size: 10, perSecond: 0.2 } as const
// Of several without CAR the best still goes first.
const blockOnlyFactor = 4

export function createPool(options: {
  readonly members: readonly Member[]
  readonly hedge: Hedge
  readonly clock: Clock
  readonly timeoutMs: number
  readonly more?: MoreMembers | undefined
}) {
  const { members, hedge, clock, timeoutMs, more } = options
  const hedges = createTokenBucket({ ...hedgeBudget, clock })

  /** The members, and those that routers named for this root. */
  const of = (root: CID): readonly Member[] => (more ? [...members, ...more.known(root)] : members)

  const canAnswer = ({ upstream: { traits } }: Member, kind: AskKind, cid: CID): boolean =>
    (kind === 'dag' && traits.dag) || traits.canBlock(cid)

  // In a race for a DAG, an upstream without CAR can still bring the root: better than none.
  const candidateOf = (who: Member, kind: AskKind): Candidate<Member> => {
    const { upstream, health } = who
    const own = upstream.traits.dag ? kind : 'block'
    const load = health.load(own) * (own === kind ? 1 : blockOnlyFactor)
    return { who, load, typicalMs: health.typicalMs(own), isUntried: health.isUntried(own) }
  }

  // Silent to all clients for so long it is down, not slow: asking another one then is no hedge.
  const isGone = ({ health }: Member): boolean => health.silentMs > 2 * health.lateMs

  return {
    members,
    /** The time for the queue of an upstream and for its recovery: less than clients wait. */
    timeoutMs,
    of,
    /** Asks the routers for gateways that hold this root. Undefined: there are no routers. */
    find: more && ((root: CID) => more.find(root)),
    /**
     * The upstreams that may be asked now, the best first. Has no side effect, and may be called
     * again in the middle of an answer. `spentMs`: how long a flight asks a member no more; undefined
     * where it was not asked. `root`: what it is part of, for gateways that routers named.
     */
    plan(kind: AskKind, cid: CID, spentMs?: (member: Member) => number | undefined, root = cid): Plan {
      const key = blockKey(cid)
      const all = of(root)
        .filter((member) => canAnswer(member, kind, cid))
        .map((member) => {
          const spent = spentMs?.(member)
          const is = member.health.state(key, spent !== undefined)
          return { member, ...is, ms: Math.max(spent ?? 0, is.backInMs), isNew: spent === undefined }
        })
      const isAnyReady = all.some(({ state }) => state === 'ready')
      // An upstream that is out is tried where no other can be asked: bytes are proved.
      const isAsked = (one: (typeof all)[number]) => one.ms === 0 && (!isAnyReady || one.state === 'ready')
      const candidates = all.filter(isAsked).map(({ member }) => candidateOf(member, kind))
      const out = all.filter((one) => one.state !== 'ready' && !isAsked(one))
      // For the next flight.
      const backMs = ({ member, untilMs = Number.POSITIVE_INFINITY }: (typeof all)[number]) =>
        Math.min(untilMs, member.health.state(key).backInMs)
      const soonestMs = Math.min(...out.map(backMs))
      const skipped = out.filter(({ isNew }) => isNew)
      return {
        steps: order(candidates, hedge),
        skipped: skipped.map(({ member: { upstream }, state }) => {
          return { upstream: upstream.name, outcome: `skipped-${state}`, ms: 0 }
        }),
        isUnasked: skipped.some(({ member, state }) => state === 'budget-exhausted' || member.health.isOutBriefly),
        retryAfterMs: Number.isFinite(soonestMs) ? Math.max(1, soonestMs) : undefined,
        backInMs: Math.min(Number.POSITIVE_INFINITY, ...all.map(({ ms }) => ms)),
      }
    },
    /** Once for each flight: it earns a share of a second question. */
    began: () => hedges.earn(hedgeShare),
    /**
     * Whether one more upstream may be asked although none has failed: from the budget, or because
     * one gives no answers at all. `next`: the one to be asked. Gateways that routers name are often
     * slow: hedging them takes nothing from the budget of the configured ones.
     */
    mayHedge: (next?: Member): boolean =>
      hedge === 0 || next?.isFound === true || members.some(isGone) || hedges.take(),
  }
}

const minHedgeDelayMs = 50
const maxHedgeDelayMs = 2000

export function order<Who>(candidates: readonly Candidate<Who>[], hedge: Hedge): Step<Who>[] {
  const ranked = [...candidates].sort((one, other) => one.load - other.load)
  const index = ranked.findIndex(({ isUntried }) => isUntried)
  const isTrial = index > 0
  if (isTrial) ranked.splice(1, 0, ...ranked.splice(index, 1))
  // An unknown upstream is waited for as long as the quickest could take.
  const known = ranked.map(({ typicalMs }) => typicalMs).filter((ms) => ms !== undefined)
  const guessMs = known.length > 0 ? Math.min(...known) : guessedFirstMs
  return ranked.map(({ who, typicalMs = guessMs }, place) => {
    const delayMs = hedge === 'auto' ? Math.min(maxHedgeDelayMs, Math.max(minHedgeDelayMs, typicalMs)) : hedge
    return { who, hedgeDelayMs: isTrial && place === 0 ? 0 : delayMs }
  })
}
