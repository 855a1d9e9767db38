// One upload on its way: providers are asked until enough hold it, the tiers get it, somebody is told, and then it goes on
// until every provider holds it and every shared tier has it. What cannot be confirmed is undone.
import type { LocalStore, Provider, Upload } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { Claim, Claims } from '../claims.ts'
import { diskFailure } from '../failures.ts'
import { type Entry, type Journal, nameOf } from '../spool/journal.ts'
import type { Spools } from '../spool/spool.ts'
import type { Attempt } from './attempt.ts'
import { type Asks, createAsks, type Flight } from './flight.ts'
import type { Owed } from './owed.ts'
import type { Quorum } from './quorum.ts'
import { askEverybody } from './round.ts'
import { createTraces, type Traces } from './traces.ts'

export type FlyingOptions = {
  readonly providers: readonly Provider[]
  /** Of this machine: what was pinned. */
  readonly stores: readonly LocalStore[]
  readonly quorum: Quorum
  readonly journal: Journal
  readonly spools: Spools
  readonly claims: Claims
  readonly clock: Clock
  readonly log: Log
  readonly pinMs: number
  readonly random: () => number
  /** Enough hold it; what is to be done before anybody is told. The answer: shared tiers that lack it. Does not reject. */
  readonly onConfirmed: (upload: Upload, signal: AbortSignal) => Promise<readonly string[]>
  readonly owed: Owed
  readonly closing: AbortSignal
  /** Work that goes on behind everybody's back, and is waited for at the end. */
  readonly track: <T>(work: Promise<T>) => Promise<T>
}

/** What an upload is known by, and the spool that it lies in. */
export type Spooled = { readonly upload: Upload; readonly id: string }

/** Of an upload that would have counted, had it come alone. */
export class OtherFailed extends Error {}

export interface Flying {
  /** Those under way, by CID. */
  readonly flights: Map<string, Flight>
  readonly traces: Traces
  begin(upload: Upload, entry: Entry, how?: Beginning): Flight
  /** Written down when it resolves. */
  note(flight: Flight, change: Partial<Entry>): Promise<void>
  /** Behind the answer: to providers and tiers that do not have it yet, or to its end. */
  goOn(flight: Flight): void
  mend(flight: Flight, spooled: Spooled): Promise<void>
  /** This tier is not to have it any more. */
  writeOff(flight: Flight, tier: string): Promise<void>
}

/** `isAsked`: somebody waits for it to be confirmed. */
export type Beginning = { readonly others?: Flight['others']; readonly isAsked?: boolean }

