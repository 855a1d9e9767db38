// Quotas: the uploads of each token in a day (UTC). The bytes of an upload are taken from the day's rest as it arrives, is
// used up when the upload is accepted, and given back where it fails.

import type { IncomingMessage } from 'node:http'
import type { Block } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import type { Counted, Telling } from '../core/counting/telling.ts'
import { Failure, wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { QuotaUse as StoredUse, StoreReader } from '../store/store.ts'
import type { UploadSlot } from './admission.ts'
import type { Added, AddOptions, Uploads } from './uploads.ts'

export type Quota = { readonly uploads?: number | undefined; readonly bytes?: number | undefined }

export type NamedQuota = { readonly token: string; readonly quota: Quota }

/** An upload of a token that has a quota. */
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
  /** Resolves when the counts of earlier processes are known; no upload may come before. Does not reject. */
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
    const inProgress = book.inProgress.get(token)
    return { uploads: uploads + (inProgress?.uploads ?? 0), bytes: bytes + (inProgress?.bytes ?? 0) }
  }

  function refuseWhereFull({ token, quota }: NamedQuota, more: Used): void {
    const taken = takenBy(token)
    const over = (['uploads', 'bytes'] as const).find((what) => taken[what] + more[what] > (quota[what] ?? Infinity))
    if (!over) return
    refusals.set(token, (refusals.get(token) ?? 0) + 1)
    throw full({ token, quota }, { over, taken, endsAt: book.endsAt(today()), now: clock.now() })
  }

  function take(token: string, { uploads, bytes }: Used): void {
    const inProgress = book.inProgress.get(token) ?? { uploads: 0, bytes: 0 }
    inProgress.uploads += uploads
    inProgress.bytes += bytes
    if (inProgress.uploads === 0 && inProgress.bytes === 0) book.inProgress.delete(token)
    else book.inProgress.set(token, inProgress)
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

// The book has what each token uploaded today (UTC): in memory, and in the store by the commit of each upload.

export type Used = { uploads: number; bytes: number }

interface QuotaBook {
  /** Resolves when the counts of earlier processes are known. Rejects where it cannot be read: today is counted from nothing. */
  ready(): Promise<void>
  /** Use of this day: it counts anew with each later day. */
  used(token: string, day: number): Readonly<Used>
  /** The store has it already. */
  add(token: string, day: number, more: Used): void
  /** When it counts anew. Where the clock was set back over midnight, the day that is counted is tomorrow. */
  endsAt(day: number): number
  /** Use by uploads that are under way, of any day. */
  readonly inProgress: Map<string, Used>
}

const dayMs = 86_400_000

const dayOf = (now: number): number => Math.floor(now / dayMs)

const lastDay = 'select day, token, uploads, bytes from quota where day = (select max(day) from quota)'

export function createQuotaBook(store: Pick<StoreReader, 'read'>): QuotaBook {
  let day = 0
  const tokens = new Map<string, Used>()

  async function load(): Promise<void> {
    for (const row of await store.read(lastDay)) {
      day = row.day as number
      tokens.set(row.token as string, { uploads: row.uploads as number, bytes: row.bytes as number })
    }
  }

  /** A clock that was set back some hours does not begin a day anew; one that was years ahead is not waited for. */
  function turnTo(today: number): void {
    if (today === day || today === day - 1) return
    day = today
    tokens.clear()
  }

  let loading: Promise<void> | undefined

  return {
    ready: () => (loading ??= load()),
    inProgress: new Map(),
    used(token, today) {
      turnTo(today)
      return tokens.get(token) ?? { uploads: 0, bytes: 0 }
    },
    add(token, today, { uploads, bytes }) {
      turnTo(today)
      const used = tokens.get(token) ?? { uploads: 0, bytes: 0 }
      tokens.set(token, { uploads: used.uploads + uploads, bytes: used.bytes + bytes })
    },
    endsAt(today) {
      turnTo(today)
      return (day + 1) * dayMs
    },
  }
}

// What each token uploaded today, at all instances: what this one knows by its own book, or what they counted together, whichever is
// more. An upload does not wait for the others: what they took in the last second may be missing.

/** Until the day is over everywhere, however clocks differ. */
const keptMs = 2 * 86_400_000
const kinds = ['uploads', 'bytes'] as const

type Together = {
  readonly day: number
  readonly heard: Used
  /** Taken here since. */
  readonly untold: Used
  /** Of that, what has to be told once more. */
  readonly lost: Used
  readonly counts: readonly Counted[]
}

export function shareBook(book: QuotaBook, telling: Telling): QuotaBook {
  const tokens = new Map<string, Together>()

  function together(token: string, day: number): Together {
    const known = tokens.get(token)
    if (known?.day === day) return known
    const heard = { uploads: 0, bytes: 0 }
    const untold = { uploads: 0, bytes: 0 }
    const lost = { uploads: 0, bytes: 0 }
    const counts = kinds.map((kind) => ({
      keptMs,
      heard(told: number, total: number) {
        heard[kind] = total
        untold[kind] -= told
      },
      lost(amount: number) {
        lost[kind] += amount
      },
    }))
    const made = { day, heard, untold, lost, counts }
    tokens.set(token, made)
    return made
  }

  function note(token: string, day: number, more: Used): void {
    const { counts, lost } = together(token, day)
    for (const [at, kind] of kinds.entries()) {
      telling.note(`quota ${kind} ${day} ${token}`, more[kind] + lost[kind], counts[at] as Counted)
      lost[kind] = 0
    }
  }

  return {
    ...book,
    used(token, day) {
      const own = book.used(token, day)
      const { heard, untold } = together(token, day)
      note(token, day, { uploads: 0, bytes: 0 })
      return {
        uploads: Math.max(own.uploads, heard.uploads + untold.uploads),
        bytes: Math.max(own.bytes, heard.bytes + untold.bytes),
      }
    },
    add(token, day, more) {
      book.add(token, day, more)
      const { untold } = together(token, day)
      untold.uploads += more.uploads
      untold.bytes += more.bytes
      note(token, day, more)
    },
  }
}

// Uploads as clients reach them: each door says which client it is, and the quota of its token holds at all of them.

/** A client, as far as limits go, with the quota of the token that it sent. */
export type Uploader = string | { readonly client: string; readonly quota: NamedQuota }

/** An upload that only computes a CID uses no quota, and none refuses it. */
export const withoutQuota = (who: Uploader): Uploader => (typeof who === 'string' ? who : who.client)

type Receiving = {
  /** `least`: bytes that it will bring at any rate, by its Content-Length. */
  enter(who: Uploader, signal?: AbortSignal, least?: number): Promise<UploadSlot>
  receive(request: IncomingMessage, options?: AddOptions): Promise<Added[]>
}

export type UploadDoor = Omit<Uploads, keyof Receiving> & Receiving

/** `keep`: commits what was used, where the upload itself is not committed here. */
export const withQuotas = (
  side: Pick<Uploads, keyof Receiving>,
  quotas: Quotas,
  keep?: (use: ReturnType<QuotaUse['use']>) => Promise<void>,
): Receiving => ({
  async enter(who, signal, least) {
    if (typeof who === 'string') return side.enter(who, signal)
    await quotas.ready
    const quota = quotas.begin(who.quota, least)
    try {
      const slot = await side.enter(who.client, signal)
      const leave = () => {
        slot.leave()
        quota.end()
      }
      return { ...slot, quota, leave }
    } catch (error) {
      quota.end()
      throw error
    }
  },
  async receive(request, own = {}) {
    const { slot } = own
    if (!slot?.quota) return side.receive(request, own)
    const added = await side.receive(request, own)
    const use = slot.quota.use()
    slot.quota.accept()
    await keep?.(use)
    return added
  },
})

/** The same for a DAG that exists already. */
export const keepWithin =
  (keep: Uploads['keep']): Uploads['keep'] =>
  async (root, blocks, slot, name) => {
    const { quota } = slot ?? {}
    await keep(root, quota ? counted(blocks, (bytes) => quota.add(bytes)) : blocks, slot, name)
    quota?.accept()
  }

async function* counted(blocks: AsyncIterable<Block>, add: (bytes: number) => void): AsyncGenerator<Block> {
  for await (const block of blocks) {
    add(block.bytes.byteLength)
    yield block
  }
}
