// The write side put together: it admits uploads, turns bytes into blocks, brings the blocks to providers, and fills the
// tiers before the client gets its 200. The only HTTP it knows is the multipart body that it parses.
import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import type { LocalStore, Profile, Provider } from '../../backends/pinning/contract.ts'
import type { Block } from '../core/block.ts'
import type { Clock } from '../core/clock.ts'
import { tryToWrite } from '../core/disk/files.ts'
import type { Log } from '../core/log.ts'
import type { Trace } from '../core/wire/trace.ts'
import type { DataFolder } from '../data-folder/folders.ts'
import { createClaims } from './claims.ts'
import type { ProviderAttempt } from './confirm/attempt.ts'
import { type Confirmation, createConfirmation } from './confirm/confirm.ts'
import { type Everywhere, fillTiers } from './confirm/fill-tiers.ts'
import { busy, diskFailure, nobodyKeeps } from './failures.ts'
import { createGenerations } from './generations.ts'
import { createUploadAdmission, type UploadAdmission, type UploadSlot } from './intake/admission.ts'
import { type IncomingOptions, receiveIncoming, type UploadKind } from './intake/incoming.ts'
import type { ReceiveLimits } from './intake/receive.ts'
import { bounded } from './intake/source.ts'
import { createSpooling, type SpooledFile, type SpooledUpload } from './intake/spooling.ts'
import { waitingListOfFolder } from './pins/ask-again.ts'
import { createOnTheirWay } from './pins/on-their-way.ts'
import { createPins, type Pins } from './pins/pins.ts'
import { createCopies } from './spool/copies.ts'
import { createJournal, type Journal, journalFolder } from './spool/journal.ts'
import { createMending } from './spool/mend.ts'
import { createSpools, spoolFolder } from './spool/spool.ts'

export type UploadsOptions = {
  readonly folder: DataFolder
  readonly profile: Profile
  readonly limits: ReceiveLimits
  /** Uploads received at once, and how many of their bytes may lie here unanswered. */
  readonly concurrency: number
  readonly mostBytes: number
  /** Uploads of one client received at once. */
  readonly perClient?: number | 'auto'
  readonly providers: readonly Provider[]
  /** Local stores that may hold uploads of providers that are no longer configured. Default: the providers' own stores. */
  readonly stores?: readonly LocalStore[]
  readonly confirm: number | 'all'
  readonly queue: boolean
  readonly pinMs: number
  readonly retrieval: Everywhere
  /** Throws a Failure for a CID that this gateway must not keep (a denylist). */
  readonly admit?: (cid: CID) => void
  readonly clock: Clock
  readonly log: Log
  readonly random?: () => number
  /** Called with each answer of a provider. */
  readonly onAttempt?: (attempt: ProviderAttempt) => void
  readonly trace?: Trace
}

export type { SpooledUpload } from './intake/spooling.ts'

export type AddOptions = IncomingOptions & {
  /** Only computes the CID: it keeps nothing and asks no provider. */
  readonly isOnlyHashed?: boolean
  /** Ends an upload whose bytes do not come from a request. */
  readonly signal?: AbortSignal
}

export interface Uploads {
  readonly maxBytes: number
  /** Admits an upload of this client, or rejects with the reason. Call it before reading a byte, and leave the slot after. */
  enter(client: string, signal?: AbortSignal): Promise<UploadSlot>
  /** The kinds of uploads that `receive` takes. */
  readonly kinds: readonly UploadKind[]
  /** One result for each `data` part, in order, and one for the directory that they make; all held by enough providers. */
  receive(request: IncomingMessage, options?: AddOptions): Promise<SpooledUpload[]>
  /** The same for bytes that do not come from a request. */
  add(bytes: AsyncIterable<Uint8Array>, options?: AddOptions): Promise<SpooledUpload>
  /** The same for a DAG that exists already: every proved block of it, in any order. */
  keep(root: CID, blocks: AsyncIterable<Block>, slot?: UploadSlot): Promise<void>
  readonly confirmation: Pick<Confirmation, 'open' | 'giveUp'>
  readonly journal: Pick<Journal, 'record' | 'records'>
  /** What was accepted: listed, deleted, verified, brought to other providers. */
  readonly pins: Pins
  readonly admission: Pick<UploadAdmission, 'uploads' | 'waiting' | 'bytes'>
  /** Resumes the uploads that the last process left. In the first gateway over its folder, new uploads wait for that. */
  ready(): Promise<void>
  /** Resolves when every accepted upload can be read. Does not reject. */
  readonly open: Promise<void>
  /** Rejects with a Failure when this disk can take no uploads now. */
  probe(): Promise<void>
  /** What became of damaged entries of the journal, for the operator; undefined: there are none. */
  damage(): string | undefined
  close(): Promise<void>
}

/** Each costs a small file and a little memory. */
const mostOwed = 100_000
const mostLookMs = 2000

