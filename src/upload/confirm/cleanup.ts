// What becomes of an upload's traces here: which pins were there before it, what is undone when it cannot be confirmed, and
// what is let go of once it is held.
import type { LocalStore, Provider } from '../../../backends/pinning/contract.ts'
import type { Block } from '../../core/block.ts'
import type { Log } from '../../core/log.ts'
import type { Claim, Claims } from '../claims.ts'
import { type Journal, recordOf } from '../spool/journal.ts'
import type { Spools } from '../spool/spool.ts'
import type { Delivery } from './delivery.ts'
import type { Quorum } from './quorum.ts'
import { meanings } from './states.ts'

export type CleanupOptions = {
  readonly providers: readonly Provider[]
  /** Of this machine: what was pinned. */
  readonly stores: readonly LocalStore[]
  readonly quorum: Quorum
  readonly journal: Journal
  readonly spools: Spools
  readonly claims: Claims
  readonly deliveries: Map<string, Delivery>
  readonly closing: AbortSignal
  readonly log: Log
}

export interface Cleanup {
  /** Read from where it waits, as long as no disk of ours holds it otherwise. */
  offer(delivery: Delivery): Promise<void>
  isHeldHere(delivery: Delivery): boolean
  /** From wherever it lies on this machine. */
  blocks(delivery: Delivery, signal: AbortSignal): AsyncIterable<Block>
  /** Its spool, where our own disk holds it otherwise. */
  shed(delivery: Delivery): Promise<void>
  heldLocally(delivery: Delivery): Promise<readonly string[]>
  /** One that cannot be confirmed. Does not reject. */
  undo(delivery: Delivery, claim: Claim | undefined): Promise<void>
  /** One that is over: its entry goes, or becomes a record, and its spool goes. */
  end(delivery: Delivery): Promise<void>
}

export function createCleanup(options: CleanupOptions): Cleanup {
  const { providers, stores, quorum, journal, spools, claims, deliveries, closing, log } = options

  const isHeldHere = ({ entry }: Delivery): boolean => quorum.holders(entry).some(({ traits }) => traits.local)

  const offer = async (delivery: Delivery): Promise<void> => {
    if (!isHeldHere(delivery)) await spools.offer(delivery.entry.id)
  }

  const shed = async (delivery: Delivery): Promise<void> => {
    if (isHeldHere(delivery)) await spools.drop(delivery.entry.id)
  }

  /** Pins of the same file from before, also from before a crash in the middle: those are not ours to undo. */
  async function heldLocally({ upload, entry }: Delivery): Promise<readonly string[]> {
    if (entry.heldBefore) return entry.heldBefore
    const locals = providers.filter(({ traits }) => traits.local)
    const states = await Promise.all(locals.map((one) => one.status(upload.cid, closing).catch(() => 'pinned')))
    return locals.filter((_, index) => states[index] === 'pinned').map(({ name }) => name)
  }

  /**
   * Nothing is kept here of what nobody was told of. What lies at a remote provider stays there: it may be pinned for
   * somebody else too, and a pin too many hurts nobody.
   */
  async function undo(delivery: Delivery, claim: Claim | undefined): Promise<void> {
    const { cid } = delivery.upload
    try {
      await claim?.leave(async () => {
        for (const { name, traits, unpin } of quorum.holders(delivery.entry))
          if (traits.local && !claim.before.includes(name)) await unpin(cid, closing)
      })
      await end(delivery)
    } catch (error) {
      log('error', 'upload.undo', { cid: delivery.entry.cid, error: String(error) })
    } finally {
      forget(delivery)
      delivery.happened('undone')
    }
  }

  /** As its state says: a record of what is held, and nothing of what is not. */
  async function end(delivery: Delivery): Promise<void> {
    const { state, entry } = delivery
    try {
      await delivery.atRest()
      if (meanings[state].journal === 'record') await journal.finish(entry)
      else await journal.remove(entry)
    } finally {
      forget(delivery)
      await spools.drop(entry.id)
      claims.end(entry.id)
    }
  }

  /** The same file may have come again, and is another delivery now. */
  function forget(delivery: Delivery): void {
    if (deliveries.get(delivery.entry.cid) === delivery) deliveries.delete(delivery.entry.cid)
  }

  const blocks = ({ entry }: Delivery, signal: AbortSignal) => spools.open(recordOf(entry), stores).blocks(signal)

  return { offer, isHeldHere, blocks, shed, heldLocally, undo, end }
}
