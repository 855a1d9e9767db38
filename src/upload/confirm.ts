// Providers are asked side by side. An upload counts when `confirm` of them hold it; the others go on behind it until they
// hold it too, through restarts, or until an operator gives up. What cannot be confirmed is undone, and said who failed.
import { CID } from 'multiformats/cid'
import type { Upload } from '../../backends/pinning/contract.ts'
import type { Clock } from '../clock.ts'
import { Failure } from '../failure.ts'
import type { Log } from '../observe/log.ts'
import type { Attempt } from './attempt.ts'
import { diskFailure } from './failures.ts'
import { type Asks, createAsks, type Flight, stand, standing } from './flight.ts'
import { type Entry, isHeld, type Journal, nameOf } from './journal.ts'
import { createQuorum, type QuorumOptions } from './quorum.ts'
import { askEverybody } from './round.ts'
import type { Claim, Folder } from './shared.ts'
import type { SpoolRecord, Spools } from './spool.ts'
import { createTraces } from './traces.ts'

export type ConfirmOptions = QuorumOptions & {
  readonly journal: Journal
  readonly spools: Spools
  readonly folder: Folder
  readonly clock: Clock
  readonly log: Log
  /** One attempt at one provider: so much, and more for more bytes. */
  readonly pinMs: number
  readonly random?: () => number
  /** Enough hold it; what is to be done before anybody is told. Does not reject. */
  readonly onConfirmed: (upload: Upload, signal: AbortSignal) => Promise<void>
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
   * An operator's word: this provider need not hold it any more. The last copy of what somebody was told of goes only
   * where that is wanted (`losing`).
   */
  giveUp(cid: CID, provider: string, losing?: boolean): Promise<'given-up' | 'unknown' | 'only-copy'>
  /** Stops asking. What is open stays in the journal. */
  close(): Promise<void>
}

export type Spooled = { readonly upload: Upload; readonly id: string }

/** Of an upload that would have counted, had it come alone. */
class OtherFailed extends Error {}

