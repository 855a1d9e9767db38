// Quotas: the uploads of each token in a day (UTC). The bytes of an upload are reserved as they arrive, count once it is accepted,
// and are free again where it fails. What was accepted is in the store, by the commit of each upload.

import type { Clock } from '../core/clock.ts'
import type { CounterSync, SharedCounter } from '../core/counting/counter-sync.ts'
import { Failure, wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Store, QuotaUse as StoredUse } from '../store/store.ts'

export type Quota = { readonly uploads?: number | undefined; readonly bytes?: number | undefined }

export type NamedQuota = { readonly token: string; readonly quota: Quota }

/** A client, as far as limits go, with the quota of the token that it sent. */
export type Uploader = string | { readonly client: string; readonly quota: NamedQuota }

/** An upload that only computes a CID uses no quota, and none refuses it. */
export const withoutQuota = (who: Uploader): Uploader => (typeof who === 'string' ? who : who.client)

/** An upload of a token that has a quota. */
export interface QuotaUse {
  /** Throws a Failure if these bytes exceed the quota of the day. */
  add(bytes: number): void
  /** Its use, for the commit that accepts it. */
  use(): StoredUse
  /** To be called after that commit. */
  accept(): void
  /** Accepts an upload that is not committed here. A count that cannot be stored stays in memory. Does not reject. */
  commit(): Promise<void>
  /** The upload is over: what was not accepted is free again. */
  end(): void
}

export type Used = { uploads: number; bytes: number }

export interface Quotas {
  /** Resolves when the counts of earlier processes are known; no upload may come before. Does not reject. */
  readonly ready: Promise<void>
  /** Throws a Failure if an upload of at least `minBytes` exceeds the quota of the day. */
  begin(one: NamedQuota, minBytes?: number): QuotaUse
  used(token: string): Readonly<Used>
  refused(token: string): number
}

type QuotasOptions = {
  readonly store: Pick<Store, 'read' | 'accept'>
  /** Counts with other instances. An upload waits for none of them: the last second of theirs may be missing. */
  readonly shared?: Pick<CounterSync, 'note'> | undefined
  readonly clock: Clock
  readonly log: Log
}

const dayMs = 86_400_000
const kinds = ['uploads', 'bytes'] as const
const lastDay = 'select day, token, uploads, bytes from quota where day = (select max(day) from quota)'

export function createQuotas({ store, shared, clock, log }: QuotasOptions): Quotas {
  const refusals = new Map<string, number>()
  /** Uploads in progress, by token, of any day. */
  const running = new Map<string, Set<Used>>()
  let day = 0
  const tokens = new Map<string, Readonly<Record<keyof Used, Count>>>()
  let ready: Promise<void> | undefined

  async function load(): Promise<void> {
    for (const row of await store.read(lastDay)) {
      day = row.day as number
      for (const kind of kinds) countsOf(row.token as string)[kind].own = row[kind] as number
    }
  }

  function countsOf(token: string) {
    const counts = tokens.get(token) ?? { uploads: new Count(), bytes: new Count() }
    tokens.set(token, counts)
    return counts
  }

  /** A clock that was set back some hours does not begin a day anew; one that was years ahead is not waited for. */
  function today() {
    const now = Math.floor(clock.now() / dayMs)
    if (now !== day && now !== day - 1) {
      day = now
      tokens.clear()
    }
    return day
  }

  /** Counts it, and has the shared store report the total. */
  function count(token: string, more: Readonly<Used>): void {
    const key = (kind: keyof Used) => `quota ${kind} ${today()} ${token}`
    for (const kind of kinds)
      countsOf(token)[kind].add(more[kind], (amount, one) => shared?.note(key(kind), amount, one))
  }

  function used(token: string): Used {
    today()
    const { uploads, bytes } = countsOf(token)
    const found = { uploads: uploads.used, bytes: bytes.used }
    if (shared) count(token, { uploads: 0, bytes: 0 })
    return found
  }

  function refuseWhereFull({ token, quota }: NamedQuota, more: Used): void {
    const taken = used(token)
    for (const one of running.get(token) ?? []) for (const kind of kinds) taken[kind] += one[kind]
    const over = kinds.find((kind) => taken[kind] + more[kind] > (quota[kind] ?? Infinity))
    if (!over) return
    refusals.set(token, (refusals.get(token) ?? 0) + 1)
    throw exceeded({ token, quota }, { over, taken, endsAt: (today() + 1) * dayMs, now: clock.now() })
  }

  return {
    get ready() {
      ready ??= load().catch((error: unknown) => log('warn', 'quotas.read-failed', { error: wordsOf(error) }))
      return ready
    },
    used,
    refused: (token) => refusals.get(token) ?? 0,
    begin(one, minBytes = 0) {
      const { token } = one
      refuseWhereFull(one, { uploads: 1, bytes: Math.max(0, minBytes) })
      const own = { uploads: 1, bytes: 0 }
      const all = running.get(token) ?? new Set()
      running.set(token, all.add(own))
      const end = () => {
        all.delete(own)
        if (all.size === 0 && running.get(token) === all) running.delete(token)
      }
      const use = () => ({ token, day: today(), ...own })
      const accept = () => {
        if (!all.has(own)) return
        end()
        count(token, own)
      }
      return {
        add(bytes) {
          if (!all.has(own)) return
          refuseWhereFull(one, { uploads: 0, bytes })
          own.bytes += bytes
        },
        use,
        accept,
        async commit() {
          accept()
          const failed = (error: unknown) => log('warn', 'quotas.write-failed', { error: wordsOf(error) })
          await store.accept([], [use()]).catch(failed)
        },
        end,
      }
    },
  }
}

/** A number of one day: accepted here, or by all instances together, whichever is more. */
class Count implements SharedCounter {
  /** Longer than a day, since the clocks of instances differ. */
  readonly keptMs = 2 * dayMs
  own = 0
  #total = 0
  /** The part of `own` that the total lacks. */
  #unsent = 0
  /** The part of `#unsent` that has to be sent again. */
  #failed = 0

  get used(): number {
    return Math.max(this.own, this.#total + this.#unsent)
  }

  add(amount: number, send: (amount: number, one: SharedCounter) => void): void {
    this.own += amount
    this.#unsent += amount
    send(amount + this.#failed, this)
    this.#failed = 0
  }

  heard(sent: number, total: number): void {
    this.#total = total
    this.#unsent -= sent
  }

  lost(amount: number): void {
    this.#failed += amount
  }
}

type Exceeded = {
  readonly over: keyof Used
  readonly taken: Used
  readonly endsAt: number
  readonly now: number
}

function exceeded({ token, quota }: NamedQuota, { over, taken, endsAt, now }: Exceeded): Failure {
  const rests = kinds.flatMap((kind) => {
    const limit = quota[kind]
    return limit === undefined ? [] : [[kind, { limit, remaining: Math.max(0, limit - taken[kind]) }] as const]
  })
  const { bytes, ...rest } = Object.fromEntries(rests)
  const limit = quota[over]
  const why =
    over === 'uploads'
      ? `the token ${token} has no upload left today, of ${limit}`
      : `the token ${token} has ${bytes?.remaining} bytes left today, of ${limit}, and this upload has more`
  return new Failure('throttled', `${why}; the next day begins at ${new Date(endsAt).toISOString()}`, {
    source: 'client',
    retryAfterMs: endsAt - now,
    facts: { quota: { token, ...rest, ...(bytes && { bytes }) } },
  })
}
