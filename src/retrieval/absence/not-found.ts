// Remembers briefly what no upstream had: per root and path, doubling from `initialTtl` to `maxTtl`, with jitter. An unsure absence
// (an upstream was throttled, late or resting) is never remembered longer than `first`.
import { LRUCache } from 'lru-cache'
import type { CID } from 'multiformats/cid'
import { upTo } from '../../core/cache.ts'
import { blockKey } from '../../core/cid.ts'
import type { Clock } from '../../core/clock.ts'
import type { Failure } from '../../core/failure.ts'
import type { Attempt } from '../../observe/account.ts'

/** What is kept of the Failure: neither its causes nor its trace. */
export type Absence = Pick<Failure, 'kind' | 'message' | 'source' | 'facts'>

export type RememberedAbsence = {
  readonly absence: Absence
  readonly attempts: readonly Attempt[]
  /** How long this memory still holds. */
  readonly forMs: number
}

export interface NotFoundMemory {
  look(cid: CID, path: string): RememberedAbsence | undefined
  remember(cid: CID, path: string, absence: Absence, attempts: readonly Attempt[]): RememberedAbsence
  /**
   * During a search the memory does not expire: a request must not wait for a CID that is being searched for anyway.
   */
  hold(cid: CID, path: string, held: boolean): void
  /** Forgets all paths below this root. */
  forget(cid: CID): void
  readonly size: number
}

type AbsenceRecord = {
  readonly path: string
  absence: Absence
  attempts: readonly Attempt[]
  until: number
  periodMs: number
  held: boolean
  /** What `arrivalOf` said when it was remembered. */
  arrival: number
}

const mostRoots = 10_000
const mostPathsPerRoot = 64
const jitter = 0.1
const heldMs = 1000
// More than the one that is added: the memory shrinks to what is still of use.
const mostLookedAt = 2

export function createNotFoundMemory(options: {
  readonly firstMs: number
  readonly mostMs: number
  readonly clock: Clock
  readonly random?: () => number
  /** Changes when another process of this gateway takes an upload with this block. */
  readonly arrivalOf?: ((cid: CID) => number) | undefined
}): NotFoundMemory {
  const { firstMs, mostMs, clock, random = Math.random, arrivalOf = () => 0 } = options
  // The records of a root, the oldest first: most have one, and a Map takes as much as all the rest of it.
  const roots = new LRUCache<string, AbsenceRecord[]>(upTo(mostRoots))
  const find = (key: string, path: string) => roots.get(key)?.find((one) => one.path === path)

  // Forgotten `maxTtl` after it ran out: until then the next absence is remembered twice as long.
  const isOfUse = (record: AbsenceRecord) => record.held || record.until + mostMs > clock.monotonic()

  /** Looks at those that nobody asked for the longest. */
  function forgetOldest(): void {
    const oldest = [...roots.rkeys().take(mostLookedAt)]
    for (const key of oldest) {
      // Reading one makes it the newest: one that a search holds does not hide those behind it.
      if (!roots.get(key)?.some(isOfUse)) roots.delete(key)
    }
  }

  const answer = (record: AbsenceRecord): RememberedAbsence => ({
    absence: record.absence,
    attempts: record.attempts,
    forMs: Math.max(record.held ? heldMs : 0, record.until - clock.monotonic()),
  })

  return {
    look(cid, path) {
      const key = blockKey(cid)
      const record = find(key, path)
      if (record && record.arrival !== arrivalOf(cid)) return void roots.delete(key)
      return record && (record.held || record.until > clock.monotonic()) ? answer(record) : undefined
    },
    remember(cid, path, failure, attempts) {
      const key = blockKey(cid)
      const before = find(key, path)
      const sure = failure.facts.sure === true
      const periodMs = sure && before ? Math.min(mostMs, before.periodMs * 2) : firstMs
      const lengthMs = Math.min(mostMs, periodMs * (1 + jitter * random()))
      const record = {
        path,
        absence: lean(failure),
        attempts: attempts.slice(),
        periodMs,
        until: clock.monotonic() + lengthMs,
        held: before?.held ?? false,
        arrival: arrivalOf(cid),
      }
      const others = roots.get(key)?.filter((one) => one !== before) ?? []
      roots.set(key, others.slice(1 - mostPathsPerRoot).concat(record))
      forgetOldest()
      return answer(record)
    },
    hold(cid, path, held) {
      const record = find(blockKey(cid), path)
      if (record) record.held = held
    },
    forget(cid) {
      roots.delete(blockKey(cid))
    },
    get size() {
      return roots.size
    },
  }
}

/** V8 keeps a text that was put together as its pieces, thirty for a CID: many times the text itself. */
const lean = ({ kind, message, source, facts }: Absence): Absence => ({
  kind,
  message: Buffer.from(message).toString(),
  source,
  facts,
})
