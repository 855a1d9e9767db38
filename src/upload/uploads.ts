// The write side put together: who is let in, bytes to blocks, blocks to providers, and into the tiers before anybody is
// told. http/add/add.ts and the commands call it; it knows nothing of HTTP but the body it takes apart.
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
import { type Admission, createAdmission, type Place } from './intake/admission.ts'
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
  /** Uploads received at once, and bytes of them that may lie here without having been answered. */
  readonly concurrency: number
  readonly mostBytes: number
  /** Of these, those of one client. */
  readonly perClient?: number | 'auto'
  readonly providers: readonly Provider[]
  /** Of this machine: where uploads may lie that no provider of the configuration has. By default those of the providers. */
  readonly stores?: readonly LocalStore[]
  readonly confirm: number | 'all'
  readonly queue: boolean
  readonly pinMs: number
  readonly retrieval: Everywhere
  /** Throws a Failure for what is not to be kept here (a denylist). */
  readonly admit?: (cid: CID) => void
  readonly clock: Clock
  readonly log: Log
  readonly random?: () => number
}

export type { Added } from './intake/spooling.ts'

export type AddOptions = {
  /** Instead of that of the profile. */
  readonly shape?: Shape
  readonly check?: TextCheck | undefined
  readonly parts?: ReceiveOptions['parts']
  /** Sees what a part is called before a byte of it is taken; throws a Failure for what is not to be. */
  readonly look?: (part: PartName) => void
  /** Nothing is kept: what it would be is told. */
  readonly isOnlyHashed?: boolean
  /** Where it was let in. */
  readonly place?: Place
  /** Ends it while its bytes come from elsewhere than a request. */
  readonly signal?: AbortSignal
  /** Who it has come through, for those who forward it. */
  readonly via?: string
}

export interface Uploads {
  readonly maxBytes: number
  /** Lets an upload of this client in, or says why not; to be called before a byte of it is read. Its place has to be left. */
  enter(client: string, signal?: AbortSignal): Promise<Place>
  /** One for each `data` part, in order, each held by enough providers. */
  receive(request: IncomingMessage, options?: AddOptions): Promise<Added[]>
  /** The same for bytes that come from elsewhere. */
  add(bytes: AsyncIterable<Uint8Array>, options?: AddOptions): Promise<Added>
  /** The same for a DAG that exists already: every proved block of it, in any order. */
  keep(root: CID, blocks: AsyncIterable<Block>, place?: Place): Promise<void>
  readonly confirmation: Pick<Confirmation, 'open' | 'giveUp'>
  readonly journal: Pick<Journal, 'record' | 'records'>
  readonly admission: Pick<Admission, 'uploads' | 'waiting' | 'bytes'>
  /** Takes up what the last process left. Where this is the first gateway over its folder, its uploads wait for it. */
  ready(): Promise<void>
  /** What was accepted can be read. Does not reject. */
  readonly open: Promise<void>
  /** Rejects with a Failure where this disk can take no uploads now. */
  probe(): Promise<void>
  close(): Promise<void>
}

/** Each costs a small file and a little memory. */
const mostOwed = 100_000

export function createUploads(options: UploadsOptions): Uploads {
  const { folder, limits, providers, confirm, queue, pinMs, retrieval, clock, log, admit = () => {} } = options
  const { path: data } = folder
  const spools = folder.part(createSpools)
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
    onConfirmed: (upload, signal) => fillTiers(upload, { retrieval, log, clock }, signal),
  })
  const closing = new AbortController()
  const admission = createAdmission({
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
  /** Uploads wait for what a crash left, and not for a gateway that is on its way out. */
  const open = generation.isFirst ? resumed : Promise.resolve()
  resumed.catch((error: unknown) => log('error', 'journal.load', { error: String(error) }))

  async function takeUp(): Promise<void> {
    if (await generation.turn(closing.signal)) await confirmation.resume()
  }

  /** All of them, or none. */
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
        const { parts, place } = own
        const receiving = { ...limits, clock, signal: closing.signal, place, ...(parts && { parts }) }
        // Nothing goes to a provider before the whole body was there and was well formed.
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
      const source = bounded(bytes, { ...limits, clock, signals, place: own.place })
      const [added] = await confirmed([await spoolFile(source, own)])
      return added as Added
    },
    async keep(root, blocks, place) {
      await open
      const spooled = await spoolDag(root, blocks, place)
      await confirmed([spooled])
    },
    confirmation,
    journal,
    admission,
    ready: () => resumed,
    open: open.catch(() => {}),
    async probe() {
      for (const folder of [spoolFolder(data), journalFolder(data)])
        await tryToWrite(folder).catch((error: unknown) => {
          throw diskFailure(error, `write to ${folder}`)
        })
    },
    async close() {
      closing.abort(busy('this gateway stops before the upload is here; send it again'))
      await confirmation.close()
      await resumed.catch(() => {})
      generation.leave()
    },
  }
}
