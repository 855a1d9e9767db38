// Cleans up after an upload: notes which local pins were there before, undoes the new ones when it cannot be confirmed, and
// drops its spool and its journal entry once it is held.
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
  /** Local stores with the blocks of pins. */
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
  /** Serves it from its spool, unless a local provider holds it. */
  offer(delivery: Delivery): Promise<void>
  isHeldHere(delivery: Delivery): boolean
  /** Its blocks are on the disk when this resolves: a crash from now on loses none. */
  persist(delivery: Delivery): Promise<void>
  /** Its blocks, from its spool or the local stores. */
  blocks(delivery: Delivery, signal: AbortSignal): AsyncIterable<Block>
  /** Drops its spool if a local provider holds it. */
  shed(delivery: Delivery): Promise<void>
  heldLocally(delivery: Delivery): Promise<readonly string[]>
  /** Undoes an upload that cannot be confirmed. Does not reject. */
  undo(delivery: Delivery, claim: Claim | undefined): Promise<void>
  /** Ends a finished upload: its journal entry is removed or becomes a record, and its spool is dropped. */
  end(delivery: Delivery): Promise<void>
}

export function createCleanup(options: CleanupOptions): Cleanup {
  const { providers, stores, quorum, journal, spools, claims, deliveries, closing, log } = options

  const isHeldHere = ({ entry }: Delivery): boolean => quorum.holders(entry).some(({ traits }) => traits.local)

  const offer = async (delivery: Delivery): Promise<void> => {
    if (!isHeldHere(delivery)) await spools.offer(delivery.entry.id)
  }

  const persist = (delivery: Delivery): Promise<void> => spools.persist(delivery.entry.id)

  const shed = async (delivery: Delivery): Promise<void> => {
    if (isHeldHere(delivery)) await spools.drop(delivery.entry.id)
  }

  /** Local pins of the file that are older than this upload, also than a crash during it: they must not be undone. */
  async function heldLocally({ upload, entry }: Delivery): Promise<readonly string[]> {
    if (entry.heldBefore) return entry.heldBefore
    const locals = providers.filter(({ traits }) => traits.local)
    const states = await Promise.all(locals.map((one) => one.status(upload.cid, closing).catch(() => 'pinned')))
    return locals.filter((_, index) => states[index] === 'pinned').map(({ name }) => name)
  }

  /**
   * Removes an upload from this machine whose client got no 200. A pin at a remote provider stays: another client may rely on
   * it, and a pin too many does no harm.
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

  /** Its state decides whether the journal keeps a record (held) or nothing. */
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

  /** A repeated upload may have replaced it by another delivery, which stays. */
  function forget(delivery: Delivery): void {
    if (deliveries.get(delivery.entry.cid) === delivery) deliveries.delete(delivery.entry.cid)
  }

  const blocks = ({ entry }: Delivery, signal: AbortSignal) => spools.open(recordOf(entry), stores).blocks(signal)

  return { offer, persist, isHeldHere, blocks, shed, heldLocally, undo, end }
}
