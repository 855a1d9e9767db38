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
import { type Entry, type Journal, nameOf } from './journal.ts'
import { createQuorum, type QuorumOptions } from './quorum.ts'
import { askEverybody } from './round.ts'
import type { SpoolRecord, Spools } from './spool.ts'

export type ConfirmOptions = QuorumOptions & {
  readonly journal: Journal
  readonly spools: Spools
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
  /** Takes up what the last process left. */
  resume(): Promise<void>
  open(): readonly Entry[]
  /** An operator's word: this provider need not hold it any more. */
  giveUp(cid: CID, provider: string): Promise<boolean>
  /** Stops asking. What is open stays in the journal. */
  close(): Promise<void>
}

export type Spooled = { readonly upload: Upload; readonly id: string }

/** Of an upload that would have counted, had it come alone. */
class OtherFailed extends Error {}

export function createConfirmation(options: ConfirmOptions): Confirmation {
  const { providers, journal, spools, clock, log } = options
  const quorum = createQuorum(options)
  const flights = new Map<string, Flight>()
  const closing = new AbortController()
  /** Uploads that came before the journal was read: they are in it, and not to be taken up. */
  const begunHere = new Set<string>()
  let isTakenUp = false
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
    onSettled: (flight) => void track(finish(flight)).catch(said('journal.finish', flight)),
  })

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
    await note(flight, {})
    const before = await heldLocally(flight)
    const onClose = () => flight.stop.abort(closing.signal.reason)
    closing.signal.addEventListener('abort', onClose, { once: true })
    try {
      const attempts = await askOnce(flight)
      closing.signal.throwIfAborted()
      if (!quorum.isEnough(flight.entry) && !quorum.canQueue(attempts)) throw quorum.unconfirmed(flight.entry, attempts)
      flight.enough.resolve()
      await flight.others().catch((cause: unknown) => {
        throw new OtherFailed('one that it came with cannot be confirmed', { cause })
      })
      closing.signal.throwIfAborted()
      await offer(flight)
      await options.onConfirmed(flight.upload, closing.signal)
      // Where everybody holds it, its record is written as a whole; there is nothing to be taken up after a crash.
      if (quorum.holders(flight.entry).length < providers.length) await note(flight, { accepted: true })
      else flight.entry = { ...flight.entry, accepted: true }
    } catch (error) {
      flight.stop.abort(new Failure('cancelled', 'the upload cannot be confirmed', { source: 'ours' }))
      await Promise.allSettled(flight.asks)
      // A process that ends leaves the work to the next one.
      if (!closing.signal.aborted) await undo(flight, before)
      throw error
    } finally {
      void Promise.allSettled(flight.asks).then(() => closing.signal.removeEventListener('abort', onClose))
    }
  }

  /** Read from where it waits, as long as no disk of ours holds it otherwise. */
  const offer = async (flight: Flight): Promise<void> => {
    if (!quorum.holders(flight.entry).some(({ traits }) => traits.local)) await spools.offer(flight.entry.id)
  }

  /** Pins of the same file from before: those are not ours to undo. */
  async function heldLocally({ upload }: Flight): Promise<ReadonlySet<string>> {
    const locals = providers.filter(({ traits }) => traits.local)
    const states = await Promise.all(locals.map((one) => one.status(upload.cid, closing.signal).catch(() => 'pinned')))
    return new Set(locals.filter((_, index) => states[index] === 'pinned').map(({ name }) => name))
  }

  /**
   * Nothing is kept here of what nobody was told of. What lies at a remote provider stays there: it may be pinned for
   * somebody else too, and a pin too many hurts nobody.
   */
  async function undo(flight: Flight, before: ReadonlySet<string>): Promise<void> {
    flight.over = true
    const { cid } = flight.upload
    try {
      for (const provider of quorum.holders(flight.entry))
        if (provider.traits.local && !before.has(provider.name)) await provider.unpin(cid, closing.signal)
      await flight.written
      await journal.remove(flight.entry)
      await spools.drop(flight.entry.id)
    } catch (error) {
      log('error', 'upload.undo', { cid: flight.entry.cid, error: String(error) })
    } finally {
      flights.delete(nameOf(cid))
    }
  }

  function begin(upload: Upload, entry: Entry, others: Flight['others'] = async () => {}): Flight {
    const flight: Flight = {
      upload,
      entry,
      others,
      enough: Promise.withResolvers(),
      stop: new AbortController(),
      asks: [],
      asking: new Set(),
      timers: new Map(),
      over: false,
      written: Promise.resolve(),
      confirmed: Promise.resolve().then(() => (entry.accepted ? offer(flight) : fly(flight))),
    }
    flights.set(nameOf(upload.cid), flight)
    flight.enough.promise.catch(() => {})
    track(flight.confirmed).then(
      () => asks.goOn(flight),
      (error: unknown) => flight.enough.reject(error),
    )
    return flight
  }

  /** One that goes with others, or the same file that is under way already. Resolves when enough hold it. */
  function join(
    { upload, id }: Spooled,
    others: Flight['others'],
  ): { enough: Promise<void>; confirmed: Promise<void> } {
    const running = flights.get(nameOf(upload.cid))
    if (running) {
      const settled = running.confirmed.then(
        async () => {
          await spools.drop(id)
          return { enough: Promise.resolve(), confirmed: Promise.resolve() }
        },
        async (error: unknown) => {
          // What that one came with is no reason for this one to fail: it begins anew, with the bytes it brought. It does
          // not wait for yet another one, so that no two ever wait for each other.
          if (error instanceof OtherFailed && !flights.has(nameOf(upload.cid))) return join({ upload, id }, others)
          await spools.drop(id)
          throw error
        },
      )
      return { enough: settled.then((one) => one.enough), confirmed: settled.then((one) => one.confirmed) }
    }
    const { cid, profile, bytes, carBytes } = upload
    const at = new Date(clock.now()).toISOString()
    if (!isTakenUp) begunHere.add(id)
    const entry = { id, cid: nameOf(cid), profile, bytes, carBytes, at, accepted: false, providers: {} }
    const { enough, confirmed } = begin(upload, entry, others)
    return { enough: enough.promise, confirmed }
  }

  /** What another process, or the gateway before this one, left. */
  function takeUp(entry: Entry): void {
    const goesOn = () => void begin(spools.open(recordOf(entry)), entry).confirmed.catch(() => {})
    const running = flights.get(entry.cid)
    if (!running) return goesOn()
    // The same file came anew: where that one counts, it is brought to every provider.
    const forget = () => journal.remove(entry).then(() => spools.drop(entry.id))
    track(running.confirmed.then(forget, goesOn)).catch(said('journal.take-up', running))
  }

  const said = (event: string, flight: Flight) => (error: unknown) => {
    if (!closing.signal.aborted) log('error', event, { cid: flight.entry.cid, error: String(error) })
  }

  async function finish(flight: Flight): Promise<void> {
    flight.over = true
    for (const cancel of flight.timers.values()) cancel()
    await flight.written
    await journal.finish(flight.entry)
    flights.delete(nameOf(flight.upload.cid))
    await spools.drop(flight.entry.id)
  }

  return {
    async confirm(uploads) {
      const different = new Map<string, Spooled>()
      for (const one of uploads) {
        if (different.has(nameOf(one.upload.cid))) await spools.drop(one.id)
        else different.set(nameOf(one.upload.cid), one)
      }
      const all = Promise.withResolvers<unknown>()
      const joined = [...different.values()].map((one) => join(one, () => all.promise))
      all.resolve(Promise.all(joined.map(({ enough }) => enough)))
      all.promise.catch(() => {})
      const outcomes = await Promise.allSettled(joined.map(({ confirmed }) => confirmed))
      const reasons = outcomes.flatMap((one) => (one.status === 'rejected' ? [one.reason as unknown] : []))
      if (reasons.length === 0) return
      const own = reasons.find((reason) => !(reason instanceof OtherFailed)) ?? reasons[0]
      throw own instanceof OtherFailed ? own.cause : own
    },
    async resume() {
      const { entries, ids } = await journal.load().catch((error: unknown) => {
        throw diskFailure(error, 'read the journal')
      })
      await spools.sweep(ids)
      for (const entry of entries) if (!begunHere.has(entry.id)) takeUp(entry)
      isTakenUp = true
      begunHere.clear()
    },
    open: () => [...flights.values()].map(({ entry }) => entry),
    async giveUp(cid, name) {
      const flight = flights.get(nameOf(cid))
      const isKnown = providers.some((one) => one.name === name) || flight?.entry.providers[name] !== undefined
      if (!flight || !isKnown || standing(flight, name).state !== 'wanted') return false
      stand(flight, name, { ...standing(flight, name), state: 'given-up' })
      await note(flight, {})
      asks.goOn(flight)
      return true
    },
    async close() {
      closing.abort(new Failure('cancelled', 'this gateway stops', { source: 'ours' }))
      for (const flight of flights.values()) for (const cancel of flight.timers.values()) cancel()
      await Promise.allSettled([...working])
      await Promise.allSettled([...flights.values()].map(({ written }) => written))
    },
  }
}

const dagPb = 0x70
const sha256 = 0x12

function recordOf({ id, cid, profile, bytes, carBytes }: Entry): SpoolRecord {
  const parsed = CID.parse(cid)
  const isV0 = profile === 'unixfs-v0-2015' && parsed.code === dagPb && parsed.multihash.code === sha256
  return { id, cid: isV0 ? parsed.toV0() : parsed, profile, bytes, carBytes }
}
