// Asks routers which gateways hold a CID. All requests below one root share one lookup. Gateways
// that a router names join the race between upstreams, each with its own health record.
import { LRUCache } from 'lru-cache'
import { CID } from 'multiformats/cid'
import { blockKey } from '../core/cid.ts'
import { type Backoff, type Clock, createBackoff, onceLate, repeatCheck } from '../core/clock.ts'
import { cancelled, Failure, isFailure, wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Attempt } from '../observe/request-record.ts'
import { type AddressRules, gatewayAddress, type PeerRecord, readPeers } from './answer.ts'

export type Router = {
  readonly name: string
  readonly timeoutMs: number
  readonly rules: AddressRules
  providers(
    cid: CID,
    signal: AbortSignal,
  ): Promise<{ readonly contentType: string | undefined; readonly chunks: AsyncIterable<Uint8Array> }>
}

/** A lookup for a root. Members are added until it is over. */
export interface Lookup<Member> {
  readonly members: readonly Member[]
  readonly isOver: boolean
  /** The outcome of each router. */
  readonly attempts: readonly Attempt[]
  /** Why it found no gateway: a router's failure, or `not-found`. Undefined until it is over. */
  readonly failure: Failure | undefined
  /** Calls `tell` for each new member and at the end. The returned function unsubscribes. */
  onNews(listener: () => void): () => void
}

type RouterState = {
  readonly name: string
  readonly lookups: number
  /** Lookups that named a usable gateway. */
  readonly named: number
  readonly failures: number
  readonly lastFailure: string | undefined
  /** The remaining backoff after failures; 0 if it may be asked. */
  readonly backoffMs: number
}

export interface Finder<Member> {
  /** Returns the lookup for this root: running, cached, or new. */
  find(root: CID): Lookup<Member>
  /** The members of a cached lookup. Sends no request. */
  known(root: CID): readonly Member[]
  /** Every cached gateway, with the router that named it first. */
  found(): readonly { readonly member: Member; readonly router: string }[]
  routers(): readonly RouterState[]
  close(): Promise<void>
}

type FinderOptions<Member> = {
  readonly routers: readonly Router[]
  /** Throws a Failure for a forbidden origin. */
  readonly join: (origin: string, router: string) => Member
  readonly leave: (member: Member) => Promise<void>
  /** True for the origins of configured upstreams and of this gateway. */
  readonly isKnown: (origin: string) => boolean
  /** The interval between probes of each router; 0 disables them. */
  readonly probeMs: number
  readonly clock: Clock
  readonly log: Log
}

const maxMembers = 8
const maxOrigins = 256
const maxRemembered = 4096
const maxLookups = 64
/** The cache time that routers give for found providers. */
const foundMs = 300_000
const emptyMs = 15_000
const firstRestMs = 1_000
const maxRestMs = 60_000
const maxNamesListed = 3
/** The CID that probes ask for: an empty identity block, which reveals nobody's interest. */
const emptyBlock = CID.parse('bafkqaaa')

type Standing = {
  readonly backoff: Backoff
  lookups: number
  named: number
  failures: number
  last: string | undefined
}

