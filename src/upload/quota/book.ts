// What each token uploaded today (UTC): in memory, and in the store by the commit of each upload.
import type { StoreReader } from '../../store/store.ts'

export type Used = { uploads: number; bytes: number }

export interface QuotaBook {
  /** What earlier processes counted is known. Rejects where it cannot be read: today is counted from nothing. */
  ready(): Promise<void>
  /** What was used on this day: it counts anew with each later day. */
  used(token: string, day: number): Readonly<Used>
  /** The store has it already. */
  add(token: string, day: number, more: Used): void
  /** When it counts anew. Where the clock was set back over midnight, the day that is counted is tomorrow. */
  endsAt(day: number): number
  /** What uploads that are under way have taken, of any day. */
  readonly underWay: Map<string, Used>
}

const dayMs = 86_400_000

export const dayOf = (now: number): number => Math.floor(now / dayMs)

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
    underWay: new Map(),
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
