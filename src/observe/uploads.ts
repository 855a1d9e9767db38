// Counts of uploads and provider responses. Shared by successive gateways.
import { isFailure } from '../core/failure.ts'
import { createHistograms, type Histograms } from './histogram.ts'
import type { Sample } from './metrics.ts'
import { createTally } from './requests.ts'

/** The part of an upload that is counted, also in thin mode. */
type CountedUpload = { readonly dagBytes: number }
type ProviderAttempt = {
  readonly provider: string
  readonly isHeld: boolean
  readonly ms: number
  readonly class?: string
}

export interface UploadCounts {
  /** Counts the outcome of an upload; returns the result of `work`. */
  over<Answer>(work: () => Promise<Answer>, addedOf?: (answer: Answer) => readonly CountedUpload[]): Promise<Answer>
  refused(error: unknown): void
  attempt(attempt: ProviderAttempt): void
  readonly outcomes: () => Iterable<Sample>
  readonly files: () => number
  readonly bytes: () => number
  readonly attempts: () => Iterable<Sample>
  readonly took: Histograms<{ readonly provider: string }>
}

export function createUploadCounts(): UploadCounts {
  const outcomes = createTally()
  const attempts = createTally()
  const took = createHistograms<{ readonly provider: string }>()
  let files = 0
  let bytes = 0

  const refused = (error: unknown) => outcomes.add(1, { outcome: isFailure(error) ? error.kind : 'internal' })

  return {
    async over(work, addedOf) {
      try {
        const answer = await work()
        outcomes.add(1, { outcome: 'accepted' })
        for (const { dagBytes } of addedOf?.(answer) ?? []) {
          files++
          bytes += dagBytes
        }
        return answer
      } catch (error) {
        refused(error)
        throw error
      }
    },
    refused,
    attempt({ provider, isHeld, ms, class: kind = 'transient' }) {
      attempts.add(1, { provider, outcome: isHeld ? 'pinned' : kind })
      took.observe({ provider }, ms / 1000)
    },
    outcomes: outcomes.read,
    files: () => files,
    bytes: () => bytes,
    attempts: attempts.read,
    took,
  }
}
