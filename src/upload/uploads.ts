// The write side put together: it admits uploads, turns bytes into blocks, brings the blocks to providers, and fills the
// tiers before the client gets its 200. The only HTTP it knows is the multipart body that it parses.
import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import type { LocalStore, Profile, Provider } from '../../backends/pinning/contract.ts'
import type { Block } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import { Failure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Trace } from '../core/wire/trace.ts'
import type { DataFolder } from '../data-folder/folder.ts'
import type { Store } from '../store/store.ts'
import { busy, createUploadAdmission, type UploadAdmission, type UploadSlot } from './admission.ts'
import { createBackgroundDelivery } from './background-delivery.ts'
import { createConfirm } from './confirm.ts'
import {
  type Added,
  bounded,
  createIngest,
  type IncomingOptions,
  type Ingest,
  type Received,
  type UploadKind,
} from './ingest.ts'
import { createPins, type Pins } from './pins.ts'
import {
  createProviderRequests,
  createUploadRegistry,
  type ProviderAttempt,
  type UploadContext,
  type UploadFanout,
} from './provider-requests.ts'
import type { Quotas } from './quotas.ts'
import type { ReceiveLimits } from './receive.ts'

export type UploadsOptions = {
  readonly folder: DataFolder
  readonly store: Store
  readonly profile: Profile
  readonly limits: ReceiveLimits
  /** Uploads received at once, and how many of their bytes may be pending. */
  readonly concurrency: number
  readonly maxPendingBytes: number
  /** Uploads of one client received at once. */
  readonly perClient?: number | 'auto'
  readonly providers: readonly Provider[]
  /** Stores of this machine that may have blocks of uploads. Default: the stores of the providers. */
  readonly places?: readonly LocalStore[]
  readonly confirm: number | 'all'
  readonly queue: boolean
  readonly pinMs: number
  readonly retrieval: UploadFanout
  /** Throws a Failure for a CID that this gateway must not keep (a denylist). */
  readonly admit?: (cid: CID) => void
  readonly clock: Clock
  readonly log: Log
  readonly random?: () => number
  readonly quotas?: Quotas | undefined
  readonly counts?: UploadCounter | undefined
  readonly trace?: Trace
}

export type { Added } from './ingest.ts'

/** Metrics of uploads. */
export interface UploadCounter {
  /** An upload that was not admitted. */
  refused(error: unknown): void
  /** Counts the outcome, and what was added. */
  over<T>(work: () => Promise<T>, addedOf?: (answer: T) => readonly Added[]): Promise<T>
  /** An answer of a provider. */
  attempt(attempt: ProviderAttempt): void
}

/** The counter of a program that counts nothing. */
export const uncounted: UploadCounter = { refused() {}, over: (work) => work(), attempt() {} }

export type AddOptions = IncomingOptions & {
  /** Only computes the CID: it keeps nothing and asks no provider. */
  readonly isOnlyHashed?: boolean
  /** Ends an upload whose bytes do not come from a request. */
  readonly signal?: AbortSignal
}

export interface Uploads {
  readonly maxBytes: number
  /** Admits an upload of this client, or rejects with the reason. Call it before reading a byte, and leave the slot after. */
  readonly enter: UploadAdmission['enter']
  /** The kinds of uploads that `receive` takes. */
  readonly kinds: readonly UploadKind[]
  /** One result for each `data` part, in order, and one for the directory that they make; all held by enough providers. */
  receive(request: IncomingMessage, options?: AddOptions): Promise<Added[]>
  /** The same for bytes that do not come from a request. */
  add(bytes: AsyncIterable<Uint8Array>, options?: AddOptions): Promise<Added>
  /** The same for a DAG that exists already: every proved block of it, in any order. */
  keep(root: CID, blocks: AsyncIterable<Block>, slot?: UploadSlot, name?: string): Promise<void>
  /** Accepted uploads: listed, deleted, verified, brought to other providers, given up on. */
  readonly pins: Pins
  readonly admission: Pick<UploadAdmission, 'uploads' | 'waiting' | 'bytes'>
  /** Rejects with a Failure when this disk can take no uploads now. */
  probe(): Promise<void>
  close(): Promise<void>
}

const noProvider = (): Failure =>
  new Failure(
    'upstream-error',
    'this gateway accepts no uploads: its configuration has no provider (pinning.providers)',
    { source: 'provider', facts: { outcomes: [] } },
  )

const maxForTier = 100_000
const maxWaitMs = 2000

