// Explains the response to a path: reads it as a GET would, up to the first bytes, and reports the
// source and the time of each block. For the operator: not counted as a request.
import { refuseRemainder } from '../content/formats/format.ts'
import { walkPath } from '../content/resolve.ts'
import type { Failure } from '../core/failure.ts'
import { asFailure, statusOf } from '../http/wire/problem.ts'
import { createRequestRecord, type RequestRecord } from '../observe/request-record.ts'
import type { Session } from '../retrieval/session.ts'
import { bodyFor, contentOf, type GetDeps } from './get.ts'

export type WhyStep = {
  readonly cid: string
  readonly bytes: number
  readonly ms: number
  /**
   * The tier or upstream; undefined if the block is in the CID, or arrived together with an earlier
   * one.
   */
  readonly from: string | undefined
  readonly isFetched: boolean
}

export type WhyAnswer = {
  readonly path: string
  readonly status: number
  readonly ms: number
  readonly steps: readonly WhyStep[]
  readonly found?: {
    readonly cid: string
    readonly kind: string
    readonly type: string
    readonly bytes: number | undefined
  }
  readonly failure?: { readonly kind: string; readonly why: string; readonly retryAfterMs: number | undefined }
  readonly attempts: RequestRecord['attempts']
}

export type WhyDeps = Omit<GetDeps, 'onEnd' | 'failed'>

// The first steps suffice: a directory with millions of names is found through shards, and a path
// may have hundreds of names.
const maxSteps = 256
const wholeBytes = 256 * 1024

export function createWhy(deps: WhyDeps): (path: string, signal: AbortSignal) => Promise<WhyAnswer> {
  const { retrieval, names, limits, clock, mode } = deps
  return async (path, signal) => {
    const began = clock.monotonic()
    const account = createTellingAccount(deps.tiers)
    const steps: WhyStep[] = []
    let session: Session | undefined
    let leave: (() => void) | undefined
    const told = (rest: Pick<WhyAnswer, 'status' | 'found' | 'failure'>): WhyAnswer => ({
      path,
      ms: Math.round(clock.monotonic() - began),
      steps,
      attempts: account.attempts,
      ...rest,
    })
    try {
      leave = limits.hold()
      const wants = { signal, account }
      const { content, visitNames } = await contentOf(path, names, wants)
      session = retrieval.session({ ...wants, visitNames })
      const walk = walkPath(session, content)
      for (;;) {
        const from = clock.monotonic()
        const { value, done } = await walk.next()
        if (!done) {
          const ms = Math.round((clock.monotonic() - from) * 10) / 10
          if (steps.length < maxSteps)
            steps.push({ cid: value.cid.toString(), bytes: value.bytes.byteLength, ms, ...account.since() })
          continue
        }
        refuseRemainder(value)
        const body = await bodyFor(session, value, path, { ...deps, wholeBytes, isPartial: false, signal })
        if (!body.whole) await firstOf(body.read(0, body.size ?? 0))
        const { entity } = value
        const found = { cid: entity.cid.toString(), kind: entity.kind, type: body.type, bytes: body.size }
        return told({ status: 200, found })
      }
    } catch (error) {
      const failure: Failure = asFailure(error)
      const { kind, message, retryAfterMs } = failure
      return told({ status: statusOf(failure, mode), failure: { kind, why: message, retryAfterMs } })
    } finally {
      session?.end()
      leave?.()
    }
  }
}

async function firstOf(pieces: AsyncIterable<unknown>): Promise<void> {
  for await (const _piece of pieces) return
}

/** An account that also reports the sources of everything read since the last call. */
function createTellingAccount(tiers: readonly string[]) {
  const account = createRequestRecord(tiers)
  let from: string | undefined
  let isFetched = false
  const telling: RequestRecord & { since(): Pick<WhyStep, 'from' | 'isFetched'> } = {
    tierHit(tier) {
      from = tier
      account.tierHit(tier)
    },
    fetched(upstream, bytes) {
      from = upstream
      isFetched = true
      account.fetched(upstream, bytes)
    },
    attempt: (attempt) => account.attempt(attempt),
    get fetches() {
      return account.fetches
    },
    get tier() {
      return account.tier
    },
    get brought() {
      return account.brought
    },
    attempts: account.attempts,
    since() {
      const said = { from, isFetched }
      from = undefined
      isFetched = false
      return said
    },
  }
  return telling
}
