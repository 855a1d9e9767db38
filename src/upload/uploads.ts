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
import type { Intake, Store } from '../store/store.ts'
import { busy, createUploadAdmission, type UploadAdmission, type UploadSlot } from './admission.ts'
import { createBackgroundDelivery } from './background-delivery.ts'
import { createConfirm, type UploadFanout } from './confirm.ts'
import { createPins, type Pins } from './pins.ts'
import { createProviderRequests, createUploadRegistry, type ProviderAttempt } from './provider-requests.ts'
import type { Quotas } from './quotas.ts'
import type { ReceiveLimits } from './receive.ts'
import {
  type Added,
  bounded,
  createTaking,
  type IncomingOptions,
  type Received,
  receiveIncoming,
  type UploadKind,
  withinQuota,
} from './taking.ts'

export type UploadsOptions = {
  readonly folder: DataFolder
  readonly store: Store
  readonly profile: Profile
  readonly limits: ReceiveLimits
  /** Uploads received at once, and how many of their bytes may lie here unanswered. */
  readonly concurrency: number
  readonly maxPendingBytes: number
  /** Uploads of one client received at once. */
  readonly perClient?: number | 'auto'
  readonly providers: readonly Provider[]
  /** Other places on this machine where blocks of uploads may lie. Default: the stores of the providers. */
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

export type { Added } from './taking.ts'

/** Metrics of uploads. */
export interface UploadCounter {
  /** An upload that was not admitted. */
  refused(error: unknown): void
  /** Counts the outcome, and what was added. */
  over<T>(work: () => Promise<T>, addedOf?: (answer: T) => readonly Added[]): Promise<T>
  /** An answer of a provider. */
  attempt(attempt: ProviderAttempt): void
}

/** Of a program that counts nothing. */
export const uncounted: UploadCounter = { refused() {}, over: (work) => work(), attempt() {} }

export type AddOptions = IncomingOptions & {
  /** Only computes the CID: it keeps nothing and asks no provider. */
  readonly isOnlyHashed?: boolean
  /** Of each upload, for lists of pins. */
  readonly name?: string | undefined
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
    'this gateway takes no uploads: its configuration has no provider (pinning.providers)',
    { source: 'provider', facts: { outcomes: [] } },
  )

const maxForTier = 100_000
const maxWaitMs = 2000

export function createUploads(options: UploadsOptions): Uploads {
  const { folder, store, profile, limits, providers, retrieval, clock, log, admit = () => {} } = options
  const { random = Math.random, counts = uncounted } = options
  const own = providers.find(({ home }) => home === store)
  const registry = folder.part(createUploadRegistry)
  const ending = new AbortController()
  const closing = ending.signal
  const working = createWorking(clock)
  const { track } = working
  const requests = createProviderRequests({ ...options, random, admit, onAttempt: counts.attempt })
  const places = [store.blocks, ...(options.places ?? providers.flatMap((one) => one.store ?? []))]
  const common = { providers, own, store, registry, requests, retrieval, clock, log, closing, track }
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
  const taking = createTaking({ store, admission, admit, limits, profile, closing })
  store.ready.then(wake, () => {})
  registry.wakes.add(wake)

  /** Drops what was not accepted when the work is over. */
  async function withIntake<T>(work: (intake: Intake) => Promise<T>): Promise<T> {
    closing.throwIfAborted()
    const intake = store.begin()
    try {
      return await work(intake)
    } finally {
      await intake.drop()
    }
  }

  /** All of them, or none. */
  async function confirmed(received: readonly Received[], slot: UploadSlot | undefined, name?: string): Promise<void> {
    const named = received.map((one) => (name === undefined ? one : { ...one, upload: { ...one.upload, name } }))
    try {
      await confirm(named, slot?.quota && [slot.quota.use()])
      slot?.quota?.accept()
    } finally {
      for (const { counter } of received) counter.release()
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
      const work = () =>
        withIntake(async (intake) => {
          const receiving = { ...limits, clock, isCopied: true, signal: closing, slot: given.slot }
          // No provider gets anything before the whole body has arrived and is well formed.
          const { added, received } = await receiveIncoming(request, receiving, given, { intake, taking })
          if (given.isOnlyHashed) for (const { counter } of received) counter.release()
          else await confirmed(received, given.slot, given.name)
          return [...added]
        })
      return track(given.isOnlyHashed ? work() : counts.over(work, (added) => added))
    },
    add(bytes, given = {}) {
      const work = () =>
        withIntake(async (intake) => {
          const signals = [closing, ...(given.signal ? [given.signal] : [])]
          const source = bounded(bytes, { ...limits, clock, signals, slot: given.slot })
          const received = await taking.file(intake, source, given)
          await confirmed([received], given.slot, given.name)
          return received.added
        })
      return track(counts.over(work, (added) => [added]))
    },
    keep(root, blocks, slot, name) {
      const work = () =>
        withIntake(async (intake) => {
          const counted = withinQuota(blocks, slot)
          await confirmed([await taking.dag(intake, root, counted, slot)], slot, name)
        })
      return track(counts.over(work))
    },
    pins,
    admission,
    probe: store.probe,
    async close() {
      ending.abort(busy('this gateway shut down before the upload was complete; send it again'))
      await working.ended()
      registry.wakes.delete(wake)
      // What this gateway accepted after a reload, and could not deliver, goes on there.
      for (const wakeOther of registry.wakes) wakeOther()
    },
  }
}

/** Uploads that are received, or wait for their answer, and work that goes on behind an answer. */
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
