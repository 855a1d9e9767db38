// The background search after a 404: for `backgroundSearch`, one round per period of the not-found memory, so an upstream is asked
// no more often than clients would make us ask it. Blocks that it finds go into the tiers.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../../core/cid.ts'
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

/** `client`: its address. `running`: a round that is still under way. */
export type SearchOptions = { readonly client: string; readonly running?: SearchRound | undefined }

export interface Searches {
  /**
   * Begins a search unless one is on for this root and path. Where there is no room for one more of this client, the client
   * with the most searches loses its newest.
   */
  begin(cid: CID, path: string, look: (signal: AbortSignal) => SearchRound, how: SearchOptions): void
  /** Lets a running round end, for a client that asks again, and searches no further. */
  finish(round: SearchRound): void
  readonly size: number
  close(): void
}

/** Failures that answer "is it there?", and so may be remembered and followed by a search. */
export const isAbsence = (failure: Failure): boolean => failure.kind === 'not-found' || failure.kind === 'timeout'

type RunningSearch = { readonly client: string; readonly ending: AbortController }

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
  /** By what is searched for; the newest last. */
  const searching = new Map<string, RunningSearch>()
  let finishing = 0
  const closing = new AbortController()

  /** False: no client has so many more searches that one of them has to end for this client. */
  function makeRoom(client: string): boolean {
    if (searching.size < mostSearches) return true
    const counts = new Map<string, number>()
    for (const { client: one } of searching.values()) counts.set(one, (counts.get(one) ?? 0) + 1)
    const [greedy, most] = [...counts].reduce((one, other) => (other[1] > one[1] ? other : one))
    if (most <= (counts.get(client) ?? 0) + 1) return false
    const [key, search] = [...searching].findLast(([, search]) => search.client === greedy) as [string, RunningSearch]
    searching.delete(key)
    search.ending.abort(cancelled('other clients need its room'))
    return true
  }

  /** Waits for the round, no longer than `ms`: then leaves it, and a request that wants it may go on with it. */
  async function inTime(round: SearchRound, ms: number, signal: AbortSignal): Promise<void> {
    const own = new AbortController()
    const overdue = clock.sleep(Math.max(0, ms), AbortSignal.any([own.signal, signal])).then(() => {
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
    { signal, running }: { readonly signal: AbortSignal; readonly running: SearchRound | undefined },
  ): Promise<void> {
    const giveUpAt = clock.monotonic() + keepLookingMs
    const leftMs = () => giveUpAt - clock.monotonic()
    let round = running
    for (;;) {
      if (round) {
        try {
          await inTime(round, Math.min(roundMs, leftMs()), signal)
          notFound.forget(cid)
          log('info', 'search.found', { cid: cid.toString(), path })
          return
        } catch (error) {
          if (!isFailure(error) || error.kind === 'cancelled') return
          // A round in which no upstream could be asked says nothing new: keep what was remembered.
          const known = notFound.look(cid, path)
          if (known) notFound.remember(cid, path, isAbsence(error) ? error : known.absence, round.attempts.list())
        }
      }
      const memory = notFound.look(cid, path)
      // Forgotten meanwhile: an upload or a find made the search pointless.
      if (!memory || memory.forMs > leftMs()) return
      await clock.sleep(memory.forMs, signal)
      if (!notFound.look(cid, path)) return
      round = begun(look)
    }
  }

  return {
    begin(cid, path, look, { client, running }) {
      // The end of this round does not matter if another search runs, or none is wanted.
      running?.done.catch(() => {})
      const key = `${blockKey(cid)}/${path}`
      if (keepLookingMs <= 0 || searching.has(key) || closing.signal.aborted || !makeRoom(client))
        return running?.stop()
      const own = { client, ending: new AbortController() }
      const signal = AbortSignal.any([own.ending.signal, closing.signal])
      searching.set(key, own)
      notFound.hold(cid, path, true)
      search(cid, path, look, { signal, running })
        .catch((error: unknown) => {
          if (!signal.aborted) log('error', 'search.error', { error: String(error) })
        })
        .finally(() => {
          // Another one may have begun since this one had to end.
          if (searching.has(key) && searching.get(key) !== own) return
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
      inTime(round, finishMs, closing.signal)
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
