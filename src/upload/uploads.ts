// The write side put together: who is let in, bytes to blocks, blocks to providers, and into the tiers before anybody is
// told. http/add.ts and the commands call it; it knows nothing of HTTP but the body it takes apart.
import type { IncomingMessage } from 'node:http'
import { join } from 'node:path'
import type { CID } from 'multiformats/cid'
import type { Profile, Provider, Upload } from '../../backends/pinning/contract.ts'
import type { Clock } from '../clock.ts'
import type { Log } from '../observe/log.ts'
import type { Retrieval } from '../retrieval/session.ts'
import { type Admission, createAdmission } from './admission.ts'
import { type Confirmation, createConfirmation } from './confirm.ts'
import { keepText, type TextCheck } from './document.ts'
import { fillTiers } from './fill.ts'
import { importFile } from './import.ts'
import { createJournal } from './journal.ts'
import { type ReceiveLimits, receive } from './receive.ts'
import { createSpools } from './spool.ts'

export type UploadsOptions = {
  /** The gateway's data folder. */
  readonly data: string
  readonly profile: Profile
  readonly limits: ReceiveLimits
  /** Uploads received at once, and bytes of them that may lie here without having been answered. */
  readonly concurrency: number
  readonly mostBytes: number
  readonly providers: readonly Provider[]
  readonly confirm: number | 'all'
  readonly queue: boolean
  readonly pinMs: number
  readonly retrieval: Pick<Retrieval, 'store' | 'forget'>
  readonly clock: Clock
  readonly log: Log
  readonly random?: () => number
}

export type AddOptions = { readonly profile?: Profile; readonly check?: TextCheck | undefined }

export interface Uploads {
  readonly maxBytes: number
  /** Lets an upload in, or says why not; to be called before a byte of it is read. The answer lets it out again. */
  enter(): () => void
  /** One CID for each `data` part, in order, each held by enough providers. */
  receive(request: IncomingMessage, options?: AddOptions): Promise<CID[]>
  /** The same for bytes that come from elsewhere. */
  add(bytes: AsyncIterable<Uint8Array>, options?: AddOptions): Promise<CID>
  readonly confirmation: Pick<Confirmation, 'open' | 'giveUp'>
  readonly admission: Pick<Admission, 'uploads' | 'bytes'>
  /** Takes up what the last process left; the first upload waits for it. */
  ready(): Promise<void>
  close(): Promise<void>
}

export function createUploads(options: UploadsOptions): Uploads {
  const { data, limits, providers, confirm, queue, pinMs, retrieval, clock, log } = options
  const spools = createSpools(join(data, 'uploads'))
  const journal = createJournal(join(data, 'journal'), log)
  const admission = createAdmission({ most: options.concurrency, mostBytes: options.mostBytes })
  const confirmation = createConfirmation({
    providers,
    confirm,
    queue,
    pinMs,
    journal,
    spools,
    clock,
    log,
    ...(options.random && { random: options.random }),
    onConfirmed: (upload, signal) => fillTiers(upload, { retrieval, log, clock }, signal),
  })
  const resumed = confirmation.resume()
  resumed.catch((error: unknown) => log('error', 'journal.load', { error: String(error) }))

  /** Into a spool of its own, which is gone again if anything fails. */
  async function spool(source: AsyncIterable<Uint8Array>, { profile = options.profile, check }: AddOptions) {
    const spooling = await spools.begin()
    const counter = admission.count()
    try {
      const text = check && keepText(check)
      const root = await importFile(counter.over(text ? text.over(source) : source), profile, spooling.put)
      text?.check()
      return { upload: await spooling.finish(root, profile, counter.bytes), id: spooling.id, counter }
    } catch (error) {
      counter.release()
      await spools.drop(spooling.id).catch(() => {})
      throw error
    }
  }

  async function keep({ upload, id, counter }: Awaited<ReturnType<typeof spool>>): Promise<CID> {
    try {
      await confirmation.confirm(upload, id)
      return upload.cid
    } finally {
      counter.release()
    }
  }

  return {
    maxBytes: limits.maxBytes,
    enter: admission.enter,
    async receive(request, own = {}) {
      await resumed
      const spooled: { upload: Upload; id: string; counter: { release(): void; bytes: number } }[] = []
      try {
        // Nothing goes to a provider before the whole body was there and was well formed.
        const all = await receive(request, { ...limits, clock }, async (bytes) => {
          const one = await spool(bytes, own)
          spooled.push(one)
          return one
        })
        const kept = await Promise.allSettled(all.map((one) => keep(one as Awaited<ReturnType<typeof spool>>)))
        spooled.length = 0
        return kept.map((one) => {
          if (one.status === 'rejected') throw one.reason
          return one.value
        })
      } finally {
        for (const { id, counter } of spooled) {
          counter.release()
          await spools.drop(id).catch(() => {})
        }
      }
    },
    async add(bytes, own = {}) {
      await resumed
      return keep(await spool(bytes, own))
    },
    confirmation,
    admission,
    ready: () => resumed,
    close: () => confirmation.close(),
  }
}
