// What an upstream was asked for lately and brought nothing, or nothing true: asked for again, it may be nowhere, and has to be
// content with the slots that others leave; or another upstream has to answer.
import type { Clock } from '../../core/clock.ts'

export interface Doubts {
  has(key: string): boolean
  add(key: string): void
  delete(key: string): void
  /** How long it is still doubted. */
  leftMs(key: string): number
  readonly size: number
}

const mostKept = 10_000

export function createDoubts(clock: Clock, keptMs: number): Doubts {
  /** When each is over. All are kept equally long, so the oldest come first, and nothing that is over takes room. */
  const ends = new Map<string, number>()
  const leftMs = (key: string): number => Math.max(0, (ends.get(key) ?? 0) - clock.monotonic())

  function forgetOldest(): void {
    for (const [key, end] of ends) {
      if (end > clock.monotonic() && ends.size <= mostKept) return
      ends.delete(key)
    }
  }

  return {
    has: (key) => leftMs(key) > 0,
    add(key) {
      ends.delete(key)
      ends.set(key, clock.monotonic() + keptMs)
      forgetOldest()
    },
    delete(key) {
      ends.delete(key)
    },
    leftMs,
    get size() {
      return ends.size
    },
  }
}
