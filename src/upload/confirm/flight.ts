// One upload on its way to its providers, from the moment when it lies here whole until every one of them holds it.
import type { Provider, Upload } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'
import { createGate, type Gate } from '../../core/gate.ts'
import type { Log } from '../../core/log.ts'
import { type Entry, isHeld, type Standing } from '../spool/journal.ts'
import { type Attempt, attemptPin, nextTryMs } from './attempt.ts'
import { standingOf } from './quorum.ts'

export type Flight = {
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
  /** Somebody waits for it. Otherwise it goes on behind an answer that was given. */
  isConfirming: boolean
  over: boolean
  /** What is done to its entry and its spool takes turns. */
  written: Promise<unknown>
}

export const standing = (flight: Flight, name: string): Standing => standingOf(flight.entry, name)

export const stand = (flight: Flight, name: string, now: Standing): void => {
  flight.entry = { ...flight.entry, providers: { ...flight.entry.providers, [name]: now } }
}

export type AskOptions = {
  readonly providers: readonly Provider[]
  readonly clock: Clock
  readonly log: Log
  /** One attempt at one provider: so much, and more for more bytes. */
  readonly pinMs: number
  readonly random: () => number
  readonly closing: AbortSignal
  /** Work that goes on behind everybody's back, and is waited for at the end. */
  readonly track: <T>(work: Promise<T>) => Promise<T>
  readonly note: (flight: Flight) => Promise<void>
  /** Every provider holds it, or was given up on, and one does hold it. */
  readonly onSettled: (flight: Flight) => void
}

export interface Asks {
  /** Once. Rejects only when `signal` aborts. */
  ask(flight: Flight, provider: Provider, signal: AbortSignal): Promise<Attempt>
  /** One that holds it, with the same bytes from elsewhere. Rejects only when the gateway stops. */
  askAgain(flight: Flight, provider: Provider, upload: Upload): Promise<Attempt>
  /** Behind the answer: whoever does not hold it yet is asked again when its time has come. */
  goOn(flight: Flight): void
}

const asksAtOnce = 16

/** The line is as long as the journal: what was accepted is never turned away. */
const gateOf = (name: string): Gate =>
  createGate({
    most: asksAtOnce,
    inLine: Number.POSITIVE_INFINITY,
    full: () => new Failure('overloaded', `provider ${name} is asked too much at once`, { source: 'ours' }),
  })

export function createAsks(options: AskOptions): Asks {
  const { providers, clock, log, random, closing, track, note, onSettled } = options
  const gates = new Map<string, Gate>(providers.map(({ name }) => [name, gateOf(name)]))

  const attemptOnce = (provider: Provider, upload: Upload, signal: AbortSignal): Promise<Attempt> => {
    const pin = () => attemptPin(provider, upload, { ms: options.pinMs, clock, signal })
    return (gates.get(provider.name) as Gate).run(pin, signal)
  }

  /** What failed is tried again in its time, unless somebody gave up on it. */
  function wantedStill(flight: Flight, attempt: Attempt & { readonly isHeld: false }, tries: number): void {
    const { provider, class: kind, why } = attempt
    const notBefore = clock.now() + nextTryMs(attempt, tries, random)
    stand(flight, provider, { state: 'wanted', tries, class: kind, why, notBefore })
  }

  async function ask(flight: Flight, provider: Provider, signal: AbortSignal): Promise<Attempt> {
    const { name } = provider
    const tries = standing(flight, name).tries + 1
    flight.asking.add(name)
    try {
      const attempt = await attemptOnce(provider, flight.upload, signal)
      // Also where somebody gave up on it meanwhile: it does hold it.
      if (attempt.isHeld) stand(flight, name, { state: 'held', tries })
      else if (standing(flight, name).state === 'wanted') wantedStill(flight, attempt, tries)
      return attempt
    } finally {
      flight.asking.delete(name)
      if (flight.entry.accepted && !flight.over && !signal.aborted) {
        track(note(flight)).catch(() => {})
        if (standing(flight, name).state === 'wanted') later(flight, provider)
        else goOn(flight)
      }
    }
  }

  function goOn(flight: Flight): void {
    // Before that there is nothing to go on with: the round decides.
    if (closing.aborted || flight.over || !flight.entry.accepted) return
    const wanting = providers.filter(({ name }) => standing(flight, name).state === 'wanted')
    // Nobody holds it where every provider that was to hold it was taken out of the configuration.
    if (wanting.length === 0) return isHeld(flight.entry) ? onSettled(flight) : undefined
    for (const provider of wanting) if (!flight.asking.has(provider.name)) later(flight, provider)
  }

  function later(flight: Flight, provider: Provider): void {
    const { name } = provider
    const { notBefore = 0 } = standing(flight, name)
    flight.timers.get(name)?.()
    const cancel = clock.after(Math.max(0, notBefore - clock.now()), () => {
      flight.timers.delete(name)
      if (closing.aborted || flight.over || standing(flight, name).state !== 'wanted') return
      track(ask(flight, provider, closing)).catch((error: unknown) => {
        if (!closing.aborted) log('error', 'upload.retry', { cid: flight.entry.cid, error: String(error) })
      })
    })
    flight.timers.set(name, cancel)
  }

  return {
    ask,
    goOn,
    async askAgain(flight, provider, upload) {
      const attempt = await attemptOnce(provider, upload, closing)
      if (!attempt.isHeld && !flight.over) wantedStill(flight, attempt, 1)
      return attempt
    },
  }
}
