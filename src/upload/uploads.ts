// The write side put together: it admits uploads, turns bytes into blocks, brings the blocks to providers, and fills the
// tiers before the client gets its 200. The only HTTP it knows is the multipart body that it parses.
import type { IncomingMessage } from 'node:http'
import type { CID } from 'multiformats/cid'
import type { LocalStore, Profile, Provider, Shape } from '../../backends/pinning/contract.ts'
import type { Block } from '../core/block.ts'
import type { Clock } from '../core/clock.ts'
import { tryToWrite } from '../core/files.ts'
import type { Log } from '../core/log.ts'
import type { DataFolder } from '../data-folder/folders.ts'
import { createClaims } from './claims.ts'
import { type Confirmation, createConfirmation } from './confirm/confirm.ts'
import { type Everywhere, fillTiers } from './confirm/fill-tiers.ts'
import { busy, diskFailure, nobodyKeeps } from './failures.ts'
import { createGenerations } from './generations.ts'
import { createUploadAdmission, type UploadAdmission, type UploadSlot } from './intake/admission.ts'
import { type PartName, type ReceiveLimits, type ReceiveOptions, receive } from './intake/receive.ts'
import { bounded } from './intake/source.ts'
import { type Added, createSpooling, type SpooledFile } from './intake/spooling.ts'
import type { TextCheck } from './intake/text-check.ts'
import { createJournal, type Journal, journalFolder } from './spool/journal.ts'
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
}

export type { Added } from './intake/spooling.ts'

export type AddOptions = {
  /** Replaces the shape of the profile. */
  readonly shape?: Shape
  readonly check?: TextCheck | undefined
  readonly parts?: ReceiveOptions['parts']
  /** Sees the name of a part before its first byte is read; throws a Failure to refuse it. */
  readonly look?: (part: PartName) => void
  /** Only computes the CID; keeps nothing. */
  readonly isOnlyHashed?: boolean
  /** The slot that `enter` gave it. */
  readonly slot?: UploadSlot
  /** Ends an upload whose bytes do not come from a request. */
  readonly signal?: AbortSignal
  /** The gateways that it came through (CDN-Loop), for thin mode, which forwards it. */
  readonly via?: string
}

export interface Uploads {
  readonly maxBytes: number
  /** Admits an upload of this client, or rejects with the reason. Call it before reading a byte, and leave the slot after. */
  enter(client: string, signal?: AbortSignal): Promise<UploadSlot>
  /** One result for each `data` part, in order, each held by enough providers. */
  receive(request: IncomingMessage, options?: AddOptions): Promise<Added[]>
  /** The same for bytes that do not come from a request. */
  add(bytes: AsyncIterable<Uint8Array>, options?: AddOptions): Promise<Added>
  /** The same for a DAG that exists already: every proved block of it, in any order. */
  keep(root: CID, blocks: AsyncIterable<Block>, slot?: UploadSlot): Promise<void>
  readonly confirmation: Pick<Confirmation, 'open' | 'giveUp'>
  readonly journal: Pick<Journal, 'record' | 'records'>
  readonly admission: Pick<UploadAdmission, 'uploads' | 'waiting' | 'bytes'>
  /** Resumes the uploads that the last process left. In the first gateway over its folder, new uploads wait for that. */
  ready(): Promise<void>
  /** Resolves when every accepted upload can be read. Does not reject. */
  readonly open: Promise<void>
  /** Rejects with a Failure when this disk can take no uploads now. */
  probe(): Promise<void>
  close(): Promise<void>
}

/** Each costs a small file and a little memory. */
const mostOwed = 100_000
const mostLookMs = 2000

export function createUploads(options: UploadsOptions): Uploads {
  const { folder, limits, providers, confirm, queue, pinMs, retrieval, clock, log, admit = () => {} } = options
  const { path: data } = folder
  const spools = folder.part(createSpools)
  const disk = createDiskLook(data, clock)
  const journal = createJournal(journalFolder(data), log)
  const confirmation = createConfirmation({
    providers,
    stores: options.stores ?? providers.flatMap(({ store }) => store ?? []),
    retrieval,
    mostOwed,
    mostOwedBytes: options.mostBytes,
    confirm,
    queue,
    pinMs,
    journal,
    spools,
    claims: folder.part(createClaims),
    clock,
    log,
    ...(options.random && { random: options.random }),
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
  const { spoolFile, spoolDag, drop } = createSpooling({
    ...{ spools, admission, admit, log, limits, profile: options.profile, closing: closing.signal },
  })
  const generation = folder.part(createGenerations).join()
  const resumed = takeUp()
  /** New uploads wait until the leftovers of a crash are resumed, but not for an older gateway that is closing. */
  const open = generation.isFirst ? resumed : Promise.resolve()
  resumed.catch((error: unknown) => log('error', 'journal.load', { error: String(error) }))

  async function takeUp(): Promise<void> {
    if (await generation.turn(closing.signal)) await confirmation.resume()
  }

  /** Confirms all of them, or none. */
  async function confirmed(spooled: readonly SpooledFile[]): Promise<Added[]> {
    try {
      await confirmation.confirm(spooled)
      return spooled.map(({ added }) => added)
    } finally {
      for (const { counter } of spooled) counter.release()
    }
  }

  return {
    maxBytes: limits.maxBytes,
    async enter(client, signal) {
      if (providers.length === 0) throw nobodyKeeps()
      return admission.enter(client, signal)
    },
    async receive(request, own = {}) {
      await open
      const spooled: SpooledFile[] = []
      try {
        const { parts, slot } = own
        const receiving = { ...limits, clock, isCopied: true, signal: closing.signal, slot, ...(parts && { parts }) }
        // No provider gets anything before the whole body has arrived and is well formed.
        const all = await receive(request, receiving, async (bytes, _signal, part) => {
          own.look?.(part)
          const one = await spoolFile(bytes, own, part.fileName)
          spooled.push(one)
          return one
        })
        if (own.isOnlyHashed) return all.map(({ added }) => added)
        spooled.length = 0
        return await confirmed(all)
      } finally {
        await Promise.all(spooled.map(drop))
      }
    },
    async add(bytes, own = {}) {
      await open
      const signals = [closing.signal, ...(own.signal ? [own.signal] : [])]
      const source = bounded(bytes, { ...limits, clock, signals, slot: own.slot })
      const [added] = await confirmed([await spoolFile(source, own)])
      return added as Added
    },
    async keep(root, blocks, slot) {
      await open
      const spooled = await spoolDag(root, blocks, slot)
      await confirmed([spooled])
    },
    confirmation,
    journal,
    admission,
    ready: () => resumed,
    open: open.catch(() => {}),
    probe: disk.look,
    async close() {
      closing.abort(busy('this gateway shut down before the upload was complete; send it again'))
      await confirmation.close()
      await resumed.catch(() => {})
      await disk.ended()
      generation.leave()
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
