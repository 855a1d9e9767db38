// Confirms the uploads of a request before its 200: asks providers side by side until enough of them hold each upload, fills the
// tiers, and accepts all uploads in one commit. Before that commit none counts. After a failure, running requests are aborted
// and other providers of this machine unpin; what a remote one has pinned stays there.

import type { CID } from 'multiformats/cid'
import type { Provider, Upload } from '../../backends/pinning/contract.ts'
import { withDeadline } from '../core/clock.ts'
import { Failure, type Outcome } from '../core/failure.ts'
import { createInFlight } from '../core/in-flight.ts'
import type { QuotaUse, Standing } from '../store/store.ts'
import type { Received } from './ingest.ts'
import { type ProviderAttempt, type UploadContext, wantedNow } from './provider-requests.ts'
import { nameOf } from './stored-upload.ts'

type ConfirmOptions = UploadContext & {
  /** Providers that have to hold an upload before its client gets a 200. */
  readonly confirm: number | 'all'
  /** Accept an upload that too few providers hold if the failures may pass: keep it here and retry. */
  readonly queue: boolean
  /** Some holder is still to get an upload. */
  readonly wake: () => void
}

/**
 * Resolves when all of them are accepted. Rejects with a Failure (facts: `outcomes`) when one cannot be; then none is, except
 * what was here before. A file that another request is bringing at the same moment is confirmed once for both.
 */
type Confirm = (received: readonly Received[], quota?: readonly QuotaUse[]) => Promise<void>

/** An upload whose client waits. */
type Pending = Received & {
  readonly name: string
  /** By provider. */
  readonly attempts: Map<string, ProviderAttempt>
  readonly running: Promise<unknown>[]
  /** Aborts when its request fails: no provider is asked from then on. */
  readonly stop: AbortSignal
  /** Settles with the commit, or with its failure. */
  readonly outcome: PromiseWithResolvers<void>
  /** The attempts that the commit has. */
  committed: ReadonlySet<ProviderAttempt>
  /** Its own failure, not that of an upload of the same request. */
  failure: unknown
}

/** The upload failed only because another one of the same request did. */
class CompanionFailed extends Error {}

