// Uploads that were received become uploads that count. Here they meet: several that come together count together or not at
// all, the same file twice is one, and what an earlier process left is taken up.
import type { CID } from 'multiformats/cid'
import { Failure } from '../../core/failure.ts'
import { diskFailure } from '../failures.ts'
import { type Entry, isHeld, nameOf, recordOf } from '../spool/journal.ts'
import { type Flight, stand, standing } from './flight.ts'
import { createFlying, type FlyingOptions, OtherFailed, type Spooled } from './flying.ts'
import { createOwed, type OwedOptions } from './owed.ts'
import { createQuorum, type QuorumOptions } from './quorum.ts'

export type ConfirmOptions = QuorumOptions &
  Omit<FlyingOptions, 'quorum' | 'owed' | 'closing' | 'track' | 'random'> & {
    readonly random?: () => number
    readonly retrieval: OwedOptions['retrieval']
    /** Uploads that a shared tier may lack, and bytes of them that lie here for nothing else. */
    readonly mostOwed: number
    readonly mostOwedBytes: number
  }

export interface Confirmation {
  /**
   * Resolves when all of them count. Rejects with a Failure (facts: `outcomes`) when one cannot; then nothing of any is
   * kept, but for what was here before. Takes the spools over. The same file twice at once is asked about once.
   */
  confirm(uploads: readonly Spooled[]): Promise<void>
  /** Takes up what the last process left. Resolves when what was accepted can be read. */
  resume(): Promise<void>
  open(): readonly Entry[]
  /**
   * An operator's word: this provider need not hold it any more, or this shared tier need not have it. The last copy of what
   * somebody was told of goes only where that is wanted (`losing`).
   */
  giveUp(cid: CID, name: string, losing?: boolean): Promise<'given-up' | 'unknown' | 'only-copy'>
  /** Stops asking. What is open stays in the journal. */
  close(): Promise<void>
}

