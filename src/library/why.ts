// Explains the response to a path: reads it as a GET would, up to the first bytes, and reports the
// source and the time of each block. For the operator: not counted as a request.

import { refuseRemainder, walkPath } from '../content/resolve.ts'
import type { Failure } from '../core/failure.ts'
import { asFailure, statusOf } from '../http/wire/problem.ts'
import { RequestRecord } from '../observe/requests.ts'
import type { Session } from '../retrieval/session.ts'
import { bodyFor, contentOf, type GetDeps } from './get.ts'

export type WhyDeps = Omit<GetDeps, 'onEnd' | 'failed'>

// The first steps suffice: a directory with millions of names is found through shards, and a path
// may have hundreds of names.
const maxSteps = 256
const maxCompleteBytes = 256 * 1024

export function createWhy(deps: WhyDeps) {
  const { retrieval, names, limits, clock, mode } = deps
  return async (path: string, signal: AbortSignal) => {
    const began = clock.monotonic()
    const requestRecord = new SourceRecord(deps.tiers)
    const steps: ({ readonly cid: string; readonly bytes: number; readonly ms: number } & Source)[] = []
    let session: Session | undefined
    let leave: (() => void) | undefined
    const summary = () => ({ path, ms: Math.round(clock.monotonic() - began), steps, attempts: requestRecord.attempts })
    try {
      leave = limits.hold()
      const wants = { signal, requestRecord }
      const { content, visitNames } = await contentOf(path, names, wants)
      session = retrieval.session({ ...wants, visitNames })
      const blocks = walkPath(session, content)
      for (;;) {
        const from = clock.monotonic()
        const { value, done } = await blocks.next()
        if (!done) {
          const ms = Math.round((clock.monotonic() - from) * 10) / 10
          if (steps.length < maxSteps)
            steps.push({ cid: value.cid.toString(), bytes: value.bytes.byteLength, ms, ...requestRecord.since() })
          continue
        }
        refuseRemainder(value)
        const body = await bodyFor(session, value, path, { ...deps, maxCompleteBytes, isPartial: false, signal })
        if (!body.complete) await firstOf(body.read(0, body.size ?? 0))
        const { entity } = value
        const found = { cid: entity.cid.toString(), kind: entity.kind, type: body.type, bytes: body.size }
        return { ...summary(), status: 200, found }
      }
    } catch (error) {
      const failure: Failure = asFailure(error)
      const { kind, message, retryAfterMs } = failure
      return { ...summary(), status: statusOf(failure, mode), failure: { kind, why: message, retryAfterMs } }
    } finally {
      session?.end()
      leave?.()
    }
  }
}

async function firstOf(pieces: AsyncIterable<unknown>): Promise<void> {
  for await (const _piece of pieces) return
}

/** The tier or upstream; undefined if the block is in the CID, or arrived with an earlier one. */
type Source = { readonly from: string | undefined; readonly isFetched: boolean }

/** Also reports the sources of everything read since the last call. */
class SourceRecord extends RequestRecord {
  #from: string | undefined
  #isFetched = false

  override tierHit(tier: string): void {
    this.#from = tier
    super.tierHit(tier)
  }

  override fetched(upstream: string, bytes?: number): void {
    this.#from = upstream
    this.#isFetched = true
    super.fetched(upstream, bytes)
  }

  since(): Source {
    const said = { from: this.#from, isFetched: this.#isFetched }
    this.#from = undefined
    this.#isFetched = false
    return said
  }
}
