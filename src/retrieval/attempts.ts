// The account of one race while it runs: who was asked, how it ended, and who has not answered yet.
import type { Clock } from '../clock.ts'
import { isFailure } from '../failure.ts'
import type { Attempt } from '../observe/account.ts'
import type { Member } from './pool.ts'
import { lost } from './race.ts'
import type { AskKind } from './standing.ts'

export interface Attempts {
  /** Runs one attempt, tells the upstream's standing how it went, and keeps the account of it. */
  make<T>(member: Member, kind: AskKind, key: string, run: () => Promise<T>): Promise<T>
  skip(skipped: readonly Attempt[]): void
  /** What can be said now; those still running are `no answer yet`. */
  list(): Attempt[]
  readonly failures: readonly unknown[]
}

const mostKept = 32

export function createAttempts(clock: Clock): Attempts {
  const made: { upstream: string; outcome: string | undefined; ms: number; at: number }[] = []
  const skippedOnes: Attempt[] = []
  const failures: unknown[] = []
  return {
    failures,
    async make(member, kind, key, run) {
      const at = clock.monotonic()
      const entry = { upstream: member.upstream.name, outcome: undefined as string | undefined, ms: 0, at }
      if (made.length < mostKept) made.push(entry)
      const ask = member.standing.ask(kind, key)
      const end = (outcome: string) => {
        entry.ms = Math.round(clock.monotonic() - at)
        entry.outcome = outcome
      }
      try {
        const value = await run()
        end('won')
        ask.won(clock.monotonic() - at)
        return value
      } catch (error) {
        end(error === lost ? 'lost' : isFailure(error) ? error.kind : 'internal')
        ask.failed(error, clock.monotonic() - at)
        if (failures.length < mostKept) failures.push(error)
        throw error
      }
    },
    skip(skipped) {
      skippedOnes.push(...skipped.slice(0, mostKept - skippedOnes.length))
    },
    list() {
      const now = clock.monotonic()
      return [
        ...made.map(({ upstream, outcome, ms, at }) =>
          outcome === undefined
            ? { upstream, outcome: 'no answer yet', ms: Math.round(now - at) }
            : { upstream, outcome, ms },
        ),
        ...skippedOnes,
      ]
    },
  }
}
