// The background search after a 404: for `keepLooking`, one round per period of the not-found memory, so an upstream is asked
// no more often than clients would make us ask it. Blocks that it finds go into the tiers.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../../core/block.ts'
import type { Clock } from '../../core/clock.ts'
import { cancelled, Failure, isFailure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { Attempts } from '../upstreams/attempts.ts'
import type { NotFoundMemory } from './not-found.ts'

/** One round of a search: resolves when the content is in the tiers, rejects with a Failure. */
export type SearchRound = {
  readonly done: Promise<void>
  readonly attempts: Attempts
  /** Ends a round that no search or request wants any more. */
  stop(): void
}

export interface Searches {
  /** Begins a search unless one is on for this root and path. `running`: a round that is still under way. */
  begin(cid: CID, path: string, look: (signal: AbortSignal) => SearchRound, running?: SearchRound): void
  /** Lets a running round end, for a client that asks again, and searches no further. */
  finish(round: SearchRound): void
  readonly size: number
  close(): void
}

/** Failures that answer "is it there?", and so may be remembered and followed by a search. */
export const isAbsence = (failure: Failure): boolean => failure.kind === 'not-found' || failure.kind === 'timeout'

const mostSearches = 256
const roundMs = 30_000
const finishMs = 10_000

export function createSearches(options: {
  readonly keepLookingMs: number
  readonly notFound: NotFoundMemory
  readonly clock: Clock
  readonly log: Log
}): Searches {
  const { keepLookingMs, notFound, clock, log } = options
  const searching = new Set<string>()
  let finishing = 0
  const closing = new AbortController()

  /** Waits for the round, no longer than `ms`: then leaves it, and a request that wants it may go on with it. */
  async function inTime(round: SearchRound, ms: number): Promise<void> {
    const own = new AbortController()
    const overdue = clock.sleep(Math.max(0, ms), AbortSignal.any([own.signal, closing.signal])).then(() => {
      throw new Failure('timeout', 'a round of the search took too long', { source: 'ours' })
    })
    round.done.catch(() => {})
    try {
      await Promise.race([round.done, overdue])
    } finally {
      own.abort(cancelled('the round is over'))
      round.stop()
    }
  }

  async function search(
    cid: CID,
    path: string,
    look: (signal: AbortSignal) => SearchRound,
    running?: SearchRound,
  ): Promise<void> {
    const giveUpAt = clock.monotonic() + keepLookingMs
    const leftMs = () => giveUpAt - clock.monotonic()
    let round = running
    for (;;) {
      if (round) {
        try {
          await inTime(round, Math.min(roundMs, leftMs()))
          notFound.forget(cid)
          log('info', 'search.found', { cid: cid.toString(), path })
          return
        } catch (error) {
          if (!isFailure(error) || error.kind === 'cancelled') return
          // A round in which no upstream could be asked says nothing new: keep what was remembered.
          const known = notFound.look(cid, path)
          if (known) notFound.remember(cid, path, isAbsence(error) ? error : known.failure, round.attempts.list())
        }
      }
      const memory = notFound.look(cid, path)
      // Forgotten meanwhile: an upload or a find made the search pointless.
      if (!memory || memory.forMs > leftMs()) return
      await clock.sleep(memory.forMs, closing.signal)
      if (!notFound.look(cid, path)) return
      round = begun(look)
    }
  }

  function begun(look: (signal: AbortSignal) => SearchRound): SearchRound {
    const controller = new AbortController()
    const { done, attempts, stop } = look(controller.signal)
    return {
      done,
      attempts,
      stop() {
        controller.abort(cancelled('the search is over'))
        stop()
      },
    }
  }

  return {
    begin(cid, path, look, running) {
      // The end of this round does not matter if another search runs, or none is wanted.
      running?.done.catch(() => {})
      const key = `${blockKey(cid)}/${path}`
      if (keepLookingMs <= 0 || searching.has(key) || searching.size >= mostSearches || closing.signal.aborted)
        return running?.stop()
      searching.add(key)
      notFound.hold(cid, path, true)
      search(cid, path, look, running)
        .catch((error: unknown) => {
          if (!closing.signal.aborted) log('error', 'search.error', { error: String(error) })
        })
        .finally(() => {
          searching.delete(key)
          notFound.hold(cid, path, false)
        })
    },
    finish(round) {
      if (finishing >= mostSearches) {
        round.done.catch(() => {})
        return round.stop()
      }
      finishing++
      inTime(round, finishMs)
        .catch(() => {})
        .finally(() => finishing--)
    },
    get size() {
      return searching.size
    },
    close() {
      closing.abort(cancelled('the gateway is closing'))
    },
  }
}
