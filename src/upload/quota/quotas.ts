// What the clients with one token may upload in a day (UTC). What an upload brings is taken from the day's rest as it arrives, is
// used up when the upload is accepted, and given back where it fails.
import type { Clock } from '../../core/clock.ts'
import { Failure, wordsOf } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { QuotaUse as StoredUse } from '../../store/store.ts'
import { dayOf, type QuotaBook, type Used } from './book.ts'

export type Quota = { readonly uploads?: number | undefined; readonly bytes?: number | undefined }

export type NamedQuota = { readonly token: string; readonly quota: Quota }

/** One upload of a token that has a quota. */
export interface QuotaUse {
  /** Throws a Failure where the day has no room for these bytes. */
  add(bytes: number): void
  /** For the commit that accepts it. */
  use(): StoredUse
  /** It was accepted. */
  accept(): void
  /** It is over. What was not accepted is free again. */
  end(): void
}

export interface Quotas {
  /** What earlier processes counted is known; no upload may come before. Does not reject. */
  readonly ready: Promise<void>
  /** `least`: bytes that it will bring at any rate. Throws a Failure where the day has no room for it. */
  begin(one: NamedQuota, least?: number): QuotaUse
  used(token: string): Readonly<Used>
  refused(token: string): number
}

export function createQuotas({ book, clock, log }: { book: QuotaBook; clock: Clock; log: Log }): Quotas {
  const refusals = new Map<string, number>()
  let ready: Promise<void> | undefined

  const today = () => dayOf(clock.now())
  const used = (token: string) => book.used(token, today())

  function takenBy(token: string): Used {
    const { uploads, bytes } = used(token)
    const underWay = book.underWay.get(token)
    return { uploads: uploads + (underWay?.uploads ?? 0), bytes: bytes + (underWay?.bytes ?? 0) }
  }

  function refuseWhereFull({ token, quota }: NamedQuota, more: Used): void {
    const taken = takenBy(token)
    const over = (['uploads', 'bytes'] as const).find((what) => taken[what] + more[what] > (quota[what] ?? Infinity))
    if (!over) return
    refusals.set(token, (refusals.get(token) ?? 0) + 1)
    throw full({ token, quota }, { over, taken, endsAt: book.endsAt(today()), now: clock.now() })
  }

  function take(token: string, { uploads, bytes }: Used): void {
    const underWay = book.underWay.get(token) ?? { uploads: 0, bytes: 0 }
    underWay.uploads += uploads
    underWay.bytes += bytes
    if (underWay.uploads === 0 && underWay.bytes === 0) book.underWay.delete(token)
    else book.underWay.set(token, underWay)
  }

  return {
    get ready() {
      ready ??= book.ready().catch((error: unknown) => log('warn', 'quotas.read-failed', { error: wordsOf(error) }))
      return ready
    },
    used,
    refused: (token) => refusals.get(token) ?? 0,
    begin(one, least = 0) {
      const { token } = one
      refuseWhereFull(one, { uploads: 1, bytes: Math.max(0, least) })
      const own = { uploads: 1, bytes: 0 }
      take(token, own)
      let isOver = false
      const end = () => {
        if (!isOver) take(token, { uploads: -own.uploads, bytes: -own.bytes })
        isOver = true
      }
      return {
        add(bytes) {
          if (isOver) return
          refuseWhereFull(one, { uploads: 0, bytes })
          own.bytes += bytes
          take(token, { uploads: 0, bytes })
        },
        use: () => ({ token, day: today(), ...own }),
        accept() {
          if (isOver) return
          end()
          book.add(token, today(), own)
        },
        end,
      }
    },
  }
}

type Full = {
  readonly over: 'uploads' | 'bytes'
  readonly taken: Used
  readonly endsAt: number
  readonly now: number
}

function full({ token, quota }: NamedQuota, { over, taken, endsAt, now }: Full): Failure {
  const left = (what: 'uploads' | 'bytes') => Math.max(0, (quota[what] ?? Number.POSITIVE_INFINITY) - taken[what])
  const most = quota[over]
  const why =
    over === 'uploads'
      ? `the token ${token} has no upload left today, of ${most}`
      : `the token ${token} has ${left('bytes')} bytes left today, of ${most}, and this upload has more`
  const rest = { ...restOf('uploads', quota, left), ...restOf('bytes', quota, left) }
  return new Failure('throttled', `${why}; the next day begins at ${new Date(endsAt).toISOString()}`, {
    source: 'client',
    retryAfterMs: endsAt - now,
    facts: { quota: { token, ...rest } },
  })
}

const restOf = (what: 'uploads' | 'bytes', quota: Quota, left: (what: 'uploads' | 'bytes') => number) =>
  quota[what] === undefined ? {} : { [what]: { most: quota[what], left: left(what) } }