export function createUploads(options: UploadsOptions): Uploads {
  const { folder, profile, limits, providers, confirm, queue, pinMs, retrieval, clock, log, admit = () => {} } = options
  const { path: data } = folder
  const [spools, claims, copies] = [folder.part(createSpools), folder.part(createClaims), folder.part(createCopies)]
  const disk = createDiskLook(data, clock)
  const journal = createJournal(journalFolder(data), log, copies)
  const stores = options.stores ?? providers.flatMap(({ store }) => store ?? [])
  const mending = createMending({ data, journal, spools, stores, claims, profile, retrieval, clock, log })
  const confirmation = createConfirmation({
    providers,
    stores,
    retrieval,
    mostOwed,
    mostOwedBytes: options.mostBytes,
    confirm,
    queue,
    pinMs,
    admit,
    journal,
    spools,
    claims,
    mending,
    clock,
    log,
    ...(options.random && { random: options.random }),
    onAttempt: options.onAttempt,
    trace: options.trace,
    onConfirmed: (upload, signal, isKept) => fillTiers(upload, { retrieval, log, clock, isKept }, signal),
  })
  const closing = new AbortController()
  const admission = createUploadAdmission({
    clock,
    most: options.concurrency,
    mostBytes: options.mostBytes,
    perClient: options.perClient ?? 'auto',
    minRate: limits.minRate,
    closing: closing.signal,
  })
  const spooling = createSpooling({
    ...{ spools, admission, admit, log, limits, profile, closing: closing.signal },
  })
  const generation = folder.part(createGenerations).join(confirmation)
  let isTakenUp = false
  const onTheirWay = createOnTheirWay({
    ...{ journal, spools, claims, all: generation.all },
    mayBeLeft: () => !isTakenUp || generation.all().length > 1,
  })
  const pins = createPins({
    ...{ providers, stores, journal, confirmation, onTheirWay, admit, claims, clock, log, closing: closing.signal },
    waitingList: folder.part(waitingListOfFolder),
  })
  const working = createWorking(clock)
  const resumed = takeUp()
  /** New uploads wait until the leftovers of a crash are resumed, but not for an older gateway that is closing. */
  const open = generation.isFirst ? resumed : Promise.resolve()
  resumed.catch((error: unknown) => log('error', 'journal.load', { error: String(error) }))

  async function takeUp(): Promise<void> {
    if (!(await generation.turn(closing.signal))) return
    await confirmation.resume()
    isTakenUp = true
  }

  /** Confirms all of them, or none. */
  async function confirmed(spooled: readonly SpooledFile[]): Promise<void> {
    try {
      await confirmation.confirm(spooled)
    } finally {
      for (const { counter } of spooled) counter.release()
    }
  }

  return {
    maxBytes: limits.maxBytes,
    kinds: ['files', 'directory', 'cars'],
    async enter(client, signal) {
      if (providers.length === 0) throw nobodyKeeps()
      return admission.enter(client, signal)
    },
    receive: working.on(async (request, own = {}) => {
      await open
      const receiving = { ...limits, clock, isCopied: true, signal: closing.signal, slot: own.slot }
      // No provider gets anything before the whole body has arrived and is well formed.
      const { added, spooled } = await receiveIncoming(request, receiving, own, spooling)
      if (own.isOnlyHashed) await Promise.all(spooled.map(spooling.drop))
      else await confirmed(spooled)
      return [...added]
    }),
    add: working.on(async (bytes, own = {}) => {
      await open
      const signals = [closing.signal, ...(own.signal ? [own.signal] : [])]
      const source = bounded(bytes, { ...limits, clock, signals, slot: own.slot })
      const spooled = await spooling.spoolFile(source, own)
      await confirmed([spooled])
      return spooled.added
    }),
    keep: working.on(async (root, blocks, slot) => {
      await open
      const spooled = await spooling.spoolDag(root, blocks, slot)
      await confirmed([spooled])
    }),
    confirmation,
    journal,
    pins,
    admission,
    ready: () => resumed,
    open: open.catch(() => {}),
    probe: () => mending.look().then(disk.look),
    damage: mending.words,
    async close() {
      closing.abort(busy('this gateway shut down before the upload was complete; send it again'))
      await pins.ended()
      await confirmation.close()
      await working.ended()
      await resumed.catch(() => {})
      await disk.ended()
      generation.leave()
    },
  }
}

/** Uploads that are received, or wait for their answer. */
function createWorking(clock: Clock) {
  const all = new Set<Promise<unknown>>()
  return {
    on:
      <Given extends unknown[], Result>(work: (...given: Given) => Promise<Result>) =>
      (...given: Given): Promise<Result> => {
        const result = work(...given)
        const settled = result.catch(() => {}).finally(() => all.delete(settled))
        all.add(settled)
        return result
      },
    /** One that was cut writes no more in its spool, and the spool is gone. A disk that hangs is not waited for. */
    async ended(): Promise<void> {
      const waited = new AbortController()
      await Promise.race([Promise.all(all), clock.sleep(mostLookMs, waited.signal)])
      waited.abort()
    },
  }
}

/** Looks whether this disk takes uploads, by writing into its folders. */
function createDiskLook(data: string, clock: Clock) {
  let last: Promise<unknown> = Promise.resolve()
  const write = async () => {
    for (const folder of [spoolFolder(data), journalFolder(data)])
      await tryToWrite(folder).catch((error: unknown) => {
        throw diskFailure(error, `write to ${folder}`)
      })
  }
  return {
    look() {
      const looking = write()
      last = looking.catch(() => {})
      return looking
    },
    /** Nothing of the last look is left. A disk that hangs is not waited for. */
    async ended() {
      const waited = new AbortController()
      await Promise.race([last, clock.sleep(mostLookMs, waited.signal)])
      waited.abort()
    },
  }
}
