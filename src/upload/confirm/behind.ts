// The work on an upload after its 200: bring it to providers that do not hold it yet and to shared tiers that lack it, repair
// it when a client sends the same file again, and end it.
import type { LocalStore, Provider, Upload } from '../../../backends/pinning/contract.ts'
import { Failure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import { isHeld } from '../spool/journal.ts'
import type { Spools } from '../spool/spool.ts'
import type { Cleanup } from './cleanup.ts'
import type { Delivery } from './delivery.ts'
import type { Owed } from './owed.ts'
import type { Quorum } from './quorum.ts'
import type { Retries } from './retries.ts'

export type BehindOptions = {
  readonly providers: readonly Provider[]
  readonly stores: readonly LocalStore[]
  readonly quorum: Quorum
  readonly spools: Spools
  readonly cleanup: Cleanup
  readonly retries: Retries
  readonly owed: Owed
  readonly log: Log
  readonly onConfirmed: (upload: Upload, signal: AbortSignal, isKept: boolean) => Promise<readonly string[]>
  readonly closing: AbortSignal
  readonly track: <T>(work: Promise<T>) => Promise<T>
}

/** An upload and the id of its spool. */
export type SpooledUpload = { readonly upload: Upload; readonly id: string }

export interface Behind {
  /** Continues with providers and tiers that lack it; ends it when none does. */
  goOn(delivery: Delivery): void
  /** Call it when every provider holds the upload or was given up on, and at least one holds it. */
  settled(delivery: Delivery): void
  /** Repairs damaged blocks here when a client sends a file again that enough providers hold. */
  mend(delivery: Delivery, spooled: SpooledUpload): Promise<void>
  /** This tier will not get it any more. */
  writeOff(delivery: Delivery, tier: string): Promise<void>
  /** A repeated upload of the same file continues as another delivery. */
  replaced(delivery: Delivery): void
  /** An operator gave up on its last copy. */
  lost(delivery: Delivery): Promise<void>
  /** An operator deletes it: no provider and no tier is asked any more when this resolves. */
  drop(delivery: Delivery): Promise<void>
}

export function createBehind(options: BehindOptions): Behind {
  const { providers, quorum, spools, cleanup, retries, owed, log, onConfirmed, closing, track } = options

  const said =
    (event: string, { entry }: Delivery) =>
    (error: unknown) => {
      if (!closing.aborted) log('error', event, { cid: entry.cid, error: String(error) })
    }

  function goOn(delivery: Delivery): void {
    if (!closing.aborted && delivery.state === 'accepted')
      for (const tier of delivery.entry.owed ?? []) owe(delivery, tier)
    retries.goOn(delivery)
  }

  function owe(delivery: Delivery, tier: string): void {
    const { entry, upload } = delivery
    const isOnlyHere = !cleanup.isHeldHere(delivery)
    owed.add(entry.id, tier, {
      cid: entry.cid,
      bytes: isOnlyHere ? upload.bytes : 0,
      blocks: (signal) => cleanup.blocks(delivery, signal),
      onOver: () => void track(writeOff(delivery, tier)).catch(said('journal.write', delivery)),
    })
  }

  async function writeOff(delivery: Delivery, tier: string): Promise<void> {
    owed.drop(delivery.entry.id, tier)
    if (delivery.isOver) return
    delivery.change({ owed: (delivery.entry.owed ?? []).filter((name) => name !== tier) })
    await delivery.write()
    goOn(delivery)
  }

  /** Blocks on this disk may be damaged: a local provider counts only after it was given the file again. */
  async function mend(delivery: Delivery, { upload, id }: SpooledUpload): Promise<void> {
    try {
      const locals = quorum.holders(delivery.entry).filter(({ traits }) => traits.local)
      const attempts = await Promise.all(locals.map((one) => retries.askAgain(delivery, one, upload)))
      if (attempts.some(({ isHeld }) => !isHeld)) await delivery.write()
      if (!quorum.isEnough(delivery.entry)) throw quorum.unconfirmed(attempts)
      const owes = await onConfirmed(upload, closing, quorum.isKeptHere(delivery.entry))
      const before = delivery.entry.owed ?? []
      for (const tier of before) if (!owes.includes(tier)) owed.drop(delivery.entry.id, tier)
      if (owes.length > 0 || before.length > 0) {
        delivery.change({ owed: owes })
        await delivery.write()
      }
      await delivery.inTurn(() => spools.replace(delivery.entry.id, id))
      if (forgiveDamage(delivery)) await delivery.write()
    } finally {
      await spools.drop(id)
    }
    goOn(delivery)
  }

  /** Asks providers at once that failed because blocks were damaged here: the upload is whole now. */
  function forgiveDamage(delivery: Delivery): boolean {
    const damaged = providers.filter(({ name }) => {
      const { state, class: kind } = delivery.standing(name)
      return state === 'wanted' && kind === 'content'
    })
    for (const { name } of damaged) delivery.stand(name, { state: 'wanted', tries: delivery.standing(name).tries })
    return damaged.length > 0
  }

  return {
    goOn,
    settled(delivery) {
      if (delivery.entry.owed?.length) {
        void track(delivery.inTurn(() => cleanup.shed(delivery))).catch(said('upload.drop', delivery))
        return
      }
      delivery.happened('settled')
      const ended = track(cleanup.end(delivery)).catch(said('journal.finish', delivery))
      delivery.asks.add(ended)
    },
    mend,
    writeOff,
    replaced(delivery) {
      delivery.happened('replaced')
      for (const tier of delivery.entry.owed ?? []) owed.drop(delivery.entry.id, tier)
      void track(cleanup.end(delivery)).catch(said('journal.remove', delivery))
    },
    async lost(delivery) {
      // A client may be waiting for the same file: its result decides.
      if (delivery.isAwaited) await delivery.confirmed.catch(() => {})
      const isWanted = providers.some(({ name }) => delivery.standing(name).state === 'wanted')
      if (delivery.state !== 'accepted' || isWanted || isHeld(delivery.entry)) return
      delivery.happened('dropped')
      await cleanup.end(delivery)
    },
    async drop(delivery) {
      delivery.happened('dropped')
      for (const tier of delivery.entry.owed ?? []) owed.drop(delivery.entry.id, tier)
      delivery.stop.abort(new Failure('cancelled', 'an operator deletes this upload', { source: 'ours' }))
      await Promise.allSettled(delivery.asks)
      await cleanup.end(delivery)
    },
  }
}
