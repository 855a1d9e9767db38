// Where one provider stands with an upload. Nothing of Node is imported here, so that the scripts of the dashboard can be checked against it.
import type { Facts } from '../../core/failure.ts'

export type FailureClass = Facts['class']

export type ProviderState = {
  /** `given-up`: an operator decided it. */
  readonly state: 'wanted' | 'held' | 'given-up'
  readonly tries: number
  readonly class?: FailureClass
  readonly why?: string
  /** Milliseconds since the epoch; the provider is not asked before. */
  readonly notBefore?: number
}
