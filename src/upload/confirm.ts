// Confirms the uploads of a request before its 200: asks providers side by side until enough hold each of them, fills the tiers,
// and accepts all of them in one commit. Before that commit no upload counts. After a failure, open questions are stopped and
// other providers of this machine unpin; what a remote one has pinned stays there.

import type { CID } from 'multiformats/cid'
import type { Provider, Upload } from '../../backends/pinning/contract.ts'
import { type Clock, withDeadline } from '../core/clock.ts'
import { Failure, isFailure, type Outcome } from '../core/failure.ts'
import { createInFlight } from '../core/in-flight.ts'
import type { Log } from '../core/log.ts'
import type { Trace } from '../core/wire/trace.ts'
import type { Retrieval } from '../retrieval/session.ts'
import type { QuotaUse, Standing, Store } from '../store/store.ts'
import {
  type Asks,
  type ProviderAttempt,
  type SharedUploads,
  type StandingAfter,
  wantedNow,
} from './provider-requests.ts'
import { nameOf } from './stored-upload.ts'
import type { Received } from './taking.ts'

type ConfirmOptions = {
  readonly quorum: Quorum
  /** The provider that keeps uploads in the store of this gateway. */
  readonly own: Provider | undefined
  readonly store: Pick<Store, 'accept' | 'update' | 'ledger'>
  readonly shared: SharedUploads
  readonly asks: Asks
  readonly standingAfter: StandingAfter
  readonly retrieval: UploadFanout
  /** Some holder is still to get an upload. */
  readonly wake: () => void
  /** Called with the answer of the own provider, which is the commit. */
  readonly onAttempt?: ((attempt: ProviderAttempt) => void) | undefined
  readonly trace?: Trace | undefined
  readonly clock: Clock
  readonly log: Log
  readonly closing: AbortSignal
  /** Registers work that goes on after the answer; `close` awaits it. */
  readonly track: <T>(work: Promise<T>) => Promise<T>
}

/**
 * Resolves when all of them are accepted. Rejects with a Failure (facts: `outcomes`) when one cannot be; then none is, except
 * what was here before. A file that another request is bringing at the same moment is confirmed once for both.
 */
type Confirm = (received: readonly Received[], quota?: readonly QuotaUse[]) => Promise<void>

/** An upload whose client waits. */
type Asking = Received & {
  readonly name: string
  readonly attempts: ProviderAttempt[]
  readonly held: Set<string>
  readonly holders: Map<string, Standing>
  readonly stop: AbortController
  readonly questions: Set<Promise<unknown>>
  readonly outcome: PromiseWithResolvers<void>
  isAccepted: boolean
  /** Its own failure, not that of one that came with it. */
  failure: unknown
}

/** The upload failed only because another one of the same request did. */
class CompanionFailed extends Error {}

