// What one request is told of absences, and what is remembered of it: a remembered absence refuses it at once; an absence that it
// meets is remembered for others, and a background search goes on after the request.
import type { CID } from 'multiformats/cid'
import { type Failure, isFailure } from '../core/failure.ts'
import type { Account } from '../observe/account.ts'
import type { NotFoundMemory } from './absence/not-found.ts'
import { isAbsence, type Searches, type SearchRound } from './absence/searches.ts'
import { pathOf, sameBytes } from './fetch/key.ts'
import type { RequestClock } from './request-clock.ts'
import type { DagWant } from './session.ts'
import { internal, withRetry } from './session-failures.ts'
import type { Attempts } from './upstreams/attempts.ts'
import { outcomeOf, overloaded } from './upstreams/outcome.ts'
import type { Plan } from './upstreams/pool.ts'

/** The attempts of a flight, and whether too little time was left when the request joined it. */
export type FlightAttempts = { readonly attempts: Attempts; readonly wasLate: boolean }

export interface RequestAbsences {
  /** Throws a remembered absence. */
  refuseRemembered(cid: CID, around: DagWant | undefined): void
  /** Notes the attempts of an answer in the account, once, however many blocks fail with it. */
  note(attempts: Attempts): void
  /**
   * The failure to throw for a block that a flight did not bring. Remembers an absence, and begins a background search.
   * `running`: the flight itself, which the search takes over.
   */
  missed(
    error: unknown,
    cid: CID,
    around: DagWant | undefined,
    questions: FlightAttempts,
    running?: SearchRound,
  ): Failure
}

export type RequestAbsencesOptions = {
  readonly clock: Pick<RequestClock, 'hasBegun'>
  readonly account: Account
  readonly noCache: boolean
  /** The address of the client. */
  readonly client: string
  readonly notFound: NotFoundMemory
  readonly searches: Searches
  /** The upstreams that cannot be asked now. */
  readonly whoIsLeft: (cid: CID) => Omit<Plan, 'steps'>
  /** One round of a background search: no client waits. */
  readonly lookFor: (cid: CID, around: DagWant | undefined, client: string) => (signal: AbortSignal) => SearchRound
}

export function createRequestAbsences(options: RequestAbsencesOptions): RequestAbsences {
  const { clock, account, noCache, client, notFound, searches, whoIsLeft, lookFor } = options
  const noted = new WeakSet<Attempts>()

  function note(attempts: Attempts): void {
    if (noted.has(attempts)) return
    noted.add(attempts)
    for (const attempt of attempts.list()) account.attempt(attempt)
  }

  return {
    refuseRemembered(cid, around) {
      if (clock.hasBegun()) return
      const path = around && sameBytes(cid, around.cid) ? pathOf(around) : ''
      if (noCache) return notFound.forget(cid)
      const memory = notFound.look(cid, path) ?? notFound.look(cid, '')
      // Who could not be asked then may have it now.
      if (!memory || memory.absence.facts.unasked) return
      for (const attempt of memory.attempts) account.attempt(attempt)
      throw withRetry(memory.absence, memory.forMs)
    },
    note,
    missed(error, cid, around, { attempts, wasLate }, running) {
      const isCrowded = isFailure(error, 'timeout') && (wasLate || attempts.hasBeenCrowded())
      // It waited for an upstream to be well again until its time was over.
      const none = attempts.wasRefused() ? outcomeOf(cid, attempts.failures, whoIsLeft(cid)) : overloaded(cid)
      const failure = isCrowded ? none : isFailure(error) ? error : internal(error)
      if (failure.kind !== 'cancelled') note(attempts)
      if (isCrowded && running) {
        searches.finish(running)
        return failure
      }
      if (failure.kind === 'cancelled' || clock.hasBegun() || !isAbsence(failure)) {
        running?.stop()
        return failure
      }
      const path = pathOf(around)
      const { forMs } = notFound.look(cid, path) ?? notFound.remember(cid, path, failure, attempts.list())
      searches.begin(cid, path, lookFor(cid, around, client), { client, running })
      return failure.facts.unasked ? failure : withRetry(failure, forMs)
    },
  }
}
