// What becomes of an upload's traces here: which pins were there before it, what is undone when it cannot be confirmed, and
// what is let go of once it is held.
import type { LocalStore, Provider } from '../../../backends/pinning/contract.ts'
import type { Block } from '../../core/block.ts'
import type { Log } from '../../core/log.ts'
import type { Claim, Claims } from '../claims.ts'
import { isHeld, type Journal, nameOf, recordOf } from '../spool/journal.ts'
import type { Spools } from '../spool/spool.ts'
import type { Flight } from './flight.ts'
import type { Quorum } from './quorum.ts'

export type TraceOptions = {
  readonly providers: readonly Provider[]
  /** Of this machine: what was pinned. */
  readonly stores: readonly LocalStore[]
  readonly quorum: Quorum
  readonly journal: Journal
  readonly spools: Spools
  readonly claims: Claims
  readonly flights: Map<string, Flight>
  readonly closing: AbortSignal
  readonly log: Log
}

export interface Traces {
  /** Read from where it waits, as long as no disk of ours holds it otherwise. */
  offer(flight: Flight): Promise<void>
  isHeldHere(flight: Flight): boolean
  /** From wherever it lies on this machine. */
  blocks(flight: Flight, signal: AbortSignal): AsyncIterable<Block>
  /** Its spool, where our own disk holds it otherwise. */
  shed(flight: Flight): Promise<void>
  heldLocally(flight: Flight): Promise<readonly string[]>
  undo(flight: Flight, claim: Claim | undefined): Promise<void>
  /** Its entry and its spool, whatever is said of it. */
  remove(flight: Pick<Flight, 'entry' | 'written'>): Promise<void>
  finish(flight: Flight): Promise<void>
}

export function createTraces(options: TraceOptions): Traces {
  const { providers, stores, quorum, journal, spools, claims, flights, closing, log } = options

  const isHeldHere = ({ entry }: Flight): boolean => quorum.holders(entry).some(({ traits }) => traits.local)

  const offer = async (flight: Flight): Promise<void> => {
    if (!isHeldHere(flight)) await spools.offer(flight.entry.id)
  }

  const shed = async (flight: Flight): Promise<void> => {
    if (isHeldHere(flight)) await spools.drop(flight.entry.id)
  }

  /** Pins of the same file from before, also from before a crash in the middle: those are not ours to undo. */
  async function heldLocally({ upload, entry }: Flight): Promise<readonly string[]> {
    if (entry.heldBefore) return entry.heldBefore
    const locals = providers.filter(({ traits }) => traits.local)
    const states = await Promise.all(locals.map((one) => one.status(upload.cid, closing).catch(() => 'pinned')))
    return locals.filter((_, index) => states[index] === 'pinned').map(({ name }) => name)
  }

  /**
   * Nothing is kept here of what nobody was told of. What lies at a remote provider stays there: it may be pinned for
   * somebody else too, and a pin too many hurts nobody.
   */
  async function undo(flight: Flight, claim: Claim | undefined): Promise<void> {
    flight.over = true
    const { cid } = flight.upload
    try {
      await claim?.leave(async () => {
        for (const one of quorum.holders(flight.entry))
          if (one.traits.local && !claim.before.includes(one.name)) await one.unpin(cid, closing)
      })
      await remove(flight)
    } catch (error) {
      log('error', 'upload.undo', { cid: flight.entry.cid, error: String(error) })
    } finally {
      if (flights.get(nameOf(cid)) === flight) flights.delete(nameOf(cid))
    }
  }

  async function remove({ entry, written }: Pick<Flight, 'entry' | 'written'>): Promise<void> {
    try {
      await written
      await journal.remove(entry)
    } finally {
      await spools.drop(entry.id)
      claims.end(entry.id)
    }
  }

  async function finish(flight: Flight): Promise<void> {
    flight.over = true
    for (const cancel of flight.timers.values()) cancel()
    try {
      await flight.written
      // A record says that it is held. What an operator lets go, nobody holds.
      if (isHeld(flight.entry)) await journal.finish(flight.entry)
      else await journal.remove(flight.entry)
    } finally {
      if (flights.get(nameOf(flight.upload.cid)) === flight) flights.delete(nameOf(flight.upload.cid))
      await spools.drop(flight.entry.id)
      claims.end(flight.entry.id)
    }
  }

  const blocks = ({ entry }: Flight, signal: AbortSignal) => spools.open(recordOf(entry), stores).blocks(signal)

  return { offer, isHeldHere, blocks, shed, heldLocally, undo, remove, finish }
}