export function createUploads(options: UploadsOptions): Uploads {
  const { folder, store, profile, limits, providers, retrieval, clock, log, admit = () => {} } = options
  const { random = Math.random, counts = uncounted } = options
  const own = providers.find(({ ownStore }) => ownStore === store)
  const registry = folder.part(createUploadRegistry)
  const ending = new AbortController()
  const closing = ending.signal
  const working = createWorking(clock)
  const { track } = working
  const requests = createProviderRequests({ ...options, random, admit, onAttempt: counts.attempt })
  const places = [store.blocks, ...(options.places ?? providers.flatMap((one) => one.store ?? []))]
  const common: UploadContext = { providers, own, store, registry, requests, retrieval, clock, log, closing, track }
  const waits = { uploads: maxForTier, bytes: options.maxPendingBytes }
  const wake = createBackgroundDelivery({ ...common, places, random, maxForTier: waits })
  const confirm = createConfirm({ ...options, ...common, wake })
  const pins = createPins({ ...common, wake, admit })
  const admission = createUploadAdmission({
    clock,
    maxUploads: options.concurrency,
    maxPendingBytes: options.maxPendingBytes,
    perClient: options.perClient ?? 'auto',
    minRate: limits.minRate,
    quotas: options.quotas,
    onRefused: counts.refused,
    closing,
  })
  const ingest = createIngest({ store, admit, limits, profile, closing })
  store.ready.then(wake, () => {})
  registry.wakes.add(wake)

  /** Stages the uploads of one request and has them confirmed, all or none; what was not accepted is dropped. */
  async function take<T extends { readonly received: readonly Received[] }>(
    own: AddOptions,
    stage: (into: Ingest, count: (bytes: number) => void) => Promise<T>,
  ): Promise<T> {
    closing.throwIfAborted()
    const { slot } = own
    const intake = store.begin()
    const counter = admission.count(slot)
    const count = (bytes: number): void => {
      slot?.quota?.add(bytes)
      counter.add(bytes)
    }
    try {
      // No provider gets anything before the complete body has arrived and is well formed.
      const staged = await stage(ingest(intake, own, count), count)
      if (own.isOnlyHashed) return staged
      await confirm(staged.received, slot?.quota && [slot.quota.use()])
      slot?.quota?.accept()
      return staged
    } finally {
      counter.release()
      await intake.drop()
    }
  }

  return {
    maxBytes: limits.maxBytes,
    kinds: ['files', 'directory', 'cars'],
    async enter(who, signal, minBytes) {
      if (providers.length > 0) return admission.enter(who, signal, minBytes)
      const error = noProvider()
      counts.refused(error)
      throw error
    },
    receive(request, given = {}) {
      const work = async () => {
        const { added } = await take(given, (into, count) =>
          // `closing` ends the slot.
          into.request(request, {
            ...limits,
            clock,
            isCopied: true,
            slot: given.slot,
            count,
            ...(!given.slot && { signal: closing }),
          }),
        )
        return [...added]
      }
      return track(given.isOnlyHashed ? work() : counts.over(work, (added) => added))
    },
    add(bytes, given = {}) {
      const work = async () => {
        const signals = [closing, ...(given.signal ? [given.signal] : [])]
        const { received } = await take(given, async (into, count) => {
          const source = bounded(bytes, { ...limits, clock, signals, slot: given.slot, count })
          return { received: [await into.file(source)] as const }
        })
        return received[0].added
      }
      return track(counts.over(work, (added) => [added]))
    },
    keep(root, blocks, slot, name) {
      const given = { name, ...(slot && { slot }) }
      const work = () => take(given, async (into) => ({ received: [await into.dag(root, blocks)] }))
      return track(counts.over(async () => void (await work())))
    },
    pins,
    admission,
    probe: store.probe,
    async close() {
      ending.abort(busy('this gateway shut down before the upload was complete; send it again'))
      await working.ended()
      registry.wakes.delete(wake)
      // Another gateway of this process delivers the uploads that this one accepted after a reload.
      for (const wakeOther of registry.wakes) wakeOther()
    },
  }
}

/** Uploads that are received, or wait for their answer, and work that goes on after an answer. */
function createWorking(clock: Clock) {
  const all = new Set<Promise<unknown>>()
  return {
    track<T>(work: Promise<T>): Promise<T> {
      const settled = work.catch(() => {}).finally(() => all.delete(settled))
      all.add(settled)
      return work
    },
    /** Work that ends may begin other work. A disk or a client that hangs is not waited for. */
    async ended(): Promise<void> {
      const waited = new AbortController()
      const none = async () => {
        while (all.size > 0) await Promise.all(all)
      }
      await Promise.race([none(), clock.sleep(maxWaitMs, waited.signal)])
      waited.abort()
    },
  }
}
