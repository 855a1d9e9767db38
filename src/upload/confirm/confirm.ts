// Confirms received uploads. Uploads that come together are confirmed together or not at all, the same file twice is one
// delivery, and uploads that an earlier process left are resumed.
import type { CID } from 'multiformats/cid'
import { Failure } from '../../core/failure.ts'
import { createResume, type ResumeOptions } from '../resume.ts'
import { isHeld, type JournalEntry, nameOf, recordOf } from '../spool/journal.ts'
import type { SpooledUpload } from './behind.ts'
import { OtherFailed } from './confirming.ts'
import { createDeliveries, type DeliveriesOptions } from './deliveries.ts'
import { createJoining } from './joining.ts'
import { createOwed, type OwedOptions } from './owed.ts'
import { createQuorum, type QuorumOptions } from './quorum.ts'

export type ConfirmOptions = QuorumOptions &
  Omit<DeliveriesOptions, 'quorum' | 'owed' | 'closing' | 'track' | 'random'> & {
    readonly random?: () => number
    readonly retrieval: OwedOptions['retrieval']
    readonly mending: ResumeOptions['mending']
    /** Most uploads that a shared tier may lack, and most of their bytes that are kept here only for that tier. */
    readonly mostOwed: number
    readonly mostOwedBytes: number
  }

export interface Confirmation {
  /**
   * Resolves when all of them are confirmed. Rejects with a Failure (facts: `outcomes`) when one cannot be; then none is kept,
   * except what was here before. Takes the spools over. Providers are asked once for the same file sent twice at once.
   */
  confirm(uploads: readonly SpooledUpload[]): Promise<void>
  /** Resumes uploads that the last process left. Resolves when every accepted one can be read. */
  resume(): Promise<void>
  open(): readonly JournalEntry[]
  /**
   * An operator gives up: this provider, or this shared tier, need not get the upload any more. The last copy of an accepted
   * upload goes only with `losing`.
   */
  giveUp(cid: CID, name: string, losing?: boolean): Promise<'given-up' | 'unknown' | 'only-copy'>
  /** Ends what goes on behind an accepted upload. False while a client waits for its answer. */
  drop(cid: CID): Promise<boolean>
  /** Brings an upload to the providers that its record does not name, behind everything else. Resolves when the journal has it. */
  bring(record: JournalEntry): Promise<void>
  /** Stops asking providers, and writes nothing more once it resolves. Open uploads stay in the journal. */
  close(): Promise<void>
}

