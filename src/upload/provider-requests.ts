// Requests to providers: the one place that asks them to pin, to unpin, and for the state of a pin. Every request has a deadline,
// and a few pins run at once for each provider. A failed pin is a result; its class decides when the provider is asked again.
import type { CID } from 'multiformats/cid'
import type { PinState, Provider, Upload } from '../../backends/pinning/contract.ts'
import { type Clock, withDeadline } from '../core/clock.ts'
import { Failure, isFailure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { createSemaphore, type Semaphore } from '../core/semaphore.ts'
import type { Trace } from '../core/wire/trace.ts'
import type { Retrieval } from '../retrieval/retrieval.ts'
import type { FailureClass, Standing, Store } from '../store/store.ts'
import { nameOf } from './stored-upload.ts'

type RequestsOptions = {
  readonly clock: Clock
  readonly random: () => number
  /** Deadline of one pin; larger uploads get more. */
  readonly pinMs: number
  /** Throws a Failure for a CID that must not be kept now: an upload may be denied while it is due. */
  readonly admit: (cid: CID) => void
  /** Called with the outcome of each pin. */
  readonly onAttempt?: ((attempt: ProviderAttempt) => void) | undefined
  readonly trace?: Trace | undefined
}

export type ProviderAttempt = { readonly provider: string; readonly ms: number } & (
  | { readonly isHeld: true }
  | {
      readonly isHeld: false
      readonly class: FailureClass
      readonly why: string
      readonly retryAfterMs: number | undefined
      readonly isDiskFull: boolean
      readonly error: unknown
    }
)

interface ProviderRequests {
  /** A provider that returns another CID than ours has failed. Rejects only when `signal` aborts. */
  pin(provider: Provider, upload: Upload, signal: AbortSignal): Promise<ProviderAttempt>
  /** The same for a provider that pins these uploads by `work`. */
  attempt(
    provider: Provider,
    uploads: readonly Upload[],
    work: () => Promise<unknown>,
    signal?: AbortSignal,
  ): Promise<ProviderAttempt>
  unpin(provider: Provider, cid: CID, signal?: AbortSignal): Promise<void>
  status(provider: Provider, cid: CID, signal: AbortSignal): Promise<PinState>
  /** The state of the provider after this try, with the time of the next one. */
  standingAfter(attempt: ProviderAttempt, tries: number): Standing
}

/** Pins at one provider. */
export const maxPins = 16
const statusMs = 30_000
/** Bytes a second of the slowest provider that a deadline allows for. */
const minRate = 256 * 1024

export function createProviderRequests(options: RequestsOptions): ProviderRequests {
  const { clock, random, pinMs, admit, onAttempt, trace } = options
  const gates = new Map<string, Semaphore>()

  /** Its queue needs no bound: uploads in it are bounded by admission, the others are rows of the ledger. */
  function gateOf(name: string): Semaphore {
    const full = () => new Failure('overloaded', `provider ${name} is asked too much at once`, { source: 'ours' })
    const gate = gates.get(name) ?? createSemaphore({ max: maxPins, maxQueued: Number.POSITIVE_INFINITY, full })
    gates.set(name, gate)
    return gate
  }

  function within<T>(
    provider: Provider,
    ms: number,
    signal: AbortSignal | undefined,
    work: (own: AbortSignal) => Promise<T>,
  ): Promise<T> {
    const late = () =>
      new Failure('timeout', `provider ${provider.name}: no answer within ${ms} ms`, {
        source: 'provider',
        facts: { class: 'transient' },
      })
    return withDeadline({ ms, clock, signal, late }, work)
  }

  async function pinNow(provider: Provider, upload: Upload, signal: AbortSignal): Promise<void> {
    admit(upload.cid)
    const ms = pinMs + Math.ceil((upload.carBytes / minRate) * 1000)
    const cid = await within(provider, ms, signal, (own) => provider.pin(upload, own))
    if (nameOf(cid) === nameOf(upload.cid)) return
    const why = `provider ${provider.name}: answered with the wrong CID ${cid}; the upload is ${upload.cid}`
    throw new Failure('hash-mismatch', why, { source: 'provider', facts: { class: 'content' } })
  }

  const attempt: ProviderRequests['attempt'] = async (provider, uploads, work, signal) => {
    const span = trace?.ask('provider pin')
    const began = clock.monotonic()
    let failed: ReturnType<typeof failedWith> | undefined
    try {
      await (span ? span.run(work) : work())
    } catch (error) {
      failed = failedWith(error, provider)
    }
    const isCancelled = failed !== undefined && signal?.aborted === true
    if (span) {
      const [{ cid }, ...more] = uploads as [Upload, ...Upload[]]
      const facts = {
        'cidgate.provider': provider.name,
        'cidgate.bytes': uploads.reduce((sum, { carBytes }) => sum + carBytes, 0),
        'cidgate.outcome': isCancelled ? 'cancelled' : (failed?.class ?? 'pinned'),
        ...(more.length === 0 && { 'cidgate.cid': cid.toString() }),
      }
      span.end(facts, failed !== undefined && !isCancelled)
    }
    if (isCancelled) throw signal?.reason
    const ms = Math.round(clock.monotonic() - began)
    const done: ProviderAttempt = { provider: provider.name, ms, ...(failed ?? { isHeld: true }) }
    for (const _ of uploads) onAttempt?.(done)
    return done
  }

  return {
    attempt,
    pin: (provider, upload, signal) =>
      gateOf(provider.name).run(
        () => attempt(provider, [upload], () => pinNow(provider, upload, signal), signal),
        signal,
      ),
    unpin: (provider, cid, signal) => within(provider, statusMs, signal, (own) => provider.unpin(cid, own)),
    status: (provider, cid, signal) => within(provider, statusMs, signal, (own) => provider.status(cid, own)),
    standingAfter(done, tries) {
      if (done.isHeld) return { kind: 'provider', state: 'pinned', tries }
      const { class: kind, why, retryAfterMs = 0 } = done
      const { min, max } = backoff[kind]
      const ms = Math.min(max, min * 2 ** Math.min(20, tries - 1)) * (0.8 + 0.4 * random())
      const waitMs = Math.round(Math.max(ms, retryAfterMs * (1 + 0.1 * random())))
      return { kind: 'provider', state: 'pending', tries, notBefore: clock.now() + waitMs, class: kind, why }
    },
  }
}

const minute = 60_000
/** A failure that only an operator can repair is retried rarely, in case it was repaired. */
const backoff: Readonly<Record<FailureClass, { readonly min: number; readonly max: number }>> = {
  transient: { min: 1000, max: 10 * minute },
  auth: { min: 15 * minute, max: 60 * minute },
  quota: { min: 15 * minute, max: 60 * minute },
  content: { min: 60 * minute, max: 360 * minute },
}

/** A provider that a program brings may throw anything. */
function failedWith(error: unknown, { name, traits }: Provider) {
  const named = isFailure(error) ? error.facts.class : undefined
  const kind = isFailure(error, 'disk-full') ? 'quota' : named !== undefined && named in backoff ? named : 'transient'
  return {
    isHeld: false,
    class: kind,
    why: isFailure(error) ? error.message : `provider ${name} failed in a way it should not`,
    retryAfterMs: isFailure(error) ? error.retryAfterMs : undefined,
    isDiskFull: traits.local && kind === 'quota',
    error,
  } as const
}

/** The parts that uploads, their deliveries and their pins have in common. */
export type UploadContext = {
  readonly providers: readonly Provider[]
  /** The provider that keeps uploads in the store of this gateway: an accepted upload is held there without a request. */
  readonly own: Provider | undefined
  readonly store: Store
  readonly registry: UploadRegistry
  readonly requests: ProviderRequests
  readonly retrieval: UploadFanout
  readonly clock: Clock
  readonly log: Log
  readonly closing: AbortSignal
  /** Registers work that goes on after an answer; `close` awaits it. */
  readonly track: <T>(work: Promise<T>) => Promise<T>
}

/** The tiers of all gateways of this process. */
export type UploadFanout = Pick<Retrieval, 'store' | 'forget' | 'sharedTiers' | 'bring'> & {
  /** Rises when new tiers come, which lack the blocks stored before. */
  readonly joined?: number
}

export const wantedNow = { kind: 'provider', state: 'pending', tries: 0 } as const

/** State of the uploads that all gateways over one data folder share: a reload has two of them for a while. */
interface UploadRegistry {
  /** Waits while this upload is being deleted. Call the answer once its client has one. */
  share(name: string): Promise<() => void>
  /** Runs while nobody uploads this file, and no other work of this kind; `busy` where somebody does. */
  exclusive<T>(name: string, work: () => Promise<T>): Promise<T | 'busy'>
  isExclusive(name: string): boolean
  /** Registers a request that makes a holder get an upload. Call `end` once the ledger has its answer. */
  begin(name: string, holder: string): HolderRequest
  isRequested(name: string, holder: string): boolean
  /** An operator has changed what the ledger says of this holder: the failure of a running request no longer counts. */
  supersede(name: string, holder: string): void
  /** Aborts every request about this upload. */
  abort(name: string, reason: unknown): Promise<void>
  /** Each looks for what is due, for one gateway. */
  readonly wakes: Set<() => void>
}

export type HolderRequest = {
  readonly holder: string
  readonly signal: AbortSignal
  readonly isSuperseded: boolean
  abort(reason: unknown): void
  end(): void
}

export function createUploadRegistry(): UploadRegistry {
  const uploading = new Map<string, number>()
  const exclusive = new Map<string, Promise<unknown>>()
  type Running = HolderRequest & { isSuperseded: boolean; readonly ended: Promise<void> }
  const running = new Map<string, Set<Running>>()

  const of = (name: string): Running[] => [...(running.get(name) ?? [])]

  async function notExclusive(name: string): Promise<void> {
    for (let other = exclusive.get(name); other; other = exclusive.get(name)) await other
  }

  return {
    async share(name) {
      if (exclusive.has(name)) await notExclusive(name)
      uploading.set(name, (uploading.get(name) ?? 0) + 1)
      return () => {
        const others = (uploading.get(name) ?? 1) - 1
        if (others > 0) uploading.set(name, others)
        else uploading.delete(name)
      }
    },
    async exclusive(name, work) {
      await notExclusive(name)
      if (uploading.has(name)) return 'busy'
      const done = work()
      const settled = done.catch(() => {}).finally(() => exclusive.delete(name))
      exclusive.set(name, settled)
      return done
    },
    isExclusive: (name) => exclusive.has(name),
    begin(name, holder) {
      const all = running.get(name) ?? new Set()
      running.set(name, all)
      const stop = new AbortController()
      const { promise: ended, resolve } = Promise.withResolvers<void>()
      const request: Running = {
        ...{ holder, signal: stop.signal, ended, isSuperseded: false },
        abort: (reason) => stop.abort(reason),
        end() {
          resolve()
          all.delete(request)
          if (all.size === 0 && running.get(name) === all) running.delete(name)
        },
      }
      all.add(request)
      return request
    },
    isRequested: (name, holder) => of(name).some((one) => one.holder === holder),
    supersede(name, holder) {
      for (const one of of(name)) if (one.holder === holder) one.isSuperseded = true
    },
    async abort(name, reason) {
      for (const one of of(name)) one.abort(reason)
      await Promise.all(of(name).map(({ ended }) => ended))
    },
    wakes: new Set(),
  }
}
