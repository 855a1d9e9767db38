// The account of one race while it runs: who was asked, what became of it, and who has not answered yet.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../block.ts'
import type { Clock } from '../clock.ts'
import { isFailure } from '../failure.ts'
import type { Attempt } from '../observe/account.ts'
import type { Member } from './pool.ts'
import type { AskKind } from './standing.ts'

/** Why a question is given up although it did not fail: others brought what was wanted, or it fell behind them. */
export type LetGo = 'enough' | 'behind'

/** One question to one upstream, from the moment it is sent. The first ending counts; what comes after it is ignored. */
export interface Question {
  /** A proved block that was wanted came from here. `waitedMs`: how long readers waited for it since the one before. */
  brought(bytes: number, waitedMs: number): void
  /** It gave all that it was asked for. */
  done(): void
  letGo(why: LetGo): void
  failed(error: unknown): void
}

export interface Attempts {
  /** Begins a question once this upstream has a place for it; rejects when there is none in time or `signal` aborts. */
  ask(member: Member, kind: AskKind, cid: CID, signal: AbortSignal): Promise<Question>
  skip(skipped: readonly Attempt[]): void
  /** What can be said now; those still running are `no answer yet`. */
  list(): Attempt[]
  /** What the questions failed with, in the order in which they did. */
  readonly failures: readonly unknown[]
}

const mostKept = 32

export function createAttempts(clock: Clock): Attempts {
  const made: { upstream: string; outcome: string | undefined; ms: number; at: number; bytes: number }[] = []
  const skippedOnes: Attempt[] = []
  const failures: unknown[] = []
  return {
    failures,
    async ask(member, kind, cid, signal) {
      signal.throwIfAborted()
      const at = clock.monotonic()
      const entry = { upstream: member.upstream.name, outcome: undefined as string | undefined, ms: 0, at, bytes: 0 }
      if (made.length < mostKept) made.push(entry)
      const asked = member.standing.ask(kind, blockKey(cid))
      const end = (outcome: string): boolean => {
        if (entry.outcome !== undefined) return false
        entry.ms = Math.round(clock.monotonic() - at)
        entry.outcome = outcome
        return true
      }
      return {
        brought(bytes, waitedMs) {
          entry.bytes += bytes
          asked.brought(bytes, waitedMs)
        },
        done() {
          if (end('won')) asked.done()
        },
        letGo(why) {
          const lost = why === 'behind' ? 'began, then fell behind' : 'won'
          if (end(entry.bytes === 0 ? 'lost' : lost)) asked.letGo(why)
        },
        failed(error) {
          const kind = isFailure(error) ? error.kind : 'internal'
          const word = kind === 'timeout' ? 'stalled' : kind
          if (!end(entry.bytes === 0 ? kind : `began, then ${word}`)) return
          asked.failed(error)
          if (failures.length < mostKept) failures.push(error)
        },
      }
    },
    skip(skipped) {
      skippedOnes.push(...skipped.slice(0, mostKept - skippedOnes.length))
    },
    list() {
      const now = clock.monotonic()
      return [
        ...made.map(({ upstream, outcome, ms, at, bytes }) =>
          outcome === undefined
            ? { upstream, outcome: bytes === 0 ? 'no answer yet' : 'sending', ms: Math.round(now - at) }
            : { upstream, outcome, ms },
        ),
        ...skippedOnes,
      ]
    },
  }
}
