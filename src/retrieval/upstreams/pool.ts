// The pool of upstreams for the race: which may be asked for a CID now, in which order, and after what delay.
import type { CID } from 'multiformats/cid'
import type { Upstream } from '../../../backends/upstreams/contract.ts'
import { blockKey } from '../../core/cid.ts'
import type { Clock } from '../../core/clock.ts'
import { createTokenBucket } from '../../core/counting/token-bucket.ts'
import type { Failure } from '../../core/failure.ts'
import type { Attempt } from '../../observe/request-record.ts'
import type { AskKind } from './attempts.ts'
import { guessedFirstMs } from './estimates.ts'
import { defaultPatienceMs, type UpstreamHealth } from './upstream-health.ts'

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

export type Hedge = 'auto' | number

export type Candidate<Who> = {
  readonly who: Who
  /** Expected cost of asking; the smallest goes first. */
  readonly load: number
  /** How long it may take to show a first byte without being late, as learned; undefined while nothing is known. */
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
  readonly patienceMs: number
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

// A hedge has to be earned: twenty flights earn one, and time a trickle more, so that a general slowdown does not double the load.
const hedgeShare = 0.05
const hedgeBudget = { size: 5, perSecond: 0.2 } as const
// Gateways that routers name are often slow: hedging them takes nothing from the budget of the configured ones.
const foundHedgeBudget = { size: 20, perSecond: 5 } as const
// An upstream that is silent to all clients for so long is down, not slow: asking another one then is no hedge.
const minSilentMs = 500
const blockOnlyFactor = 4

type Able = ReturnType<UpstreamHealth['state']> & { readonly member: Member }

export function createPool(options: {
  readonly members: readonly Member[]
  readonly hedge: Hedge
  readonly clock: Clock
  readonly patienceMs?: number
  readonly more?: MoreMembers | undefined
}): Pool {
  const { members, hedge, clock, patienceMs = defaultPatienceMs, more } = options
  const hedgesOfFound = createTokenBucket({ ...foundHedgeBudget, clock })
  const hedges = createTokenBucket({ ...hedgeBudget, clock })
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
    kind === 'dag' && !upstream.traits.dag ? health.load('block') * blockOnlyFactor : health.load(kind)

  const isTriedSoon = (health: UpstreamHealth): boolean => health.coolsInTime || health.triesInMs !== undefined

  const isReady = ({ health }: Member): boolean => health.state('').state === 'ready'

  const isGone = ({ health }: Member): boolean =>
    health.silentMs > Math.max(minSilentMs, 2 * (health.typicalMs('dag') ?? health.typicalMs('block') ?? 0))

  return {
    members,
    patienceMs,
    of,
    find: more && ((root) => more.find(root)),
    plan(kind, cid, except, root = cid) {
      const key = blockKey(cid)
      const able: Able[] = []
      for (const member of of(root))
        if (canAnswer(member, kind, cid)) able.push({ member, ...member.health.state(key) })
      const fresh = except ? able.filter(({ member }) => !except.has(member)) : able
      const isAlone = !able.some(({ state, member }) => state === 'ready' || isReady(member))
      let asked = fresh.filter(({ state }) => state === 'ready')
      // An unhealthy upstream is asked, and waited for, when no other can be, and when it has only just become unhealthy; so is one that
      // is rate-limited for a moment. One that is incompatible or quarantined is tried when there is no other: bytes are proved.
      if (asked.length === 0)
        asked = fresh.filter(
          ({ state, member: { health } }) =>
            (state === 'unhealthy' && (isAlone || health.isRestingBriefly)) ||
            (state === 'rate-limited' && isAlone && isTriedSoon(health)),
        )
      if (asked.length === 0 && isAlone)
        asked = fresh.filter(
          ({ state, member }) =>
            state === 'incompatible' || (state === 'quarantined' && member.health.state('').state === 'quarantined'),
        )
      const skipped: Attempt[] = []
      let isUnasked = false
      let soonestMs: number | undefined
      if (asked.length < able.length)
        for (const one of able) {
          const { state, untilMs, member } = one
          if (state === 'ready' || asked.includes(one)) continue
          const ms = (isAlone ? member.health.triesInMs : undefined) ?? untilMs
          if (ms !== undefined) soonestMs = Math.max(1, Math.min(soonestMs ?? ms, ms))
          if (except?.has(member)) continue
          skipped.push({ upstream: member.upstream.name, outcome: `skipped-${state}`, ms: 0 })
          isUnasked ||= state === 'budget-exhausted' || member.health.isOutBriefly
        }
      const candidates = asked.map(({ member: who }) => ({
        who,
        load: loadOf(who, kind),
        typicalMs: who.health.typicalMs(kind),
        isUntried: who.health.isUntried(kind),
      }))
      return { steps: order(candidates, hedge), skipped, isUnasked, soonestMs }
    },
    began: () => hedges.earn(hedgeShare),
    mayHedge: (next) => hedge === 0 || (next?.isFound ? hedgesOfFound.take() : members.some(isGone) || hedges.take()),
    close() {
      for (const leave of leaves.splice(0)) leave()
    },
  }
}

const minPatienceMs = 50
const maxPatienceMs = 2000

export function order<Who>(candidates: readonly Candidate<Who>[], hedge: Hedge): Step<Who>[] {
  const ranked = [...candidates].sort((one, other) => one.load - other.load)
  const known = ranked.map((candidate) => candidate.typicalMs).filter((ms) => ms !== undefined)
  const quickest = known.length > 0 ? Math.min(...known) : undefined
  const isTrial = tryOneBesideTheFirst(ranked)
  return ranked.map(({ who, typicalMs }, index) => ({
    who,
    patienceMs: index === 0 && isTrial ? 0 : hedge === 'auto' ? patience(typicalMs, quickest) : hedge,
  }))
}

function tryOneBesideTheFirst<Who>(ranked: Candidate<Who>[]): boolean {
  const index = ranked.findIndex(({ isUntried }) => isUntried)
  const untried = ranked[index]
  if (index < 1 || !untried) return false
  ranked.splice(index, 1)
  ranked.splice(1, 0, untried)
  return true
}

// An unknown upstream is waited for as long as the quickest could take.
function patience(typicalMs: number | undefined, quickestMs: number | undefined): number {
  const ms = typicalMs ?? (quickestMs === undefined ? guessedFirstMs : quickestMs)
  return Math.min(maxPatienceMs, Math.max(minPatienceMs, ms))
}