export function createConfirmation(options: ConfirmOptions): Confirmation {
  const { providers, journal, spools, folder, clock, log } = options
  const quorum = createQuorum(options)
  const flights = new Map<string, Flight>()
  const closing = new AbortController()
  const working = new Set<Promise<unknown>>()

  const track = <T>(work: Promise<T>): Promise<T> => {
    const settled = work.catch(() => {}).finally(() => working.delete(settled))
    working.add(settled)
    return work
  }
  const asks: Asks = createAsks({
    providers,
    clock,
    log,
    pinMs: options.pinMs,
    random: options.random ?? Math.random,
    closing: closing.signal,
    track,
    note: (flight) => note(flight, {}),
    onSettled: (flight) => void track(traces.finish(flight)).catch(said('journal.finish', flight)),
  })

  const traces = createTraces({ providers, quorum, journal, spools, folder, flights, closing: closing.signal, log })

  function note(flight: Flight, change: Partial<Entry>): Promise<void> {
    flight.entry = { ...flight.entry, ...change }
    const turn = flight.written
      .then(() => (flight.over ? undefined : journal.write(flight.entry)))
      .catch((error: unknown) => {
        throw diskFailure(error, 'write the journal')
      })
    flight.written = turn.catch((error: unknown) =>
      log('error', 'journal.write', { cid: flight.entry.cid, error: String(error) }),
    )
    return turn
  }

  function askOnce(flight: Flight): Promise<readonly Attempt[]> {
    const { stop } = flight
    return askEverybody({
      providers,
      quorum,
      entry: () => flight.entry,
      ask: async (provider) => {
        const attempt = await asks.ask(flight, provider, stop.signal)
        if (!attempt.isHeld) {
          const { class: kind, why } = attempt
          log('warn', 'upload.provider', { cid: flight.entry.cid, provider: provider.name, class: kind, why })
        }
        return attempt
      },
      onBegun: (work) => flight.asks.push(track(work)),
    })
  }

  async function fly(flight: Flight): Promise<void> {
    closing.signal.throwIfAborted()
    // Who was told once stays told: what comes anew for it may fail, and undoes nothing.
    const wasAccepted = flight.entry.accepted
    const onClose = () => flight.stop.abort(closing.signal.reason)
    closing.signal.addEventListener('abort', onClose, { once: true })
    let claim: Claim | undefined
    try {
      claim = await folder.claim(flight.entry.cid, () => traces.heldLocally(flight))
      await note(flight, { heldBefore: claim.before })
      const attempts = await askOnce(flight)
      closing.signal.throwIfAborted()
      if (!quorum.isEnough(flight.entry) && !quorum.canQueue(attempts)) throw quorum.unconfirmed(flight.entry, attempts)
      flight.enough.resolve()
      await flight.others().catch((cause: unknown) => {
        throw new OtherFailed('one that it came with cannot be confirmed', { cause })
      })
      closing.signal.throwIfAborted()
      await traces.offer(flight)
      await options.onConfirmed(flight.upload, closing.signal)
      // Where everybody holds it, its record is written as a whole; there is nothing to be taken up after a crash.
      if (quorum.holders(flight.entry).length < providers.length) await note(flight, { accepted: true })
      else flight.entry = { ...flight.entry, accepted: true }
      claim.keep()
    } catch (error) {
      if (!wasAccepted) {
        flight.stop.abort(new Failure('cancelled', 'the upload cannot be confirmed', { source: 'ours' }))
        await Promise.allSettled(flight.asks)
        // A process that ends leaves the work to the next one.
        if (!closing.signal.aborted) await traces.undo(flight, claim)
      }
      throw error
    } finally {
      await claim?.leave()
      flight.isConfirming = false
      void Promise.allSettled(flight.asks).then(() => closing.signal.removeEventListener('abort', onClose))
    }
  }

  /** `isAsked`: somebody waits for it to be confirmed. */
  function begin(
    upload: Upload,
    entry: Entry,
    { others = async () => {}, isAsked = !entry.accepted }: { others?: Flight['others']; isAsked?: boolean } = {},
  ): Flight {
    const flight: Flight = {
      upload,
      entry,
      others,
      enough: Promise.withResolvers(),
      stop: new AbortController(),
      asks: [],
      asking: new Set(),
      timers: new Map(),
      isConfirming: isAsked,
      over: false,
      written: Promise.resolve(),
      confirmed: Promise.resolve().then(() => (isAsked ? fly(flight) : traces.offer(flight))),
    }
    folder.begin(entry.id)
    flights.set(nameOf(upload.cid), flight)
    flight.enough.promise.catch(() => {})
    track(flight.confirmed).then(
      () => asks.goOn(flight),
      (error: unknown) => {
        flight.enough.reject(error)
        asks.goOn(flight)
      },
    )
    return flight
  }

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
    if (running && !running.isConfirming) {
      if (!quorum.isEnough(running.entry)) return inTime(anew(running, { upload, id }, others))
      const mended = track(mend(running, { upload, id }))
      return { enough: mended, confirmed: mended }
    }
    if (running)
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
    folder.begin(id)
    try {
      await journal.write(entry)
    } catch (error) {
      folder.end(id)
      await spools.drop(id)
      throw diskFailure(error, 'write the journal')
    }
    if (flights.get(entry.cid) !== old) {
      await journal.remove(entry)
      folder.end(id)
      return join({ upload, id }, others)
    }
    old.over = true
    for (const cancel of old.timers.values()) cancel()
    const { enough, confirmed } = begin(upload, { ...old.entry, id }, { others: others.wait, isAsked: true })
    track(traces.remove(old)).catch(said('journal.remove', old))
    return { enough: enough.promise, confirmed }
  }

  /**
   * The same file again, which is held by enough and waits for others. What lies on this disk may have rotted: what comes
   * takes its place, and a provider of this machine is not believed that it holds it until it was given it anew.
   */
  async function mend(flight: Flight, { upload, id }: Spooled): Promise<void> {
    try {
      const locals = quorum.holders(flight.entry).filter(({ traits }) => traits.local)
      const attempts = await Promise.all(locals.map((one) => asks.askAgain(flight, one, upload)))
      if (attempts.some(({ isHeld }) => !isHeld)) await note(flight, {})
      if (!quorum.isEnough(flight.entry)) throw quorum.unconfirmed(flight.entry, attempts)
      await options.onConfirmed(upload, closing.signal)
      await spools.replace(flight.entry.id, id)
    } finally {
      await spools.drop(id)
    }
    asks.goOn(flight)
  }

  /** What another process, or the gateway before this one, left. */
  function takeUp(entry: Entry): Promise<void> {
    const goesOn = () => begin(spools.open(recordOf(entry)), entry).confirmed.catch(() => {})
    const running = flights.get(entry.cid)
    if (!running) return goesOn()
    // The same file came anew: where that one counts, it is brought to every provider.
    const forget = () => journal.remove(entry).then(() => spools.drop(entry.id))
    return track(running.confirmed.then(forget, goesOn)).catch(said('journal.take-up', running))
  }

  const said = (event: string, flight: Flight) => (error: unknown) => {
    if (!closing.signal.aborted) log('error', event, { cid: flight.entry.cid, error: String(error) })
  }

  return {
    async confirm(uploads) {
      if (closing.signal.aborted) {
        for (const { id } of uploads) await spools.drop(id)
        throw closing.signal.reason
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
      const entries = await folder.abandoned(async () => {
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
      else asks.goOn(flight)
      return 'given-up'
    },
    async close() {
      closing.abort(new Failure('cancelled', 'this gateway stops', { source: 'ours' }))
      for (const flight of flights.values()) for (const cancel of flight.timers.values()) cancel()
      await Promise.allSettled([...working])
      await Promise.allSettled([...flights.values()].map(({ written }) => written))
      // From now on they are whoever's takes them up.
      for (const { entry } of flights.values()) folder.end(entry.id)
    },
  }
}

/** Of the one that failed for a reason of its own. */
const ownReason = (reason: unknown): unknown => (reason instanceof OtherFailed ? ownReason(reason.cause) : reason)

const dagPb = 0x70
const sha256 = 0x12

function recordOf({ id, cid, profile, bytes, carBytes }: Entry): SpoolRecord {
  const parsed = CID.parse(cid)
  const isV0 = profile === 'unixfs-v0-2015' && parsed.code === dagPb && parsed.multihash.code === sha256
  return { id, cid: isV0 ? parsed.toV0() : parsed, profile, bytes, carBytes }
}