export function createConfirm(options: ConfirmOptions): Confirm {
  const { providers, own, store, registry, requests, retrieval, wake, clock, log, closing, track } = options
  const asked = providers.filter((one) => one !== own)
  const needed = options.confirm === 'all' ? providers.length : options.confirm
  const pending = new Map<string, Pending>()

  const isHeld = ({ attempts }: Pending, { name }: Provider): boolean => attempts.get(name)?.isHeld ?? false
  /** Holders if `more` further providers hold it. */
  const holders = (one: Pending, more = 0): number =>
    asked.filter((provider) => isHeld(one, provider)).length + (own ? 1 : 0) + more
  /** A provider has the bytes, so that one that fetches by CID can get them. */
  const hasBytes = (one: Pending): boolean =>
    own !== undefined || asked.some((provider) => provider.traits.takesBytes && isHeld(one, provider))
  const isConfirmed = (one: Pending): boolean => holders(one) >= needed && hasBytes(one)
  const failures = ({ attempts }: Pending) => [...attempts.values()].filter((one) => !one.isHeld)

  /** Every missing provider may still succeed, and every local one holds it. */
  function canBeQueued(one: Pending): boolean {
    const failed = failures(one)
    const never = failed.filter((attempt) => attempt.class === 'content').length
    const isHere = !failed.some(({ provider }) => asked.some(({ name, traits }) => name === provider && traits.local))
    return options.queue && isHere && providers.length - never >= needed
  }

  function begin(received: Received, stop: AbortSignal): Pending {
    const outcome = Promise.withResolvers<void>()
    outcome.promise.catch(() => {})
    const name = nameOf(received.upload.cid)
    const fresh = { attempts: new Map(), running: [], committed: new Set<ProviderAttempt>(), failure: undefined }
    const one: Pending = { ...received, ...fresh, name, stop, outcome }
    if (!pending.has(name)) pending.set(name, one)
    return one
  }

  /** Rejects when the request is aborted. An answer that the commit does not have goes to the ledger after it. */
  function request(one: Pending, provider: Provider): Promise<void> {
    const { name: holder, traits } = provider
    // It fetches from here what is not accepted yet.
    if (!traits.takesBytes) one.staged.offer()
    const request = registry.begin(one.name, holder)
    const signal = AbortSignal.any([closing, one.stop, request.signal])
    const answered = requests.pin(provider, one.upload, signal).then((attempt) => {
      one.attempts.set(holder, attempt)
      if (attempt.isHeld) return
      const { class: kind, why } = attempt
      log('warn', 'upload.provider-failed', { cid: one.name, provider: holder, class: kind, why })
    })
    const noted = async (): Promise<void> => {
      await answered
      await one.outcome.promise
      const attempt = one.attempts.get(holder) as ProviderAttempt
      if (one.committed.has(attempt) || (request.isSuperseded && !attempt.isHeld)) return
      await store.update(one.upload.cid, { [holder]: requests.standingAfter(attempt, 1) }).catch((error: unknown) => {
        // It is asked again, since the ledger still says that it lacks the upload.
        if (!closing.aborted) log('error', 'upload.holder-failed', { cid: one.name, error: String(error) })
      })
    }
    // Until the commit is heard of, the ledger may say already that this provider lacks the upload.
    const over = noted().finally(request.end)
    track(over).then(wake, () => {})
    one.running.push(answered.catch(() => {}))
    return answered
  }

  /** Asks providers until enough hold it, or enough cannot be reached any more. */
  async function ask(one: Pending): Promise<void> {
    const waiting = new Set(asked)
    const running = new Set<Promise<void>>()
    const start = (which: (provider: Provider) => boolean): Promise<void>[] => {
      one.stop.throwIfAborted()
      return [...waiting].filter(which).map((provider) => {
        waiting.delete(provider)
        const answered = request(one, provider)
        running.add(answered)
        const end = () => void running.delete(answered)
        answered.then(end, end)
        return answered
      })
    }
    const isLocal = ({ traits }: Provider): boolean => traits.local

    while (!isConfirmed(one)) {
      if (holders(one, running.size + waiting.size) < needed) break
      // A provider that fetches by CID is asked once another one has the bytes.
      void start(({ traits }) => !traits.local && (traits.takesBytes || hasBytes(one)))
      // A local one is asked once the remote ones have answered, so that a remote failure leaves nothing here.
      if (running.size === 0 || holders(one, [...waiting].filter(isLocal).length) >= needed) void start(isLocal)
      if (running.size === 0) break
      await Promise.race(running)
    }
    if (isConfirmed(one)) return
    if (!canBeQueued(one)) throw unconfirmed(one)
    await Promise.all(start(isLocal))
    if (!canBeQueued(one)) throw unconfirmed(one)
  }

  async function askOf(one: Pending): Promise<void> {
    try {
      await ask(one)
    } catch (error) {
      if (!one.stop.aborted) one.failure = error
      throw error
    }
  }

  function unconfirmed({ attempts }: Pending): Failure {
    const all = [...attempts.values()]
    const holding = all.filter((attempt) => attempt.isHeld).length
    const isFull = all.length > 0 && all.every((attempt) => !attempt.isHeld && attempt.isDiskFull)
    const waits = all.flatMap((attempt) => (attempt.isHeld ? [] : [attempt.retryAfterMs ?? 0]))
    const outcomes = providers.map(({ name: provider }): Outcome => {
      const attempt = attempts.get(provider)
      if (!attempt) return { provider, outcome: 'not waited for' }
      const { ms } = attempt
      if (attempt.isHeld) return { provider, outcome: 'pinned', ms }
      return { provider, outcome: attempt.class, detail: attempt.why, ms }
    })
    return new Failure(
      isFull ? 'disk-full' : 'upstream-error',
      `only ${holding} of ${needed} providers confirmed the upload, and this gateway keeps nothing of it; retry, or see the outcome of each provider`,
      {
        source: isFull ? 'ours' : 'provider',
        retryAfterMs: Math.max(0, ...waits) || undefined,
        facts: { outcomes },
      },
    )
  }

  /** Waits for the same file of another request. Where that fails for the sake of a third file, this one goes on by itself. */
  async function join(running: Pending, received: Received, ours: Pending[], stop: AbortSignal): Promise<void> {
    try {
      await running.outcome.promise
      const { staged, upload } = received
      // The name of the later request counts, as it would after the other one.
      if (upload.name !== undefined && upload.name !== running.upload.name)
        await store.accept([{ staged, name: upload.name, at: clock.now(), holders: {} }])
    } catch (error) {
      if (!(error instanceof CompanionFailed)) throw error
      // Nobody would end an upload that `fail` has not seen.
      stop.throwIfAborted()
      const again = begin(received, stop)
      ours.push(again)
      await askOf(again)
    }
  }

  /** Its holders, and the shared tiers that lack blocks of it. */
  async function holdersOf(one: Pending): Promise<Record<string, Standing>> {
    // The store of this gateway is read like a tier, so that another one on this machine need not have it too.
    const isRead = own !== undefined && retrieval.sharedTiers.length === 0
    const lacking = isRead ? [] : await fillTiers(one.upload, { retrieval, log, clock }, closing)
    one.committed = new Set(one.attempts.values())
    return {
      ...Object.fromEntries(asked.map(({ name }) => [name, wantedNow])),
      ...Object.fromEntries([...one.committed].map((one) => [one.provider, requests.standingAfter(one, 1)])),
      ...Object.fromEntries(lacking.map((tier) => [tier, { kind: 'tier', state: 'pending', tries: 0 }])),
      ...(own && { [own.name]: { kind: 'here', state: 'pinned', tries: 1 } }),
    }
  }

  async function accept(ours: readonly Pending[], quota: readonly QuotaUse[] | undefined): Promise<void> {
    const at = clock.now()
    const accepted = await Promise.all(
      ours.map(async (one) => {
        const { name } = one.upload
        return { staged: one.staged, at, ...(name !== undefined && { name }), holders: await holdersOf(one) }
      }),
    )
    const commit = () => store.accept(accepted, quota)
    if (own && ours.length > 0) {
      const uploads = ours.map(({ upload }) => upload)
      const attempt = await requests.attempt(own, uploads, commit)
      if (!attempt.isHeld) {
        for (const one of ours) one.failure = attempt.error
        throw attempt.error
      }
    } else await commit()
    for (const { staged, outcome } of ours) {
      // From the commit on it is found, and before the response, no absence of it is remembered.
      for (const cid of staged.cids) retrieval.forget(cid)
      outcome.resolve()
    }
    const isPending = ({ state }: Standing) => state === 'pending'
    if (accepted.some((one) => Object.values(one.holders).some(isPending))) wake()
  }

  /** Unpins at local providers what the ledger does not say that they hold. */
  async function release(one: Pending): Promise<void> {
    const locals = asked.filter((provider) => provider.traits.local && isHeld(one, provider))
    if (locals.length === 0) return
    const entry = await store.ledger.find(one.upload.cid)
    for (const provider of locals)
      if (entry?.holders[provider.name]?.state !== 'pinned') await requests.unpin(provider, one.upload.cid)
  }

  /** After their `stop`. */
  async function fail(ours: readonly Pending[], error: unknown): Promise<void> {
    for (const one of ours) {
      await Promise.all(one.running)
      await release(one).catch((cause: unknown) => {
        log('error', 'upload.release-failed', { cid: one.name, error: String(cause) })
      })
      const cause = closing.aborted ? closing.reason : one.failure
      one.outcome.reject(cause ?? new CompanionFailed('one that it came with cannot be confirmed', { cause: error }))
    }
  }

  async function confirmAll(received: readonly Received[], quota: readonly QuotaUse[] | undefined): Promise<void> {
    const different = new Map(received.map((one) => [nameOf(one.upload.cid), one]))
    const ours: Pending[] = []
    const stop = new AbortController()
    const leave = await Promise.all([...different.keys()].map(registry.share))
    try {
      closing.throwIfAborted()
      // In one go, so that of two requests with the same files one waits for the other, and never both.
      const joined: (() => Promise<void>)[] = []
      for (const [name, one] of different) {
        const running = pending.get(name)
        if (running) joined.push(() => join(running, one, ours, stop.signal))
        else ours.push(begin(one, stop.signal))
      }
      const work = [...ours.map(askOf), ...joined.map((one) => one())]
      try {
        await Promise.all(work)
        closing.throwIfAborted()
        if (ours.length > 0 || quota) await accept(ours, quota)
      } catch (error) {
        stop.abort(new Failure('cancelled', 'the upload cannot be confirmed', { source: 'ours' }))
        await fail(ours, error)
        await Promise.allSettled(work)
        throw closing.aborted ? closing.reason : error
      }
    } finally {
      for (const one of ours) if (pending.get(one.name) === one) pending.delete(one.name)
      for (const one of leave) one()
    }
  }

  return (received, quota) => track(confirmAll(received, quota))
}

// Read your write: puts the blocks of an upload into the local and the shared tiers before its 200. The gateway does not wait
// for a shared tier that does not take them; it records that the tier lacks them.

const storesAtOnce = 4
const minMs = 3000
const slowestBytes = 4 * 1024 * 1024

/** Resolves with the shared tiers that lack some of it. Does not reject. */
export async function fillTiers(
  upload: Upload,
  { retrieval, clock, log }: Pick<UploadContext, 'retrieval' | 'clock' | 'log'>,
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
