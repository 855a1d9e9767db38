// Questions to providers, a few at once for each provider.
import type { CID } from 'multiformats/cid'
import type { Provider, Upload } from '../../backends/pinning/contract.ts'
import type { Clock } from '../core/clock.ts'
import { Failure } from '../core/failure.ts'
import { createGate, type Gate } from '../core/gate.ts'
import type { Trace } from '../core/wire/trace.ts'
import type { Standing } from '../store/store.ts'
import { attemptPin, nextTryMs, type ProviderAttempt } from './attempt.ts'

export type AsksOptions = {
  readonly clock: Clock
  /** Deadline of one attempt at one provider; larger uploads get more. */
  readonly pinMs: number
  /** Throws a Failure for a CID that this gateway must not keep now: an upload on its way may be denied later. */
  readonly admit: (cid: CID) => void
  /** Called with each answer of a provider. */
  readonly onAttempt?: ((attempt: ProviderAttempt) => void) | undefined
  readonly trace?: Trace | undefined
}

export interface Asks {
  /** One attempt. Rejects only when `signal` aborts. */
  ask(provider: Provider, upload: Upload, signal: AbortSignal): Promise<ProviderAttempt>
}

export const asksAtOnce = 16

/** The queue needs no bound of its own: uploads that wait here are bounded by their admission, the others lie in the ledger. */
const gateOf = (name: string): Gate =>
  createGate({
    most: asksAtOnce,
    inLine: Number.POSITIVE_INFINITY,
    full: () => new Failure('overloaded', `provider ${name} is asked too much at once`, { source: 'ours' }),
  })

export function createAsks({ clock, pinMs, admit, onAttempt, trace }: AsksOptions): Asks {
  const gates = new Map<string, Gate>()

  return {
    async ask(provider, upload, signal) {
      const { name } = provider
      const gate = gates.get(name) ?? gateOf(name)
      gates.set(name, gate)
      const attempt = await gate.run(
        () => attemptPin(provider, upload, { ms: pinMs, clock, signal, admit, trace }),
        signal,
      )
      onAttempt?.(attempt)
      return attempt
    },
  }
}

export type StandingAfter = (attempt: ProviderAttempt, tries: number) => Standing

/** Where a provider stands after an attempt. */
export const createStandingAfter =
  (clock: Clock, random: () => number): StandingAfter =>
  (attempt, tries) => {
    if (attempt.isHeld) return { kind: 'provider', state: 'held', tries }
    const { class: kind, why } = attempt
    const notBefore = clock.now() + nextTryMs(attempt, tries, random)
    return { kind: 'provider', state: 'wanted', tries, notBefore, class: kind, why }
  }

export const wantedNow = { kind: 'provider', state: 'wanted', tries: 0 } as const