export function createConfirm(options: ConfirmOptions): Confirm {
  const { quorum, own: here, store, shared, asks, standingAfter, retrieval, wake, clock, log, closing, track } = options
  const askings = new Map<string, Asking>()

  function begin(received: Received): Asking {
    const outcome = Promise.withResolvers<void>()
    outcome.promise.catch(() => {})
    const name = nameOf(received.upload.cid)
    const fresh = { attempts: [], held: new Set<string>(), stop: new AbortController(), questions: new Set<never>() }
    const holders = new Map<string, Standing>(quorum.asked.map((one) => [one.name, wantedNow]))
    if (here) holders.set(here.name, { kind: 'here', state: 'pinned', tries: 1 })
    const asking = { ...received, ...fresh, name, holders, outcome, isAccepted: false, failure: undefined }
    if (!askings.has(name)) askings.set(name, asking)
    return asking
  }

  /** An answer after the 200 goes to the ledger. */
  function note(asking: Asking, attempt: ProviderAttempt): void {
    const { provider: holder } = attempt
    asking.attempts.push(attempt)
    if (attempt.isHeld) asking.held.add(holder)
    else {
      const { class: kind, why } = attempt
      log('warn', 'upload.provider-failed', { cid: asking.name, provider: holder, class: kind, why })
    }
    const standing = standingAfter(attempt, 1)
    asking.holders.set(holder, standing)
    if (asking.isAccepted) writeLate(asking, holder, standing)
  }

  function writeLate({ name, stop, upload }: Asking, holder: string, standing: Standing): void {
    const done = store.update(upload.cid, { [holder]: standing }).catch((error: unknown) => {
      // It is asked again, since the ledger still says that it lacks the upload.
      if (!closing.aborted) log('error', 'upload.holder-failed', { cid: name, error: String(error) })
    })
    shared.asking(name, holder, { stop, done })
    void track(done.then(wake))
  }

  /** Asks providers until enough hold it, or enough cannot be reached any more. */
  async function ask(asking: Asking): Promise<void> {
    const { held, attempts, stop, questions } = asking
    if (quorum.isEnough(held)) return
    const waiting = new Set(quorum.asked)
    const { promise: over, resolve: end, reject: fail } = Promise.withResolvers<void>()
    let under = 0

    // A local provider is asked once the remote ones have answered, so that a remote failure leaves nothing here. One that
    // fetches by CID is asked once another one has the bytes.
    const mayAsk = ({ traits }: Provider): boolean => {
      if (!traits.local) return traits.takesBytes || quorum.hasBytes(held)
      const locals = [...waiting].filter((one) => one.traits.local).length
      const isUpToUs = under === 0 && [...waiting].every((one) => one.traits.local || !one.traits.takesBytes)
      return quorum.canBeEnough(held, isUpToUs ? waiting.size : locals)
    }
    const start = (which: (provider: Provider) => boolean): Promise<void>[] =>
      [...waiting].filter(which).map((provider) => {
        waiting.delete(provider)
        under++
        // It fetches from here what is not accepted yet.
        if (!provider.traits.takesBytes) asking.staged.offer()
        const signal = AbortSignal.any([closing, stop.signal])
        const work = asks.ask(provider, asking.upload, signal).then((attempt) => {
          under--
          note(asking, attempt)
          check()
        })
        // Until the commit is heard of, the ledger may say already that this provider lacks the upload.
        shared.asking(asking.name, provider.name, { stop, done: work.then(() => asking.outcome.promise) })
        work.catch(fail)
        const question = track(work.catch(() => {})).finally(() => questions.delete(question))
        questions.add(question)
        return work
      })
    const check = (): void => {
      if (quorum.isEnough(held)) return end()
      void start(mayAsk)
      if (under === 0 || !quorum.canBeEnough(held, under + waiting.size)) end()
    }
    check()
    await over
    if (quorum.isEnough(held)) return
    if (!quorum.canQueue(attempts)) throw quorum.unconfirmed(attempts)
    await Promise.all(start(({ traits }) => traits.local))
    if (!quorum.canQueue(attempts)) throw quorum.unconfirmed(attempts)
  }

  async function askOf(asking: Asking): Promise<void> {
    try {
      await ask(asking)
    } catch (error) {
      asking.failure = error
      throw error
    }
  }

  /** Waits for the same file of another request. Where that fails for the sake of a third file, this one goes on by itself. */
  async function join(running: Asking, received: Received, own: Asking[]): Promise<void> {
    try {
      await running.outcome.promise
      const { staged, upload } = received
      // The name of the later request counts, as it would behind the other one.
      if (upload.name !== undefined && upload.name !== running.upload.name)
        await store.accept([{ staged, name: upload.name, at: clock.now(), holders: {} }])
    } catch (error) {
      if (!(error instanceof CompanionFailed)) throw error
      const again = begin(received)
      own.push(again)
      await askOf(again)
    }
  }

  /** The store of this gateway is read like a tier, so that another one on this machine need not have it too. */
  const isRead = (): boolean => here !== undefined && retrieval.sharedTiers.length === 0

  async function fill({ upload, holders }: Asking): Promise<void> {
    const lacking = await fillTiers(upload, { retrieval, log, clock }, closing)
    for (const tier of lacking) holders.set(tier, { kind: 'tier', state: 'pending', tries: 0 })
  }

  async function accept(own: readonly Asking[], quota: readonly QuotaUse[] | undefined): Promise<void> {
    const at = clock.now()
    const written = own.map(({ holders }) => new Map(holders))
    const uploads = own.map(({ staged, upload: { name } }, index) => ({
      ...{ staged, at, ...(name !== undefined && { name }) },
      holders: Object.fromEntries(written[index] ?? []),
    }))
    const began = clock.monotonic()
    const span = here && options.trace?.ask('provider pin')
    const note = (failure: { readonly isHeld: true } | ReturnType<typeof failedWith>): void => {
      if (!here) return
      const attempt = { provider: here.name, ms: Math.round(clock.monotonic() - began), ...failure }
      for (const _ of own) options.onAttempt?.(attempt)
      const outcome = attempt.isHeld ? 'pinned' : attempt.class
      const bytes = own.reduce((sum, { staged }) => sum + staged.carBytes, 0)
      const facts = { 'cidgate.provider': here.name, 'cidgate.bytes': bytes, 'cidgate.outcome': outcome }
      span?.end(facts, !attempt.isHeld)
    }
    const commit = () => store.accept(uploads, quota)
    try {
      await (span ? span.run(commit) : commit())
    } catch (error) {
      for (const asking of own) asking.failure = error
      note(failedWith(error))
      throw error
    }
    note({ isHeld: true })
    let isWanted = false
    for (const [index, asking] of own.entries()) {
      asking.isAccepted = true
      // From the commit on it is found, and before its client is told, no absence of it is remembered.
      for (const cid of asking.staged.cids) retrieval.forget(cid)
      asking.outcome.resolve()
      // An answer may have come during the commit.
      for (const [holder, standing] of asking.holders)
        if (written[index]?.get(holder) !== standing) writeLate(asking, holder, standing)
      isWanted ||= [...asking.holders.values()].some(({ state }) => state === 'pending')
    }
    if (isWanted) wake()
  }

  /** Another folder on this machine may hold it already, and is no home for what no ledger names. */
  async function letGo({ upload, held }: Asking): Promise<void> {
    const locals = quorum.asked.filter(({ name, traits }) => traits.local && held.has(name))
    if (locals.length === 0) return
    const entry = await store.ledger.find(upload.cid)
    for (const { name, unpin } of locals)
      if (entry?.holders[name]?.state !== 'pinned') await unpin(upload.cid, AbortSignal.timeout(unpinMs))
  }

  async function fail(own: readonly Asking[], error: unknown): Promise<void> {
    const why = new Failure('cancelled', 'the upload cannot be confirmed', { source: 'ours' })
    for (const { stop } of own) stop.abort(why)
    for (const asking of own) {
      await Promise.all(asking.questions)
      await letGo(asking).catch((cause: unknown) => {
        log('error', 'upload.release-failed', { cid: asking.name, error: String(cause) })
      })
      const cause = closing.aborted ? closing.reason : asking.failure
      asking.outcome.reject(cause ?? new CompanionFailed('one that it came with cannot be confirmed', { cause: error }))
    }
  }

  async function confirmAll(received: readonly Received[], quota: readonly QuotaUse[] | undefined): Promise<void> {
    const different = new Map(received.map((one) => [nameOf(one.upload.cid), one]))
    const own: Asking[] = []
    const leave = await Promise.all([...different.keys()].map(shared.share))
    try {
      closing.throwIfAborted()
      // In one go, so that of two requests with the same files one waits for the other, and never both.
      const work: Promise<void>[] = []
      const joined: (() => Promise<void>)[] = []
      for (const [name, one] of different) {
        const running = askings.get(name)
        if (running) joined.push(() => join(running, one, own))
        else own.push(begin(one))
      }
      work.push(...own.map(askOf), ...joined.map((one) => one()))
      try {
        await Promise.all(work)
        closing.throwIfAborted()
        if (!isRead()) await Promise.all(own.map(fill))
        if (own.length > 0 || quota) await accept(own, quota)
      } catch (error) {
        await fail(own, error)
        await Promise.allSettled(work)
        throw closing.aborted ? closing.reason : error
      }
    } finally {
      for (const one of own) if (askings.get(one.name) === one) askings.delete(one.name)
      for (const one of leave) one()
    }
  }

  return (received, quota) => track(confirmAll(received, quota))
}

