// What providers are asked, and when again: each in its own time, a few uploads at once, until it holds what it is to hold.
import type { Provider, Upload } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'
import { createGate, type Gate } from '../../core/gate.ts'
import type { Log } from '../../core/log.ts'
import { isHeld } from '../spool/journal.ts'
import { type Attempt, attemptPin, nextTryMs } from './attempt.ts'
import type { Delivery } from './delivery.ts'

export type RetryOptions = {
  readonly providers: readonly Provider[]
  readonly clock: Clock
  readonly log: Log
  /** One attempt at one provider: so much, and more for more bytes. */
  readonly pinMs: number
  readonly random: () => number
  readonly closing: AbortSignal
  /** Work that goes on behind everybody's back, and is waited for at the end. */
  readonly track: <T>(work: Promise<T>) => Promise<T>
  /** Every provider holds it, or was given up on, and one does hold it. */
  readonly onSettled: (delivery: Delivery) => void
}

export interface Retries {
  /** Once. Rejects only when `signal` aborts. */
  ask(delivery: Delivery, provider: Provider, signal: AbortSignal): Promise<Attempt>
  /** One that holds it, with the same bytes from elsewhere. Rejects only when the gateway stops. */
  askAgain(delivery: Delivery, provider: Provider, upload: Upload): Promise<Attempt>
  /** Behind the answer: whoever does not hold it yet is asked again when its time has come. */
  goOn(delivery: Delivery): void
}

const asksAtOnce = 16

/** The line is as long as the journal: what was accepted is never turned away. */
const gateOf = (name: string): Gate =>
  createGate({
    most: asksAtOnce,
    inLine: Number.POSITIVE_INFINITY,
    full: () => new Failure('overloaded', `provider ${name} is asked too much at once`, { source: 'ours' }),
  })

export function createRetries(options: RetryOptions): Retries {
  const { providers, clock, log, random, closing, track, onSettled } = options
  const gates = new Map<string, Gate>(providers.map(({ name }) => [name, gateOf(name)]))

  const attemptOnce = (provider: Provider, upload: Upload, signal: AbortSignal): Promise<Attempt> => {
    const pin = () => attemptPin(provider, upload, { ms: options.pinMs, clock, signal })
    return (gates.get(provider.name) as Gate).run(pin, signal)
  }

  /** What failed is tried again in its time, unless somebody gave up on it. */
  function wantedStill(delivery: Delivery, attempt: Attempt & { readonly isHeld: false }, tries: number): void {
    const { provider, class: kind, why } = attempt
    const notBefore = clock.now() + nextTryMs(attempt, tries, random)
    delivery.stand(provider, { state: 'wanted', tries, class: kind, why, notBefore })
  }

  async function ask(delivery: Delivery, provider: Provider, signal: AbortSignal): Promise<Attempt> {
    const { name } = provider
    const tries = delivery.standing(name).tries + 1
    delivery.asking.add(name)
    try {
      const attempt = await attemptOnce(provider, delivery.upload, signal)
      // Also where somebody gave up on it meanwhile: it does hold it.
      if (attempt.isHeld) delivery.stand(name, { state: 'held', tries })
      else if (delivery.standing(name).state === 'wanted') wantedStill(delivery, attempt, tries)
      return attempt
    } finally {
      delivery.asking.delete(name)
      if (delivery.entry.accepted && !delivery.isOver && !signal.aborted) {
        track(delivery.write()).catch(() => {})
        goOn(delivery)
      }
    }
  }

  function goOn(delivery: Delivery): void {
    // While a client waits, the round decides.
    if (closing.aborted || delivery.state !== 'accepted') return
    const wanting = providers.filter(({ name }) => delivery.standing(name).state === 'wanted')
    // Nobody holds it where every provider that was to hold it was taken out of the configuration.
    if (wanting.length === 0) return isHeld(delivery.entry) ? onSettled(delivery) : undefined
    for (const provider of wanting) if (!delivery.asking.has(provider.name)) later(delivery, provider)
  }

  function later(delivery: Delivery, provider: Provider): void {
    const { name } = provider
    const { notBefore = 0 } = delivery.standing(name)
    delivery.later(name, Math.max(0, notBefore - clock.now()), () => {
      if (closing.aborted || delivery.isOver || delivery.standing(name).state !== 'wanted') return
      track(ask(delivery, provider, closing)).catch((error: unknown) => {
        if (!closing.aborted) log('error', 'upload.retry', { cid: delivery.entry.cid, error: String(error) })
      })
    })
  }

  return {
    ask,
    goOn,
    async askAgain(delivery, provider, upload) {
      const attempt = await attemptOnce(provider, upload, closing)
      if (!attempt.isHeld && !delivery.isOver) wantedStill(delivery, attempt, 1)
      return attempt
    },
  }
}
