// The pool of upstreams for the race: which may be asked for a CID now, in which order, and after what delay.
import type { CID } from 'multiformats/cid'
import type { Upstream } from '../../../backends/upstreams/contract.ts'
import { blockKey } from '../../core/cid.ts'
import type { Clock } from '../../core/clock.ts'
import { createBudget } from '../../core/counting/budget.ts'
import type { Failure } from '../../core/failure.ts'
import type { Attempt } from '../../observe/request-record.ts'
import { type Hedge, order, type Step } from './order.ts'
import type { AskKind } from './question.ts'
import type { UpstreamHealth, UpstreamState } from './upstream-health.ts'

export type Member = {
  readonly upstream: Upstream
  readonly health: UpstreamHealth
  /** A router named it: it is asked beside others within a budget of its own. */
  readonly isFound?: boolean
}

/** One look-up at the routers, for a root. */
export interface Finding {
  readonly isOver: boolean
  readonly attempts: readonly Attempt[]
  /** Why it brought nobody, where it did not. */
  readonly failure: Failure | undefined
  onNews(tell: () => void): () => void
}

/** Who else may have it: gateways that routers name. */
export type MoreMembers = {
  find(root: CID): Finding
  known(root: CID): readonly Member[]
}

export type Plan = {
  readonly steps: readonly Step<Member>[]
  /** The upstreams that may not be asked now, in the words of an account of attempts. */
  readonly skipped: readonly Attempt[]
  /** One of them may have the content, and be asked again before long. */
  readonly isUnasked: boolean
  /** When the first of those that are out may be asked again. */
  readonly soonestMs: number | undefined
}

export interface Pool {
  readonly members: readonly Member[]
  /** How long a question may wait for its slot at an upstream and for the answer: less than clients wait. */
  readonly patienceMs: number
  /**
   * The upstreams that may be asked now, the best first. Has no side effect, and may be called again in the middle of
   * an answer. `root`: what it is part of, for gateways that routers named.
   */
  plan(kind: AskKind, cid: CID, except?: ReadonlySet<Member>, root?: CID): Plan
  /** The members, and those that routers named for this root. */
  of(root: CID): readonly Member[]
  /** Asks the routers for gateways that hold this root. Undefined: there are no routers. */
  find: ((root: CID) => Finding) | undefined
  /** Once for each flight: it earns a share of a second question. */
  began(): void
  /**
   * Whether one more upstream may be asked although none has failed: from the budget, or because one gives no answers
   * at all. `next`: the one to be asked.
   */
  mayHedge(next?: Member): boolean
  /**
   * Detaches its members, which may go on in another pool, so that they no longer count this pool's other upstreams.
   */
  close(): void
}

// Of 100 flights five may ask twice out of impatience, and a trickle more: a general slowdown must not double the load.
const hedgeShare = 0.05
const hedgesPerSecond = 0.2
const hedgeBurst = 5
// Strangers are quick to be slow: asking one of them too takes nothing from the budget of the configured ones.
const foundHedgeBurst = 20
const foundHedgesPerSecond = 5
// An upstream that is silent to all clients for so long is down, not slow: asking another one then is no hedge.
const silentLeastMs = 500
const silentTimes = 2
const silentUnknownMs = 1000
const blockOnlyHandicap = 4
const defaultPatienceMs = 4_000

export function createPool(options: {
  readonly members: readonly Member[]
  readonly hedge: Hedge
  readonly clock: Clock
  readonly patienceMs?: number
  readonly more?: MoreMembers | undefined
}): Pool {
  const { members, hedge, clock, patienceMs = defaultPatienceMs, more } = options
  const hedgesOfFound = createBudget({ size: foundHedgeBurst, perSecond: foundHedgesPerSecond, clock })
  const hedges = createBudget({ size: hedgeBurst, perSecond: hedgesPerSecond, clock })
  const leaves = members.map(({ upstream, health }) =>
    health.join({
      hasOthers: () => members.some((one) => one.upstream !== upstream && isReady(one)),
      patienceMs,
    }),
  )

  const of = (root: CID): readonly Member[] => (more ? [...members, ...more.known(root)] : members)

  const canAnswer = (member: Member, kind: AskKind, cid: CID): boolean =>
    (kind === 'dag' && member.upstream.traits.dag) || member.upstream.traits.canBlock(cid)

  // In a race for a DAG, an upstream without CAR can still bring the root: better than none.
  const loadOf = ({ upstream, health }: Member, kind: AskKind): number =>
    kind === 'dag' && !upstream.traits.dag ? health.load('block') * blockOnlyHandicap : health.load(kind)

  const isTriedSoon = (health: UpstreamHealth): boolean => health.coolsInTime || health.triesInMs !== undefined

  const isReady = ({ health }: Member): boolean => health.state('').state === 'ready'

  const isGone = ({ health }: Member): boolean => {
    const usualMs = health.usualMs('dag') ?? health.usualMs('block')
    return health.silentMs > (usualMs === undefined ? silentUnknownMs : Math.max(silentLeastMs, usualMs * silentTimes))
  }

  return {
    members,
    patienceMs,
    of,
    find: more && ((root) => more.find(root)),
    plan(kind, cid, except, root = cid) {
      const key = blockKey(cid)
      const able = of(root).filter((member) => canAnswer(member, kind, cid))
      const fresh = able.filter((member) => !except?.has(member))
      const ready = fresh.filter(({ health }) => health.state(key).state === 'ready')
      const inState = (state: UpstreamState) => fresh.filter(({ health }) => health.state(key).state === state)
      // A resting upstream is asked, and waited for, when no other can be, and when it has only just begun to rest; so is one
      // that will take questions again in time. One that is unusable or in quarantine gets a question now and then when there
      // is no other: bytes are proved, whoever sends them.
      const isAlone = !able.some(isReady)
      if (ready.length === 0) {
        ready.push(...inState('unhealthy').filter(({ health }) => isAlone || health.isRestingBriefly))
        if (isAlone) ready.push(...inState('rate-limited').filter(({ health }) => isTriedSoon(health)))
        if (ready.length === 0 && isAlone)
          ready.push(
            ...inState('incompatible'),
            ...fresh.filter(({ health }) => health.state('').state === 'quarantined'),
          )
      }
      const skipped: Attempt[] = []
      let isUnasked = false
      let soonestMs: number | undefined
      for (const member of able.filter((member) => !ready.includes(member))) {
        const { upstream, health } = member
        const { state, untilMs } = health.state(key)
        if (state === 'ready') continue
        const ms = (isAlone ? health.triesInMs : undefined) ?? untilMs
        if (ms !== undefined) soonestMs = Math.max(1, Math.min(soonestMs ?? ms, ms))
        if (except?.has(member)) continue
        skipped.push({ upstream: upstream.name, outcome: `skipped-${state}`, ms: 0 })
        isUnasked ||= state === 'budget-exhausted' || health.isOutBriefly
      }
      const steps = order(
        ready.map((who) => ({
          who,
          load: loadOf(who, kind),
          usualMs: who.health.usualMs(kind),
          isUntried: who.health.isUntried(kind),
        })),
        hedge,
      )
      return { steps, skipped, isUnasked, soonestMs }
    },
    began: () => hedges.earn(hedgeShare),
    mayHedge: (next) => hedge === 0 || (next?.isFound ? hedgesOfFound.take() : members.some(isGone) || hedges.take()),
    close() {
      for (const leave of leaves.splice(0)) leave()
    },
  }
}
