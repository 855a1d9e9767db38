// Asks routers which gateways hold a CID. All requests below one root share one lookup. Gateways
// that a router names join the race between upstreams, each with its own health record.

import { LRUCache } from 'lru-cache'
import { CID } from 'multiformats/cid'
import { blockKey } from '../core/cid.ts'
import { type Backoff, type Clock, createBackoff, onceLate, repeatCheck } from '../core/clock.ts'
import { cancelled, Failure, isFailure, wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Attempt } from '../observe/requests.ts'
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
/** The CID that probes ask for: an empty identity block, which reveals no interest in any content. */
const emptyBlock = CID.parse('bafkqaaa')

type RouterState = Router & {
  readonly backoff: Backoff
  lookups: number
  /** Lookups that named a usable gateway. */
  named: number
  failures: number
  lastFailure: string | undefined
}

export class Finder<Member extends object> {
  readonly #options: FinderOptions<Member>
  readonly #routers: readonly RouterState[]
  readonly #closing = new AbortController()
  readonly #leaving = new Set<Promise<void>>()
  readonly #origins: LRUCache<string, { readonly member: Member; readonly router: string }>
  readonly #lookups = new LRUCache<string, Lookup<Member>>({ max: maxRemembered })
  #running = 0

  constructor(options: FinderOptions<Member>) {
    const { routers, leave, probeMs, clock, log } = options
    this.#options = options
    this.#routers = routers.map((router) => {
      const backoff = createBackoff({ clock, firstMs: firstRestMs, maxMs: maxRestMs })
      return { ...router, backoff, lookups: 0, named: 0, failures: 0, lastFailure: undefined }
    })
    this.#origins = new LRUCache({
      max: maxOrigins,
      dispose: ({ member }) => {
        const left = leave(member).catch((error: unknown) =>
          log('debug', 'router.leave-failed', { why: wordsOf(error) }),
        )
        this.#leaving.add(left)
        void left.finally(() => this.#leaving.delete(left))
      },
    })
    if (probeMs === 0) return
    // Finds a failed router before a request waits for it, and a recovered one before its backoff
    // is over.
    const probe = (router: RouterState): Promise<boolean> =>
      this.#ask(router, emptyBlock, () => false).then(
        () => true,
        () => false,
      )
    for (const router of this.#routers)
      void repeatCheck({
        ...{ everyMs: probeMs, clock, signal: this.#closing.signal },
        check: () => probe(router),
      }).catch(() => {})
  }

  /** Returns the lookup for this root: running, cached, or new. */
  find(root: CID): Lookup<Member> {
    const key = blockKey(root)
    const known = this.#lookups.get(key)
    if (known && this.#isFresh(known)) return known
    const lookup = new Lookup<Member>()
    if (this.#running >= maxLookups || this.#closing.signal.aborted) {
      lookup.failed(new Failure('overloaded', 'too many lookups are in progress', { source: 'ours' }))
      lookup.end()
    } else {
      this.#lookups.set(key, lookup)
      void this.#lookUp(key, root, lookup)
    }
    return lookup
  }

  /** The members of a cached lookup. Sends no request. */
  known(root: CID): readonly Member[] {
    const lookup = this.#lookups.peek(blockKey(root))
    return lookup && this.#isFresh(lookup) ? lookup.members : []
  }

  /** Every cached gateway, with the router that named it first. */
  found(): readonly { readonly member: Member; readonly router: string }[] {
    return [...this.#origins.values()]
  }

  /** `backoffMs`: what remains of the backoff after failures; 0 if the router may be asked. */
  routers() {
    return this.#routers.map(({ name, lookups, named, failures, lastFailure, backoff }) => {
      return { name, lookups, named, failures, lastFailure, backoffMs: Math.round(backoff.remainingMs) }
    })
  }

  async close(): Promise<void> {
    this.#closing.abort(cancelled('the gateway is closing'))
    this.#origins.clear()
    await Promise.all(this.#leaving)
  }

  #isFresh({ untilMs }: Lookup<Member>): boolean {
    return this.#options.clock.monotonic() < untilMs
  }

  async #lookUp(key: string, root: CID, lookup: Lookup<Member>): Promise<void> {
    const isReady = ({ backoff }: RouterState) => backoff.remainingMs === 0
    for (const { name, lastFailure = '' } of this.#routers.filter((router) => !isReady(router))) {
      lookup.attempts.push({ upstream: `router ${name}`, outcome: 'skipped-unhealthy', ms: 0 })
      lookup.failed(new Failure('unavailable', `${name} rests after a failure: ${lastFailure}`, { source: 'upstream' }))
    }
    this.#running++
    await Promise.all(this.#routers.filter(isReady).map((router) => this.#askFor(lookup, router, root)))
    this.#running--
    lookup.end()
    const { members, failure } = lookup
    // A failed lookup is not cached as an absence.
    if (members.length === 0 && failure?.kind !== 'not-found') this.#lookups.delete(key)
    else lookup.untilMs = this.#options.clock.monotonic() + (members.length > 0 ? foundMs : emptyMs)
  }

  async #askFor(lookup: Lookup<Member>, router: RouterState, root: CID): Promise<void> {
    const { clock, isKnown } = this.#options
    const began = clock.monotonic()
    const named: string[] = []
    let outcome = 'not-found'
    router.lookups++
    try {
      await this.#ask(router, root, ({ addresses }) => {
        const origin = originOf(addresses, router.rules)
        const member = origin === undefined || isKnown(origin) ? undefined : this.#memberAt(origin, router.name)
        if (origin && member && lookup.add(member)) named.push(new URL(origin).host)
        return lookup.members.length < maxMembers
      })
    } catch (error) {
      outcome = isFailure(error) ? error.kind : 'upstream-error'
      lookup.failed(error)
    }
    if (named.length > 0) router.named++
    lookup.attempts.push({
      upstream: `router ${router.name}`,
      outcome: named.length > 0 ? `named ${listed(named)}` : outcome,
      ms: Math.round(clock.monotonic() - began),
    })
  }

  /**
   * Passes the peers that a router names to `take`, until that returns false. Counts a failure, and
   * rejects with it.
   */
  async #ask(router: RouterState, root: CID, take: (peer: PeerRecord) => boolean): Promise<void> {
    const { clock, log } = this.#options
    const own = new AbortController()
    const stop = onceLate(clock, router.timeoutMs, () =>
      own.abort(new Failure('timeout', `${router.name} did not answer in time`, { source: 'upstream' })),
    )
    const signal = AbortSignal.any([own.signal, this.#closing.signal])
    try {
      const { contentType, chunks } = await router.providers(root, signal)
      for await (const peer of readPeers(contentType, chunks)) if (!take(peer)) break
      router.backoff.succeeded()
    } catch (error) {
      if (isFailure(error, 'not-found')) return router.backoff.succeeded()
      router.failures++
      router.lastFailure = wordsOf(error)
      router.backoff.failed(isFailure(error) ? error.retryAfterMs : undefined)
      log('debug', 'router.failed', { router: router.name, why: router.lastFailure })
      throw error
    } finally {
      stop()
      own.abort(cancelled('the lookup is over'))
    }
  }

  #memberAt(origin: string, router: string): Member | undefined {
    const known = this.#origins.get(origin)
    if (known) return known.member
    try {
      const member = this.#options.join(origin, router)
      this.#origins.set(origin, { member, router })
      return member
    } catch {
      return undefined
    }
  }
}

