// The search that goes on behind a 404: for `keepLooking`, once per period of the not-found memory, so an upstream is
// asked no more often than clients would have made us ask it. What it finds lands in the tiers.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../../core/block.ts'
import type { Clock } from '../../core/clock.ts'
import { cancelled, Failure, isFailure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { Attempts } from '../upstreams/attempts.ts'
import type { NotFoundMemory } from './not-found.ts'

/** One look around: resolves when the thing is in the tiers, rejects with a Failure. */
export type Round = {
  readonly done: Promise<void>
  readonly attempts: Attempts
  /** Nobody wants it any more. */
  stop(): void
}

export interface Searches {
  /** Begins a search unless one is on for this root and path. `running`: a round that is still under way. */
  begin(cid: CID, path: string, look: (signal: AbortSignal) => Round, running?: Round): void
  /** Lets a round that is under way come to its end, for whoever asks again. Nothing is searched after it. */
  finish(round: Round): void
  readonly size: number
  close(): void
}

/** Failures that are an answer to "is it there?", and so may be remembered and searched behind. */
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

  /** The round, but no longer than `ms`: then it is let go, and anybody else who wants it may go on with it. */
  async function inTime(round: Round, ms: number): Promise<void> {
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

  async function search(cid: CID, path: string, look: (signal: AbortSignal) => Round, running?: Round): Promise<void> {
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
          // A round that nobody could be asked in says nothing new: what was known stays known.
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

  function begun(look: (signal: AbortSignal) => Round): Round {
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
      // How it ends is nobody's concern where another search is on, or none is wanted.
      running?.done.catch(() => {})
      const key = `${blockKey(cid)}/${path}`
      if (keepLookingMs <= 0 || searching.has(key) || searching.size >= mostSearches || closing.signal.aborted)
        return running?.stop()
      searching.add(key)
      notFound.hold(cid, path, true)
      search(cid, path, look, running)
        .catch((error: unknown) => {
          if (!closing.signal.aborted) log('error', 'search.broke', { error: String(error) })
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
