// Providers are asked side by side. An upload counts when `confirm` of them hold it; the others go on behind it until they
// hold it too, through restarts, or until an operator gives up. What cannot be confirmed is undone, and said who failed.
import { CID } from 'multiformats/cid'
import type { Provider, Upload } from '../../backends/pinning/contract.ts'
import type { Clock } from '../clock.ts'
import { Failure } from '../failure.ts'
import type { Log } from '../observe/log.ts'
import { type Attempt, attemptPin, nextTryMs } from './attempt.ts'
import { type Entry, type Journal, nameOf, type Standing } from './journal.ts'
import { createSlots, type Slots } from './slots.ts'
import type { SpoolRecord, Spools } from './spool.ts'

export type ConfirmOptions = {
  readonly providers: readonly Provider[]
  readonly confirm: number | 'all'
  /** Too few, but what failed may pass: keep it, say yes, and go on. */
  readonly queue: boolean
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

type Flight = {
  readonly upload: Upload
  readonly confirmed: Promise<void>
  /** Enough hold it, whatever becomes of those it came with. */
  readonly enough: PromiseWithResolvers<void>
  /** Those it came with: resolves when enough hold each of them. */
  readonly others: () => Promise<unknown>
  /** Ends what is asked of providers. */
  readonly stop: AbortController
  readonly asks: Promise<unknown>[]
  entry: Entry
  /** Providers that are being asked just now. */
  readonly asking: Set<string>
  readonly timers: Map<string, () => void>
  over: boolean
  /** Writes of the journal take turns. */
  written: Promise<unknown>
}

const asksAtOnce = 16

/** Of an upload that would have counted, had it come alone. */
class OtherFailed extends Error {}

export function createConfirmation(options: ConfirmOptions): Confirmation {
  const { providers, journal, spools, clock, log, random = Math.random } = options
  const needed = options.confirm === 'all' ? providers.length : options.confirm
  const flights = new Map<string, Flight>()
  const closing = new AbortController()
  /** Uploads that came before the journal was read: they are in it, and not to be taken up. */
  const begunHere = new Set<string>()
  let isTakenUp = false
  const working = new Set<Promise<unknown>>()
  const slots = new Map<string, Slots>(providers.map(({ name }) => [name, createSlots(asksAtOnce)]))

  const track = <T>(work: Promise<T>): Promise<T> => {
    const settled = work.catch(() => {}).finally(() => working.delete(settled))
    working.add(settled)
    return work
  }
  const standing = (flight: Flight, name: string): Standing =>
    flight.entry.providers[name] ?? { state: 'wanted', tries: 0 }

  function note(flight: Flight, change: Partial<Entry>): Promise<void> {
    flight.entry = { ...flight.entry, ...change }
    const turn = flight.written.then(() => (flight.over ? undefined : journal.write(flight.entry)))
    flight.written = turn.catch((error: unknown) =>
      log('error', 'journal.write', { cid: flight.entry.cid, error: String(error) }),
    )
    return turn
  }

  const stand = (flight: Flight, name: string, now: Standing): void => {
    flight.entry = { ...flight.entry, providers: { ...flight.entry.providers, [name]: now } }
  }

  async function ask(flight: Flight, provider: Provider, signal: AbortSignal): Promise<Attempt> {
    const { name } = provider
    const tries = standing(flight, name).tries + 1
    flight.asking.add(name)
    try {
      const pin = () => attemptPin(provider, flight.upload, { ms: options.pinMs, clock, signal })
      const attempt = await (slots.get(name) as Slots).run(pin, signal)
      if (standing(flight, name).state !== 'wanted') return attempt
      if (attempt.isHeld) stand(flight, name, { state: 'held', tries })
      else {
        const { class: kind, why } = attempt
        const notBefore = clock.now() + nextTryMs(attempt, tries, random)
        stand(flight, name, { state: 'wanted', tries, class: kind, why, notBefore })
      }
      return attempt
    } finally {
      flight.asking.delete(name)
      if (flight.entry.accepted && !flight.over && !signal.aborted) {
        track(note(flight, {})).catch(() => {})
        if (standing(flight, name).state === 'wanted') later(flight, provider)
        else goOn(flight)
      }
    }
  }

  /** Everybody once. Resolves when enough hold it, or when that cannot come about any more. */
  async function round(flight: Flight): Promise<readonly Attempt[]> {
    const { asks, stop } = flight
    const { cid } = flight.entry
    const onClose = () => stop.abort(closing.signal.reason)
    closing.signal.addEventListener('abort', onClose, { once: true })
    const attempts: Attempt[] = []
    const waiting = new Set(providers)
    let settled = Promise.withResolvers<void>()

    // Our own disk does not fail for reasons of others: it is asked once the others have done their part, so that there is
    // nothing to undo here. One that fetches by CID is asked when somebody has the bytes.
    const mayAsk = ({ traits }: Provider): boolean => {
      const locals = [...waiting].filter((one) => one.traits.local).length
      return traits.local ? holders(flight).length + locals >= needed : traits.takesBytes || hasBytes(flight)
    }
    const start = (which: (provider: Provider) => boolean): void => {
      for (const provider of [...waiting].filter(which)) {
        waiting.delete(provider)
        const work = ask(flight, provider, stop.signal).then((attempt) => {
          attempts.push(attempt)
          if (!attempt.isHeld) {
            const { class: kind, why } = attempt
            log('warn', 'upload.provider', { cid, provider: provider.name, class: kind, why })
          }
          look()
        })
        work.catch((error: unknown) => settled.reject(error))
        asks.push(track(work))
      }
    }
    const look = (): void => {
      if (isEnough(flight)) return settled.resolve()
      start(mayAsk)
      const mayCome = flight.asking.size + waiting.size
      if (holders(flight).length + mayCome < needed || flight.asking.size === 0) settled.resolve()
    }

    try {
      look()
      await settled.promise
      if (isEnough(flight)) start(() => true)
      else if (canQueue(attempts)) {
        // Here first: what is on its way elsewhere must lie on our own disk.
        settled = Promise.withResolvers()
        const locals = [...waiting].filter(({ traits }) => traits.local)
        start(({ traits }) => traits.local)
        const isHere = () =>
          attempts.filter(({ provider }) => locals.some(({ name }) => name === provider)).length === locals.length
        while (!isHere()) await Promise.race([settled.promise, ...asks.slice(-locals.length)])
      }
      return attempts
    } finally {
      void Promise.allSettled(asks).then(() => closing.signal.removeEventListener('abort', onClose))
    }
  }

  const holders = (flight: Flight): Provider[] =>
    providers.filter(({ name }) => standing(flight, name).state === 'held')
  const hasBytes = (flight: Flight): boolean => holders(flight).some(({ traits }) => traits.takesBytes)
  const isEnough = (flight: Flight): boolean => holders(flight).length >= needed && hasBytes(flight)

  /** Whether what is wanting may still come, and what is kept here, is. */
  const canQueue = (attempts: readonly Attempt[]): boolean => {
    if (!options.queue) return false
    const failed = attempts.filter((attempt) => !attempt.isHeld)
    const never = failed.filter((attempt) => attempt.class === 'content').length
    const isHere = !failed.some(({ provider }) =>
      providers.some(({ name, traits }) => name === provider && traits.local),
    )
    return isHere && providers.length - never >= needed
  }

  async function fly(flight: Flight): Promise<void> {
    closing.signal.throwIfAborted()
    await note(flight, {})
    const before = await heldLocally(flight)
    try {
      const attempts = await round(flight)
      closing.signal.throwIfAborted()
      if (!isEnough(flight) && !canQueue(attempts)) throw unconfirmed(flight.entry, needed, attempts, providers)
      flight.enough.resolve()
      await flight.others().catch((cause: unknown) => {
        throw new OtherFailed('one that it came with cannot be confirmed', { cause })
      })
      closing.signal.throwIfAborted()
      await offer(flight)
      await options.onConfirmed(flight.upload, closing.signal)
      // Where everybody holds it, its record is written as a whole; there is nothing to be taken up after a crash.
      if (holders(flight).length < providers.length) await note(flight, { accepted: true })
      else flight.entry = { ...flight.entry, accepted: true }
    } catch (error) {
      flight.stop.abort(new Failure('cancelled', 'the upload cannot be confirmed', { source: 'ours' }))
      await Promise.allSettled(flight.asks)
      // A process that ends leaves the work to the next one.
      if (!closing.signal.aborted) await undo(flight, before)
      throw error
    }
  }

  /** Read from where it waits, as long as no disk of ours holds it otherwise. */
  const offer = async (flight: Flight): Promise<void> => {
    if (!holders(flight).some(({ traits }) => traits.local)) await spools.offer(flight.entry.id)
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
      for (const provider of holders(flight))
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
      () => goOn(flight),
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

  /** Behind the answer: whoever does not hold it yet is asked again when its time has come. */
  function goOn(flight: Flight): void {
    if (closing.signal.aborted || flight.over) return
    const wanting = providers.filter(({ name }) => standing(flight, name).state === 'wanted')
    if (wanting.length === 0) return void track(finish(flight)).catch(said('journal.finish', flight))
    for (const provider of wanting) if (!flight.asking.has(provider.name)) later(flight, provider)
  }

  function later(flight: Flight, provider: Provider): void {
    const { name } = provider
    const { notBefore = 0 } = standing(flight, name)
    flight.timers.get(name)?.()
    const cancel = clock.after(Math.max(0, notBefore - clock.now()), () => {
      flight.timers.delete(name)
      if (closing.signal.aborted || flight.over || standing(flight, name).state !== 'wanted') return
      track(ask(flight, provider, closing.signal)).catch(said('upload.retry', flight))
    })
    flight.timers.set(name, cancel)
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
      const entries = await journal.load()
      await spools.sweep(new Set(entries.map(({ id }) => id)))
      for (const entry of entries) if (!begunHere.has(entry.id)) takeUp(entry)
      isTakenUp = true
      begunHere.clear()
    },
    open: () => [...flights.values()].map(({ entry }) => entry),
    async giveUp(cid, name) {
      const flight = flights.get(nameOf(cid))
      if (!flight || standing(flight, name).state !== 'wanted') return false
      stand(flight, name, { ...standing(flight, name), state: 'given-up' })
      await note(flight, {})
      goOn(flight)
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

function recordOf({ id, cid, profile, bytes, carBytes }: Entry): SpoolRecord {
  const parsed = CID.parse(cid)
  return { id, cid: profile === 'unixfs-v0-2015' ? parsed.toV0() : parsed, profile, bytes, carBytes }
}

function unconfirmed(
  entry: Entry,
  needed: number,
  attempts: readonly Attempt[],
  providers: readonly Provider[],
): Failure {
  const asked = new Map(attempts.map((attempt) => [attempt.provider, attempt]))
  const outcomes = providers.map(({ name }) => {
    const attempt = asked.get(name)
    if (!attempt) return { provider: name, outcome: 'not waited for' }
    const { isHeld, ms } = attempt
    return isHeld
      ? { provider: name, outcome: 'held', ms }
      : { provider: name, outcome: attempt.class, detail: attempt.why, ms }
  })
  const holding = attempts.filter(({ isHeld }) => isHeld).length
  const isFull = attempts.length > 0 && attempts.every((attempt) => !attempt.isHeld && attempt.isNoRoom)
  const waits = attempts.flatMap((attempt) => (attempt.isHeld ? [] : [attempt.retryAfterMs ?? 0]))
  return new Failure(
    'broken',
    `${holding} of ${needed} providers hold the upload; nothing of it was kept. Try again, or look at what they say`,
    {
      source: isFull ? 'ours' : 'provider',
      retryAfterMs: Math.max(0, ...waits) || undefined,
      facts: { outcomes, cid: entry.cid, ...(isFull && { status: 507 }) },
    },
  )
}
