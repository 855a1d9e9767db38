// Asks providers to pin uploads, and asks again after a failure: each provider on its own schedule, a few uploads at once.
import type { CID } from 'multiformats/cid'
import type { Provider, Upload } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { Failure } from '../../core/failure.ts'
import { createGate, type Gate } from '../../core/gate.ts'
import type { Log } from '../../core/log.ts'
import type { Trace } from '../../core/wire/trace.ts'
import { isHeld } from '../spool/journal.ts'
import { attemptPin, nextTryMs, type ProviderAttempt } from './attempt.ts'
import type { Delivery } from './delivery.ts'

export type RetryOptions = {
  readonly providers: readonly Provider[]
  readonly clock: Clock
  readonly log: Log
  /** Deadline of one attempt at one provider; larger uploads get more. */
  readonly pinMs: number
  /** Throws a Failure for a CID that this gateway must not keep, now: an upload on its way may be denied later. */
  readonly admit: (cid: CID) => void
  readonly random: () => number
  readonly closing: AbortSignal
  /** Registers background work; `close` awaits it. */
  readonly track: <T>(work: Promise<T>) => Promise<T>
  /** Called when every provider holds the upload or was given up on, and at least one holds it. */
  readonly onSettled: (delivery: Delivery) => void
  /** Called with each answer of a provider. */
  readonly onAttempt?: ((attempt: ProviderAttempt) => void) | undefined
  readonly trace?: Trace | undefined
}

export interface Retries {
  /** One attempt. Rejects only when `signal` aborts. */
  ask(delivery: Delivery, provider: Provider, signal: AbortSignal): Promise<ProviderAttempt>
  /** Gives a provider that holds it the bytes again. Rejects only when the gateway stops. */
  askAgain(delivery: Delivery, provider: Provider, upload: Upload): Promise<ProviderAttempt>
  /** After the answer: asks each provider that does not hold it yet again when its time has come. */
  goOn(delivery: Delivery): void
}

const asksAtOnce = 16
/** The next time is a date, for the next process: a clock that was set back by weeks would put it off by weeks. */
const mostWaitMs = 24 * 3_600_000

/** The queue has no bound but the journal's: an accepted upload is never turned away. */
const gateOf = (name: string): Gate =>
  createGate({
    most: asksAtOnce,
    inLine: Number.POSITIVE_INFINITY,
    full: () => new Failure('overloaded', `provider ${name} is asked too much at once`, { source: 'ours' }),
  })

export function createRetries(options: RetryOptions): Retries {
  const { providers, clock, log, admit, trace, random, closing, track, onSettled } = options
  const gates = new Map<string, Gate>(providers.map(({ name }) => [name, gateOf(name)]))

  const attemptOnce = async (provider: Provider, upload: Upload, signal: AbortSignal): Promise<ProviderAttempt> => {
    const pin = () => attemptPin(provider, upload, { ms: options.pinMs, clock, signal, admit, trace })
    const attempt = await (gates.get(provider.name) as Gate).run(pin, signal)
    options.onAttempt?.(attempt)
    return attempt
  }

  /** Plans the next try of a failed attempt. */
  function wantedStill(delivery: Delivery, attempt: ProviderAttempt & { readonly isHeld: false }, tries: number): void {
    const { provider, class: kind, why } = attempt
    const notBefore = clock.now() + nextTryMs(attempt, tries, random)
    delivery.stand(provider, { state: 'wanted', tries, class: kind, why, notBefore })
  }

  async function ask(delivery: Delivery, provider: Provider, signal: AbortSignal): Promise<ProviderAttempt> {
    const { name } = provider
    const tries = delivery.standing(name).tries + 1
    delivery.asking.add(name)
    try {
      const attempt = await attemptOnce(provider, delivery.upload, signal)
      // Also if an operator gave up on it meanwhile: it does hold it.
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
    // While a client waits, ask-all.ts decides whom to ask.
    if (closing.aborted || delivery.state !== 'accepted') return
    const wanting = providers.filter(({ name }) => delivery.standing(name).state === 'wanted')
    // No provider holds it if the operator removed all that were to hold it: then it stays open.
    if (wanting.length === 0) return isHeld(delivery.entry) ? onSettled(delivery) : undefined
    for (const provider of wanting) if (!delivery.asking.has(provider.name)) later(delivery, provider)
  }

  function later(delivery: Delivery, provider: Provider): void {
    const { name } = provider
    const { notBefore = 0 } = delivery.standing(name)
    delivery.later(name, Math.min(mostWaitMs, Math.max(0, notBefore - clock.now())), () => {
      if (closing.aborted || delivery.isOver || delivery.standing(name).state !== 'wanted') return
      const signal = AbortSignal.any([closing, delivery.stop.signal])
      const asked = track(ask(delivery, provider, signal))
        .catch((error: unknown) => {
          if (!signal.aborted) log('error', 'upload.retry', { cid: delivery.entry.cid, error: String(error) })
        })
        .finally(() => delivery.asks.delete(asked))
      delivery.asks.add(asked)
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