const unpinMs = 10_000

function failedWith(error: unknown) {
  const isDiskFull = isFailure(error, 'disk-full')
  const why = error instanceof Error ? error.message : String(error)
  return { isHeld: false, class: isDiskFull ? 'quota' : 'transient', why, retryAfterMs: undefined, isDiskFull } as const
}

// The quorum: how many providers have to hold an upload before its client gets a 200. The store of this gateway holds what is
// accepted, so its own provider counts without being asked.

type QuorumOptions = {
  readonly providers: readonly Provider[]
  /** The provider that keeps uploads in the store of this gateway. */
  readonly own: Provider | undefined
  readonly confirm: number | 'all'
  /** Accept an upload that too few providers hold if the failures may pass: keep it here and retry. */
  readonly queue: boolean
}

interface Quorum {
  /** Providers that are asked: all but the own one. */
  readonly asked: readonly Provider[]
  /** True if a provider has the bytes, so that one that fetches by CID can get them. */
  hasBytes(held: ReadonlySet<string>): boolean
  isEnough(held: ReadonlySet<string>): boolean
  /** True if `more` further holders would be enough. */
  canBeEnough(held: ReadonlySet<string>, more: number): boolean
  /** True if every missing provider may still succeed and every local provider holds it. */
  canQueue(attempts: readonly ProviderAttempt[]): boolean
  unconfirmed(attempts: readonly ProviderAttempt[]): Failure
}

