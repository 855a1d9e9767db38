// The Failures of a request that gets no block.
import type { CID } from 'multiformats/cid'
import { Failure } from '../core/failure.ts'
import type { Absence } from './negative-cache.ts'

export const withRetry = ({ kind, message, source, facts }: Absence, retryAfterMs: number): Failure =>
  new Failure(kind, message, { source, facts, retryAfterMs })

export const outOfTime = (cid: CID, ms: number): Failure =>
  new Failure('timeout', `no upstream sent ${cid} within ${Math.round(ms)} ms; the search goes on`, {
    source: 'upstream',
    facts: { sure: false },
  })

/** Earlier blocks, or the line of requests that begin, used up the time. */
export const noTimeLeft = (cid: CID): Failure =>
  new Failure(
    'overloaded',
    `no time left to look for ${cid}: the line and the blocks before it took all of it; retry`,
    {
      source: 'ours',
    },
  )

/** An archive (no upstreams) whose tiers were all asked: there is nothing else to ask, so 404. */
export const notHere = ({ message, facts }: Failure): Failure =>
  new Failure('not-found', message, { source: 'tier', facts })

/** An archive whose tiers could not all be asked: it may well be there, so it is not called absent. */
export const storeFailed = (cid: CID, { cause, retryAfterMs }: Failure): Failure =>
  new Failure(
    'unavailable',
    `${cid} may be in a tier that failed or did not answer in time, and there is no upstream to ask; retry, and look at the tiers if it goes on`,
    { source: 'tier', cause, retryAfterMs },
  )

/** A provider of this machine keeps it, so no answer of an upstream makes it absent. */
export const pinUnreadable = (cid: CID, { cause, retryAfterMs }: Failure): Failure =>
  new Failure(
    'unavailable',
    `${cid} is kept on this machine, but its copy is damaged or cannot be read, and no upstream sent it; upload the same file again, and look at the disk (cidgate pins verify)`,
    { source: 'tier', cause, retryAfterMs },
  )

export const notCached = (cid: CID): Failure =>
  new Failure('not-found', `${cid} is not in the cache, and Cache-Control: only-if-cached asks for nothing else`, {
    source: 'tier',
    facts: { onlyIfCached: true },
  })

export const unprovable = (cid: CID): Failure =>
  new Failure(
    'malformed',
    `${cid} cannot be proved: its hash function or digest length is not one this gateway trusts`,
    {
      source: 'content',
    },
  )

export const internal = (error: unknown): Failure =>
  new Failure(
    'internal',
    'internal error in retrieval; the log of this gateway has the details, under the request id',
    { source: 'ours', cause: error },
  )