export function createFlying(options: FlyingOptions): Flying {
  const { providers, stores, quorum, journal, spools, claims, clock, log, random, onConfirmed, owed, closing, track } =
    options
  const flights = new Map<string, Flight>()
  const traces = createTraces({ providers, stores, quorum, journal, spools, claims, flights, closing, log })
  const asks: Asks = createAsks({
    providers,
    clock,
    log,
    pinMs: options.pinMs,
    random,
    closing,
    track,
    note: (flight) => note(flight, {}),
    onSettled,
  })

  function note(flight: Flight, change: Partial<Entry>): Promise<void> {
    flight.entry = { ...flight.entry, ...change }
    return inTurn(flight, () =>
      journal.write(flight.entry).catch((error: unknown) => {
        throw diskFailure(error, 'write the journal')
      }),
    )
  }

  /** Not any more when it is over: what it left here is being removed. */
  function inTurn(flight: Flight, work: () => Promise<void>): Promise<void> {
    const turn = flight.written.then(() => (flight.over ? undefined : work()))
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
    closing.throwIfAborted()
    // Who was told once stays told: what comes anew for it may fail, and undoes nothing.
    const wasAccepted = flight.entry.accepted
    const onClose = () => flight.stop.abort(closing.reason)
    closing.addEventListener('abort', onClose, { once: true })
    let claim: Claim | undefined
    try {
      claim = await claims.claim(flight.entry.cid, () => traces.heldLocally(flight))
      await note(flight, { heldBefore: claim.before })
      const attempts = await askOnce(flight)
      closing.throwIfAborted()
      if (!quorum.isEnough(flight.entry) && !quorum.canQueue(attempts)) throw quorum.unconfirmed(attempts)
      flight.enough.resolve()
      await flight.others().catch((cause: unknown) => {
        throw new OtherFailed('one that it came with cannot be confirmed', { cause })
      })
      closing.throwIfAborted()
      await traces.offer(flight)
      await accept(flight)
      claim.keep()
    } catch (error) {
      if (!wasAccepted) {
        flight.stop.abort(new Failure('cancelled', 'the upload cannot be confirmed', { source: 'ours' }))
        await Promise.allSettled(flight.asks)
        // A process that ends leaves the work to the next one.
        if (!closing.aborted) await traces.undo(flight, claim)
      }
      throw error
    } finally {
      await claim?.leave()
      flight.isConfirming = false
      void Promise.allSettled(flight.asks).then(() => closing.removeEventListener('abort', onClose))
    }
  }

  async function accept(flight: Flight): Promise<void> {
    const owes = await onConfirmed(flight.upload, closing)
    const isEverywhere = quorum.holders(flight.entry).length === providers.length && owes.length === 0
    // Then its record is written as a whole; there is nothing to be taken up after a crash.
    if (isEverywhere) flight.entry = { ...flight.entry, accepted: true, owed: owes }
    else await note(flight, { accepted: true, owed: owes })
  }

  function begin(upload: Upload, entry: Entry, how: Beginning = {}): Flight {
    const { others = async () => {}, isAsked = !entry.accepted } = how
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
    claims.begin(entry.id)
    flights.set(nameOf(upload.cid), flight)
    flight.enough.promise.catch(() => {})
    track(flight.confirmed).then(
      () => goOn(flight),
      (error: unknown) => {
        flight.enough.reject(error)
        goOn(flight)
      },
    )
    return flight
  }

  function goOn(flight: Flight): void {
    if (!closing.aborted && !flight.over && flight.entry.accepted)
      for (const tier of flight.entry.owed ?? []) owe(flight, tier)
    asks.goOn(flight)
  }

  function owe(flight: Flight, tier: string): void {
    const { entry, upload } = flight
    const isOnlyHere = !traces.isHeldHere(flight)
    owed.add(entry.id, tier, {
      cid: entry.cid,
      bytes: isOnlyHere ? upload.bytes : 0,
      blocks: (signal) => traces.blocks(flight, signal),
      onOver: () => void track(writeOff(flight, tier)).catch(said('journal.write', flight)),
    })
  }

  async function writeOff(flight: Flight, tier: string): Promise<void> {
    owed.drop(flight.entry.id, tier)
    if (flight.over) return
    await note(flight, { owed: (flight.entry.owed ?? []).filter((name) => name !== tier) })
    goOn(flight)
  }

  function onSettled(flight: Flight): void {
    if (flight.entry.owed?.length)
      void track(inTurn(flight, () => traces.shed(flight))).catch(said('upload.drop', flight))
    else void track(traces.finish(flight)).catch(said('journal.finish', flight))
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
      if (!quorum.isEnough(flight.entry)) throw quorum.unconfirmed(attempts)
      const owes = await onConfirmed(upload, closing)
      const before = flight.entry.owed ?? []
      for (const tier of before) if (!owes.includes(tier)) owed.drop(flight.entry.id, tier)
      if (owes.length > 0 || before.length > 0) await note(flight, { owed: owes })
      await inTurn(flight, () => spools.replace(flight.entry.id, id))
    } finally {
      await spools.drop(id)
    }
    goOn(flight)
  }

  const said = (event: string, flight: Flight) => (error: unknown) => {
    if (!closing.aborted) log('error', event, { cid: flight.entry.cid, error: String(error) })
  }

  return { flights, traces, begin, note, goOn, mend, writeOff }
}
