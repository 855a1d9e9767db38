// What each token uploaded today, at all instances: what this one knows by its own book, or what they counted together, whichever is
// more. An upload does not wait for the others: what they took in the last second may be missing.
import type { Counted, Telling } from '../../core/counting/telling.ts'
import type { QuotaBook, Used } from './book.ts'

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