export function createQuorum({ providers, own, confirm, queue }: QuorumOptions): Quorum {
  const needed = confirm === 'all' ? providers.length : confirm
  const asked = providers.filter((one) => one !== own)
  const locals = new Set(asked.filter(({ traits }) => traits.local).map(({ name }) => name))
  const takers = asked.filter(({ traits }) => traits.takesBytes).map(({ name }) => name)
  const ours = own ? 1 : 0

  const hasBytes = (held: ReadonlySet<string>): boolean => ours > 0 || takers.some((name) => held.has(name))
  const canBeEnough = (held: ReadonlySet<string>, more: number): boolean => held.size + ours + more >= needed

  return {
    asked,
    hasBytes,
    canBeEnough,
    isEnough: (held) => canBeEnough(held, 0) && hasBytes(held),
    canQueue(attempts) {
      if (!queue) return false
      const failed = attempts.filter((attempt) => !attempt.isHeld)
      const never = failed.filter((attempt) => attempt.class === 'content').length
      const isHere = !failed.some(({ provider }) => locals.has(provider))
      return isHere && providers.length - never >= needed
    },
    unconfirmed(attempts) {
      const holding = attempts.filter(({ isHeld }) => isHeld).length
      const isFull = attempts.length > 0 && attempts.every((attempt) => !attempt.isHeld && attempt.isDiskFull)
      const waits = attempts.flatMap((attempt) => (attempt.isHeld ? [] : [attempt.retryAfterMs ?? 0]))
      return new Failure(
        isFull ? 'disk-full' : 'upstream-error',
        `only ${holding} of ${needed} providers confirmed the upload, and nothing of it was kept; retry, or see the outcome of each provider`,
        {
          source: isFull ? 'ours' : 'provider',
          retryAfterMs: Math.max(0, ...waits) || undefined,
          facts: { outcomes: outcomes(providers, attempts) },
        },
      )
    },
  }
}

function outcomes(providers: readonly Provider[], attempts: readonly ProviderAttempt[]): Outcome[] {
  const asked = new Map(attempts.map((attempt) => [attempt.provider, attempt]))
  return providers.map(({ name }) => {
    const attempt = asked.get(name)
    if (!attempt) return { provider: name, outcome: 'not waited for' }
    const { isHeld, ms } = attempt
    return isHeld
      ? { provider: name, outcome: 'pinned', ms }
      : { provider: name, outcome: attempt.class, detail: attempt.why, ms }
  })
}

// Read your write: puts the blocks of an upload into the local and the shared tiers before its 200. The gateway does not wait
// for a shared tier that does not take them; it notes the blocks as owed to that tier.

export type UploadFanout = Pick<Retrieval, 'store' | 'forget' | 'sharedTiers' | 'bring'> & {
  /** Rises when new tiers come, which lack the blocks stored before. */
  readonly joined?: number
}

type FillOptions = {
  readonly retrieval: UploadFanout
  readonly clock: Clock
  readonly log: Log
}

const storesAtOnce = 4
const minMs = 3000
const slowestBytes = 4 * 1024 * 1024

/** Resolves with the shared tiers that lack some of it. Does not reject. */
export async function fillTiers(
  upload: Upload,
  { retrieval, clock, log }: FillOptions,
  signal: AbortSignal,
): Promise<readonly string[]> {
  const ms = minMs + Math.ceil((upload.bytes / slowestBytes) * 1000)
  const late = () => new Failure('timeout', `the tiers did not take it within ${ms} ms`, { source: 'tier' })
  const lacking = new Set<string>()
  const store = async (cid: CID, bytes: Uint8Array, own: AbortSignal): Promise<void> => {
    for (const tier of await retrieval.store(cid, bytes, own)) lacking.add(tier)
  }
  try {
    await withDeadline({ ms, clock, signal, late }, async (own) => {
      // A gateway that takes over during the upload brings tiers that lack the blocks stored so far.
      for (let known: number | undefined = -1; known !== retrieval.joined; ) {
        known = retrieval.joined
        await putBlocks((one) => upload.blocks(one), store, own)
      }
    })
  } catch (error) {
    if (!signal.aborted) log('warn', 'upload.tier-write-failed', { cid: upload.cid.toString(), why: String(error) })
    for (const tier of retrieval.sharedTiers) lacking.add(tier)
  }
  if (lacking.size > 0 && !signal.aborted)
    log('warn', 'upload.replication-pending', { cid: upload.cid.toString(), tiers: [...lacking] })
  return [...lacking]
}

/** Puts a few blocks at once, in order. Rejects with the first failure, once all begun puts have settled. */
export async function putBlocks(
  blocks: Upload['blocks'],
  put: (cid: CID, bytes: Uint8Array, signal: AbortSignal) => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  const putting = createInFlight(storesAtOnce)
  try {
    for await (const { cid, bytes } of blocks(signal)) await putting.add(put(cid, bytes, signal))
  } finally {
    await putting.end()
  }
}