/** A lookup for a root. Members are added until it is over. */
class Lookup<Member> {
  readonly members: Member[] = []
  /** The outcome of each router. */
  readonly attempts: Attempt[] = []
  isOver = false
  /** Why it found no gateway: a router's failure, or `not-found`. Undefined until it is over. */
  failure: Failure | undefined
  untilMs = Number.POSITIVE_INFINITY
  readonly #listeners = new Set<() => void>()

  /** Calls `listener` for each new member and at the end. The returned function unsubscribes. */
  onNews(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** Returns false for a known member, and at the limit. */
  add(member: Member): boolean {
    if (this.members.includes(member) || this.members.length >= maxMembers) return false
    this.members.push(member)
    this.#tell()
    return true
  }

  failed(error: unknown): void {
    this.failure ??= isFailure(error) ? error : new Failure('upstream-error', wordsOf(error), { source: 'upstream' })
  }

  end(): void {
    this.isOver = true
    this.failure ??= new Failure('not-found', 'no router names a gateway that has it', { source: 'upstream' })
    this.#tell()
  }

  #tell(): void {
    for (const listener of [...this.#listeners]) listener()
  }
}

/** The origin of the first permitted address. */
function originOf(addresses: readonly string[], rules: AddressRules): string | undefined {
  for (const address of addresses) {
    const origin = gatewayAddress(address, rules)
    if (origin !== undefined) return origin
  }
  return undefined
}

function listed(names: readonly string[]): string {
  const more = names.length - maxNamesListed
  return `${names.slice(0, maxNamesListed).join(', ')}${more > 0 ? ` and ${more} more` : ''}`
}