export function createConfirmation(options: ConfirmOptions): Confirmation {
  const { providers, journal, spools, claims, clock, log, retrieval, random = Math.random } = options
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
  const flying = createFlying({ ...options, quorum, owed, random, closing, track })
  const { flights, traces, begin, note } = flying

  /** Those that come with it. */
  type Others = { readonly wait: Flight['others']; readonly isAlone: boolean }
  type Joined = { enough: Promise<void>; confirmed: Promise<void> }

  const inTime = (work: Promise<Joined>): Joined => ({
    enough: work.then((one) => one.enough),
    confirmed: work.then((one) => one.confirmed),
  })

  /** One that goes with others, or the same file that is under way already. Resolves when enough hold it. */
  function join({ upload, id }: Spooled, others: Others): Joined {
    const running = flights.get(nameOf(upload.cid))
    // One that is over is everywhere, and only its record is still being written.
    if (running && !running.isConfirming && !running.over) {
      if (!quorum.isEnough(running.entry)) return inTime(anew(running, { upload, id }, others))
      const mended = track(flying.mend(running, { upload, id }))
      return { enough: mended, confirmed: mended }
    }
    if (running?.isConfirming)
      return inTime(
        running.confirmed.then(
          async () => {
            await spools.drop(id)
            return { enough: Promise.resolve(), confirmed: Promise.resolve() }
          },
          async (error: unknown) => {
            // What that one came with is no reason for this one to fail: it begins anew, with the bytes it brought. It waits
            // for yet another one only where nobody waits for it, so that no two ever wait for each other.
            const mayWait = others.isAlone || !flights.has(nameOf(upload.cid))
            if (error instanceof OtherFailed && mayWait) return join({ upload, id }, others)
            await spools.drop(id)
            throw error
          },
        ),
      )
    const { cid, profile, bytes, carBytes } = upload
    const at = new Date(clock.now()).toISOString()
    const entry = { id, cid: nameOf(cid), profile, bytes, carBytes, at, accepted: false, providers: {} }
    const { enough, confirmed } = begin(upload, entry, { others: others.wait })
    return { enough: enough.promise, confirmed }
  }

  /**
   * The same file again, of which somebody was told and which is not where it has to be now: who brings it waits for that,
   * and what they bring takes the place of what waited here. It may have been damaged.
   */
  async function anew(old: Flight, { upload, id }: Spooled, others: Others): Promise<Joined> {
    const entry = { ...old.entry, id }
    claims.begin(id)
    try {
      await journal.write(entry)
    } catch (error) {
      claims.end(id)
      await spools.drop(id)
      throw diskFailure(error, 'write the journal')
    }
    if (flights.get(entry.cid) !== old) {
      await journal.remove(entry)
      claims.end(id)
      return join({ upload, id }, others)
    }
    old.over = true
    for (const cancel of old.timers.values()) cancel()
    for (const tier of old.entry.owed ?? []) owed.drop(old.entry.id, tier)
    const { enough, confirmed } = begin(upload, { ...old.entry, id }, { others: others.wait, isAsked: true })
    track(traces.remove(old)).catch(said('journal.remove', old))
    return { enough: enough.promise, confirmed }
  }

  /** What another process, or the gateway before this one, left. */
  function takeUp(entry: Entry): Promise<void> {
    const goesOn = () => begin(spools.open(recordOf(entry), options.stores), entry).confirmed.catch(() => {})
    const running = flights.get(entry.cid)
    if (!running) return goesOn()
    // The same file came anew: where that one counts, it is brought to every provider.
    const forget = () => journal.remove(entry).then(() => spools.drop(entry.id))
    return track(running.confirmed.then(forget, goesOn)).catch(said('journal.take-up', running))
  }

  const said = (event: string, flight: Flight) => (error: unknown) => {
    if (!closing.aborted) log('error', event, { cid: flight.entry.cid, error: String(error) })
  }

  return {
    async confirm(uploads) {
      if (closing.aborted) {
        for (const { id } of uploads) await spools.drop(id)
        throw closing.reason
      }
      const different = new Map<string, Spooled>()
      for (const one of uploads) {
        if (different.has(nameOf(one.upload.cid))) await spools.drop(one.id)
        else different.set(nameOf(one.upload.cid), one)
      }
      const all = Promise.withResolvers<unknown>()
      const others = { wait: () => all.promise, isAlone: different.size === 1 }
      const joined = [...different.values()].map((one) => join(one, others))
      all.resolve(Promise.all(joined.map(({ enough }) => enough)))
      all.promise.catch(() => {})
      const outcomes = await Promise.allSettled(joined.map(({ confirmed }) => confirmed))
      const reasons = outcomes.flatMap((one) => (one.status === 'rejected' ? [one.reason as unknown] : []))
      if (reasons.length === 0) return
      throw reasons.find((reason) => !(reason instanceof OtherFailed)) ?? ownReason(reasons[0])
    },
    async resume() {
      const entries = await claims.abandoned(async () => {
        const loaded = await journal.load().catch((error: unknown) => {
          throw diskFailure(error, 'read the journal')
        })
        await spools.sweep(loaded.ids)
        return loaded.entries
      })
      const takenUp = entries.map((entry) => ({ isAccepted: entry.accepted, done: takeUp(entry) }))
      // Of the others nobody was told.
      await Promise.all(takenUp.filter(({ isAccepted }) => isAccepted).map(({ done }) => done))
    },
    open: () => [...flights.values()].map(({ entry }) => entry),
    async giveUp(cid, name, losing = false) {
      const flight = flights.get(nameOf(cid))
      if (flight?.entry.owed?.includes(name)) {
        await flying.writeOff(flight, name)
        return 'given-up'
      }
      const isKnown = providers.some((one) => one.name === name) || flight?.entry.providers[name] !== undefined
      if (!flight || !isKnown || standing(flight, name).state !== 'wanted') return 'unknown'
      const isWantedElsewhere = providers.some(
        (one) => one.name !== name && standing(flight, one.name).state === 'wanted',
      )
      const isLast = !isWantedElsewhere && !isHeld(flight.entry)
      if (isLast && !losing) return 'only-copy'
      stand(flight, name, { ...standing(flight, name), state: 'given-up' })
      await note(flight, {})
      if (isLast && flight.entry.accepted) await traces.finish(flight)
      else flying.goOn(flight)
      return 'given-up'
    },
    async close() {
      controller.abort(new Failure('cancelled', 'this gateway stops', { source: 'ours' }))
      for (const flight of flights.values()) for (const cancel of flight.timers.values()) cancel()
      await Promise.allSettled([...working])
      await Promise.allSettled([...flights.values()].map(({ written }) => written))
      // From now on they are whoever's takes them up.
      for (const { entry } of flights.values()) claims.end(entry.id)
    },
  }
}

/** Of the one that failed for a reason of its own. */
const ownReason = (reason: unknown): unknown => (reason instanceof OtherFailed ? ownReason(reason.cause) : reason)
