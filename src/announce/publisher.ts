// Publishes the chain in batches, announces its head to the indexers, and asks them whether they
// took it. One announcement serves any number of advertisements: an indexer that missed some
// fetches them with the next head.
import type { CID } from 'multiformats/cid'
import { type Backoff, type Clock, createBackoff } from '../core/clock.ts'
import { cancelled, isFailure, wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { encodeAnnouncement, type Identity, multiaddrBytes } from './advertisement.ts'
import type { Chain } from './chain.ts'

/** An indexer over HTTP. Each call rejects with a Failure. */
export interface IndexerClient {
  readonly name: string
  announce(body: Uint8Array, signal: AbortSignal): Promise<void>
  /** Its record of this peer; undefined if it has none. */
  provider(peerId: string, signal: AbortSignal): Promise<IndexedProvider | undefined>
  close(): Promise<void>
}

type IndexedProvider = { readonly last: string | undefined; readonly error: string | undefined }

export type Publisher = ReturnType<typeof createPublisher>

type PublisherOptions = {
  readonly chain: Chain
  readonly identity: Identity
  /** Multiaddrs that serve the chain. */
  readonly addresses: readonly string[]
  readonly indexers: readonly IndexerClient[]
  readonly everyMs: number
  readonly clock: Clock
  readonly log: Log
}

const dayMs = 86_400_000
const callMs = 15_000
const firstRetryMs = 5_000
const maxRetryMs = 3_600_000
/** An indexer needs a moment to fetch the chain, and a CDN caches its answers for minutes. */
const firstConfirmMs = 2_000
/** An unconfirmed head is announced again once the backoff of confirmations is this long. */
const repeatMs = 30_000

type IndexerProgress = {
  announced?: string
  announcedAt?: number
  confirmed?: string
  confirmedAt?: number
  readonly announcing: Backoff
  readonly confirming: Backoff
  /** When the same head is announced again. */
  repeatAt: number
  since: number
  lastError?: string | undefined
}

export function createPublisher(options: PublisherOptions) {
  const { chain, identity, addresses, indexers, everyMs, clock, log } = options
  const { peerId } = identity
  const closing = new AbortController()
  const progress = new Map<IndexerClient, IndexerProgress>(
    indexers.map((one) => {
      const announcing = createBackoff({ clock, firstMs: firstRetryMs, maxMs: maxRetryMs })
      const confirming = createBackoff({ clock, firstMs: firstConfirmMs, maxMs: maxRetryMs })
      return [one, { announcing, confirming, repeatAt: 0, since: 0 }]
    }),
  )
  // An indexer ignores an announcement whose address does not end with the peer ID.
  const places = addresses.slice(0, 1).map((address) => multiaddrBytes(`${address}/p2p/${peerId}`))
  let head: CID | undefined
  let counts = { advertisements: 0, contexts: 0, roots: 0 }
  let lastError: string | undefined
  let recheckedAt = clock.monotonic()
  let publishedAt = Number.NEGATIVE_INFINITY
  let running: Promise<void> | undefined
  let stopTimer = () => {}

  async function publish(): Promise<void> {
    publishedAt = clock.monotonic()
    if (publishedAt - recheckedAt > dayMs) recheckDenylists()
    try {
      const next = await chain.publish()
      if (next && !head?.equals(next)) log('info', 'announce.published', { head: next.toString() })
      head = next
      counts = await chain.counts()
      lastError = undefined
    } catch (error) {
      if (closing.signal.aborted) return
      lastError = wordsOf(error)
      log('error', 'announce.publish-failed', { why: lastError })
    }
  }

  /** Checks every announced pin against the denylists, with the next batch. */
  function recheckDenylists(): void {
    recheckedAt = clock.monotonic()
    chain.recheckDenylists()
  }

  const signal = () => AbortSignal.any([closing.signal, AbortSignal.timeout(callMs)])

  async function announceTo(indexer: IndexerClient, state: IndexerProgress): Promise<void> {
    const now = clock.monotonic()
    const text = head?.toString()
    if (text === undefined || !head) return
    const isNew = state.announced !== text
    if (isNew && state.confirmed !== text && state.since === 0) state.since = now
    if ((isNew || now >= state.repeatAt) && state.announcing.remainingMs === 0) {
      try {
        await indexer.announce(encodeAnnouncement(head, places), signal())
        Object.assign(state, { announced: text, announcedAt: clock.now() })
        if (isNew || state.confirmed === text) state.lastError = undefined
        state.repeatAt = clock.monotonic() + dayMs
        state.announcing.succeeded()
        if (isNew) state.confirming.succeeded()
        // The backoff is the delay until the indexer is asked whether it has the announcement.
        state.confirming.failed()
        log('info', 'announce.announced', { indexer: indexer.name, head: text })
      } catch (error) {
        if (closing.signal.aborted) return
        failed(indexer, state, error)
        state.announcing.failed(isFailure(error) ? error.retryAfterMs : undefined)
      }
    }
    if (state.announced === text && state.confirmed !== text && state.confirming.remainingMs === 0)
      await confirm(indexer, state)
  }

  async function confirm(indexer: IndexerClient, state: IndexerProgress): Promise<void> {
    try {
      const known = await indexer.provider(peerId, signal())
      if (known?.last === head?.toString() && known?.last !== undefined) {
        Object.assign(state, { confirmed: known.last, confirmedAt: clock.now(), since: 0, lastError: undefined })
        log('info', 'announce.confirmed', { indexer: indexer.name, head: known.last })
        return
      }
      if (known?.error) state.lastError = known.error
    } catch (error) {
      if (closing.signal.aborted) return
      failed(indexer, state, error)
    }
    state.confirming.failed()
    // An indexer that failed to fetch the chain does not retry by itself.
    if (state.confirming.remainingMs >= repeatMs) state.repeatAt = clock.monotonic()
  }

  function failed({ name }: IndexerClient, state: IndexerProgress, error: unknown): void {
    state.lastError = wordsOf(error)
    log('warn', 'announce.indexer-failed', { indexer: name, why: state.lastError })
  }

  async function publishOnce(isNow: boolean): Promise<void> {
    if (isNow || clock.monotonic() - publishedAt >= everyMs) await publish()
    await Promise.all([...progress].map(([indexer, state]) => announceTo(indexer, state)))
  }

  /** Runs never overlap: two batches with the same predecessor would fork the chain. */
  function run(isNow = false): Promise<void> {
    stopTimer()
    const before = running ?? Promise.resolve()
    const work = before
      .then(() => (closing.signal.aborted ? undefined : publishOnce(isNow)))
      .catch((error: unknown) => log('error', 'announce.error', { error: wordsOf(error) }))
      .finally(() => {
        if (running !== work) return
        running = undefined
        if (!closing.signal.aborted) stopTimer = clock.after(nextMs(), () => void run())
      })
    running = work
    return work
  }

  function nextMs(): number {
    const now = clock.monotonic()
    const text = head?.toString()
    const waits = [...progress.values()].flatMap(({ announced, confirmed, announcing, confirming, repeatAt }) => {
      if (text === undefined) return []
      const announceMs = Math.max(announced === text ? repeatAt - now : 0, announcing.remainingMs)
      return announced === text && confirmed !== text ? [confirming.remainingMs, announceMs] : [announceMs]
    })
    return Math.max(100, Math.min(publishedAt + everyMs - now, ...waits))
  }

  void run()

  return {
    state: () => ({
      peerId,
      head: head?.toString(),
      ...counts,
      lastError,
      indexers: [...progress].map(([{ name }, state]) => ({
        name,
        announced: state.announced,
        announcedAt: state.announcedAt,
        confirmed: state.confirmed,
        confirmedAt: state.confirmedAt,
        /** Time since the first head that it has not confirmed; 0 if it confirmed the newest. */
        lagMs: state.since === 0 ? 0 : Math.round(clock.monotonic() - state.since),
        lastError: state.lastError,
      })),
    }),
    recheckDenylists,
    /** Publishes and announces at once. */
    now: () => run(true),
    async close(): Promise<void> {
      closing.abort(cancelled('the gateway is closing'))
      stopTimer()
      await running
      await Promise.all(indexers.map((one) => one.close()))
    },
  }
}