export function createConfirmation(options: ConfirmOptions): Confirmation {
  const { providers, spools, claims, clock, log, retrieval, random = Math.random } = options
  const quorum = createQuorum(options)
  const controller = new AbortController()
  const { signal: closing } = controller
  const working = new Set<Promise<unknown>>()

  const track = <T>(work: Promise<T>): Promise<T> => {
    const settled = work.catch(() => {}).finally(() => working.delete(settled))
    working.add(settled)
    return work
  }
  const { mostOwed: most, mostOwedBytes: mostBytes } = options
  const owed = createOwed({ retrieval, clock, log, random, closing, track, most, mostBytes })
  const deliveries = createDeliveries({ ...options, quorum, owed, random, closing, track })
  const { join, takeUpAll } = createJoining({ ...options, deliveries, quorum, closing, track })
  const { all: onTheirWay, behind } = deliveries

  async function drop(cid: CID): Promise<boolean> {
    const delivery = onTheirWay.get(nameOf(cid))
    // Its record may be on its way to the disk, and must not appear afterwards.
    if (delivery?.isOver) await Promise.allSettled(delivery.asks)
    if (!delivery || delivery.isOver) return true
    if (delivery.state !== 'accepted') return false
    await behind.drop(delivery)
    return true
  }
  const resuming = createResume({ ...options, takeUpAll, closing, track }, drop)

  const said =
    (event: string, { cid }: JournalEntry) =>
    (error: unknown) => {
      if (!closing.aborted) log('error', event, { cid, error: String(error) })
    }

  const confirmation: Confirmation = {
    async confirm(uploads) {
      if (closing.aborted) {
        for (const { id } of uploads) await spools.drop(id)
        throw closing.reason
      }
      const different = new Map<string, SpooledUpload>()
      for (const one of uploads) {
        resuming.wanted(nameOf(one.upload.cid))
        if (different.has(nameOf(one.upload.cid))) await spools.drop(one.id)
        else different.set(nameOf(one.upload.cid), one)
      }
      const together = Promise.withResolvers<unknown>()
      const others = { wait: () => together.promise, isAlone: different.size === 1 }
      const joined = [...different.values()].map((one) => join(one, others))
      together.resolve(Promise.all(joined.map(({ enough }) => enough)))
      together.promise.catch(() => {})
      const outcomes = await Promise.allSettled(joined.map(({ confirmed }) => confirmed))
      const reasons = outcomes.flatMap((one) => (one.status === 'rejected' ? [one.reason as unknown] : []))
      if (reasons.length === 0) return
      throw reasons.find((reason) => !(reason instanceof OtherFailed)) ?? ownReason(reasons[0])
    },
    resume: resuming.resume,
    open: () => [...onTheirWay.values()].map(({ entry }) => entry),
    async giveUp(cid, name, losing = false) {
      const delivery = onTheirWay.get(nameOf(cid))
      if (delivery?.entry.owed?.includes(name)) {
        await behind.writeOff(delivery, name)
        return 'given-up'
      }
      const isKnown = providers.some((one) => one.name === name) || delivery?.entry.providers[name] !== undefined
      if (!delivery || !isKnown || delivery.standing(name).state !== 'wanted') return 'unknown'
      const isWantedElsewhere = providers.some(
        (one) => one.name !== name && delivery.standing(one.name).state === 'wanted',
      )
      const isLast = !isWantedElsewhere && !isHeld(delivery.entry)
      if (isLast && !losing) return 'only-copy'
      delivery.stand(name, { ...delivery.standing(name), state: 'given-up' })
      await delivery.write()
      if (!isLast) behind.goOn(delivery)
      else if (delivery.isAwaited) track(behind.lost(delivery)).catch(said('journal.remove', delivery.entry))
      else await behind.lost(delivery)
      return 'given-up'
    },
    drop(cid) {
      resuming.unwanted(nameOf(cid))
      return drop(cid)
    },
    async bring(record) {
      if (onTheirWay.has(record.cid)) return
      const entry = { ...record, accepted: true, owed: [] }
      await deliveries.begin(spools.open(recordOf(entry), options.stores), entry).write()
    },
    async close() {
      controller.abort(new Failure('cancelled', 'this gateway stops', { source: 'ours' }))
      for (const delivery of onTheirWay.values()) delivery.rest()
      // Work that ends may begin other work, and the folder may belong to another process once this resolves.
      do await Promise.allSettled([...working, ...[...onTheirWay.values()].map((delivery) => delivery.atRest())])
      while (working.size > 0)
      // From now on the next gateway may resume them.
      for (const delivery of onTheirWay.values()) {
        if (!delivery.isOver) delivery.happened('stopped')
        claims.end(delivery.entry.id)
      }
    },
  }
  // Tracked because each of them writes the journal.
  return {
    ...confirmation,
    confirm: (uploads) => track(confirmation.confirm(uploads)),
    resume: () => track(confirmation.resume()),
    giveUp: (cid, name, losing) => track(confirmation.giveUp(cid, name, losing)),
    drop: (cid) => track(confirmation.drop(cid)),
    bring: (record) => track(confirmation.bring(record)),
  }
}

/** The reason of the upload that failed by itself, not because one that came with it failed. */
const ownReason = (reason: unknown): unknown => (reason instanceof OtherFailed ? ownReason(reason.cause) : reason)