export function createFinder<Member extends object>(options: FinderOptions<Member>): Finder<Member> {
  const { routers, join, leave, isKnown, probeMs, clock, log } = options
  const standings = new Map<Router, Standing>(
    routers.map((router) => {
      const backoff = createBackoff({ clock, firstMs: firstRestMs, maxMs: maxRestMs })
      return [router, { backoff, lookups: 0, named: 0, failures: 0, last: undefined }]
    }),
  )
  const closing = new AbortController()
  const leaving = new Set<Promise<void>>()
  const origins = new LRUCache<string, { readonly member: Member; readonly router: string }>({
    max: maxOrigins,
    dispose({ member }) {
      const left = leave(member).catch((error: unknown) => log('debug', 'router.leave-failed', { why: wordsOf(error) }))
      leaving.add(left)
      void left.finally(() => leaving.delete(left))
    },
  })
  const lookups = new LRUCache<string, RunningLookup<Member> & { untilMs: number }>({ max: maxRemembered })
  let running = 0

  function memberAt(origin: string, router: string): Member | undefined {
    const known = origins.get(origin)
    if (known) return known.member
    try {
      const member = join(origin, router)
      origins.set(origin, { member, router })
      return member
    } catch {
      return undefined
    }
  }

  /**
   * Passes the peers that a router names to `take`, until that returns false. Counts a failure, and
   * rejects with it.
   */
  async function ask(router: Router, root: CID, take: (peer: PeerRecord) => boolean): Promise<void> {
    const standing = standings.get(router) as Standing
    const own = new AbortController()
    const stop = onceLate(clock, router.timeoutMs, () =>
      own.abort(new Failure('timeout', `${router.name} did not answer in time`, { source: 'upstream' })),
    )
    const end = () => own.abort(closing.signal.reason)
    closing.signal.addEventListener('abort', end, { once: true })
    try {
      const { contentType, chunks } = await router.providers(root, own.signal)
      for await (const peer of readPeers(contentType, chunks)) if (!take(peer)) break
      standing.backoff.succeeded()
    } catch (error) {
      if (isFailure(error, 'not-found')) return standing.backoff.succeeded()
      standing.failures++
      standing.last = wordsOf(error)
      standing.backoff.failed(isFailure(error) ? error.retryAfterMs : undefined)
      log('debug', 'router.failed', { router: router.name, why: standing.last })
      throw error
    } finally {
      stop()
      closing.signal.removeEventListener('abort', end)
      own.abort(cancelled('the lookup is over'))
    }
  }

  async function askRouter(router: Router, root: CID, lookup: RunningLookup<Member>): Promise<void> {
    const standing = standings.get(router) as Standing
    const began = clock.monotonic()
    const named: string[] = []
    let outcome = 'nobody'
    standing.lookups++
    try {
      await ask(router, root, ({ addresses }) => {
        const origin = originOf(addresses, router.rules)
        const member = origin === undefined || isKnown(origin) ? undefined : memberAt(origin, router.name)
        if (origin && member && lookup.add(member)) named.push(new URL(origin).host)
        return lookup.members.length < maxMembers
      })
    } catch (error) {
      outcome = isFailure(error) ? error.kind : 'upstream-error'
      lookup.failed(error)
    }
    if (named.length > 0) standing.named++
    lookup.note({
      upstream: `router ${router.name}`,
      outcome: named.length > 0 ? `named ${listed(named)}` : outcome,
      ms: Math.round(clock.monotonic() - began),
    })
  }

  /**
   * Finds a failed router before a request waits for it, and a recovered one before its backoff is
   * over.
   */
  const probe = (router: Router): Promise<boolean> =>
    ask(router, emptyBlock, () => false).then(
      () => true,
      () => false,
    )

  async function lookUp(key: string, root: CID, lookup: RunningLookup<Member> & { untilMs: number }): Promise<void> {
    const ready = routers.filter((router) => (standings.get(router) as Standing).backoff.remainingMs === 0)
    for (const router of routers)
      if (!ready.includes(router)) {
        const { last = '' } = standings.get(router) as Standing
        lookup.note({ upstream: `router ${router.name}`, outcome: 'skipped-unhealthy', ms: 0 })
        lookup.failed(
          new Failure('unavailable', `${router.name} rests after a failure: ${last}`, { source: 'upstream' }),
        )
      }
    running++
    await Promise.all(ready.map((router) => askRouter(router, root, lookup)))
    running--
    lookup.end()
    const { members, failure } = lookup
    // A failed lookup is not cached as an absence.
    if (members.length === 0 && failure?.kind !== 'not-found') lookups.delete(key)
    else lookup.untilMs = clock.monotonic() + (members.length > 0 ? foundMs : emptyMs)
  }

  if (probeMs > 0)
    for (const router of routers)
      void repeatCheck({ everyMs: probeMs, clock, signal: closing.signal, check: () => probe(router) }).catch(() => {})

  return {
    find(root) {
      const key = blockKey(root)
      const known = lookups.get(key)
      if (known && clock.monotonic() < known.untilMs) return known
      const lookup = Object.assign(new RunningLookup<Member>(), { untilMs: Number.POSITIVE_INFINITY })
      if (running >= maxLookups || closing.signal.aborted) {
        lookup.failed(new Failure('overloaded', 'too many lookups are in progress', { source: 'ours' }))
        lookup.end()
        return lookup
      }
      lookups.set(key, lookup)
      void lookUp(key, root, lookup)
      return lookup
    },
    known(root) {
      const lookup = lookups.peek(blockKey(root))
      return lookup && clock.monotonic() < lookup.untilMs ? lookup.members : []
    },
    found: () => [...origins.values()],
    routers: () =>
      routers.map((router) => {
        const { lookups: count, named, failures, last, backoff } = standings.get(router) as Standing
        const backoffMs = Math.round(backoff.remainingMs)
        return { name: router.name, lookups: count, named, failures, lastFailure: last, backoffMs }
      }),
    async close() {
      closing.abort(cancelled('the gateway is closing'))
      origins.clear()
      await Promise.all(leaving)
    },
  }
}

class RunningLookup<Member> implements Lookup<Member> {
  readonly members: Member[] = []
  readonly attempts: Attempt[] = []
  isOver = false
  #failure: Failure | undefined
  readonly #listeners = new Set<() => void>()

  get failure(): Failure | undefined {
    return this.#failure
  }

  /** Returns false for a known member, and at the limit. */
  add(member: Member): boolean {
    if (this.members.includes(member) || this.members.length >= maxMembers) return false
    this.members.push(member)
    this.#listener()
    return true
  }

  note(attempt: Attempt): void {
    this.attempts.push(attempt)
  }

  failed(error: unknown): void {
    this.#failure ??= isFailure(error) ? error : new Failure('upstream-error', wordsOf(error), { source: 'upstream' })
  }

  end(): void {
    this.isOver = true
    this.#failure ??= new Failure('not-found', 'no router names anybody who has it', { source: 'upstream' })
    this.#listener()
  }

  onNews(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  #listener(): void {
    for (const listener of [...this.#listeners]) listener()
  }
}

/** The origin of the first permitted address. */
function originOf(addresses: readonly string[], rules: AddressRules): string | undefined {
  for (const address of addresses) {
    const found = gatewayAddress(address, rules)
    if ('origin' in found) return found.origin
  }
  return undefined
}

function listed(names: readonly string[]): string {
  const more = names.length - maxNamesListed
  return `${names.slice(0, maxNamesListed).join(', ')}${more > 0 ? ` and ${more} more` : ''}`
}
