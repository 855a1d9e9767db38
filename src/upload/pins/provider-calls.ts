// Questions to providers about a pin, each with a deadline.
import type { Provider } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import { withDeadline } from '../../core/deadline.ts'
import { Failure } from '../../core/failure.ts'

const askMs = 30_000

export type InTime = <T>(provider: Provider, signal: AbortSignal, work: (own: AbortSignal) => Promise<T>) => Promise<T>

export const createInTime =
  (clock: Clock): InTime =>
  (provider, signal, work) => {
    const late = () =>
      new Failure('timeout', `provider ${provider.name}: no answer within ${askMs} ms`, { source: 'provider' })
    return withDeadline({ ms: askMs, clock, signal, late }, work)
  }

export const notConfigured = 'no provider of that name is configured'
