// How many pins there are, counted behind the scrapes of the metrics by reading the records page by page. A count that took long
// is repeated rarely, so that it never takes more than a fiftieth of a core, and the figures are as old as that.
import type { Clock } from '../../core/clock.ts'
import type { Asked } from './list.ts'
import type { Page } from './told.ts'

export type PinCount = {
  readonly pins: number
  readonly bytes: number
  /** Those that each provider holds. */
  readonly held: ReadonlyMap<string, number>
}

export type CountOptions = {
  readonly list: (asked: Asked, signal: AbortSignal) => Promise<Page>
  readonly clock: Clock
  readonly closing: AbortSignal
  readonly track: <T>(work: Promise<T>) => Promise<T>
}

const pageOf = 500
const restOfCount = 50
const leastRestMs = 5000

/** The last count; undefined before the first one is over. Begins the next one when it is time for that. */
export function createPinCount({ list, clock, closing, track }: CountOptions): () => PinCount | undefined {
  let last: PinCount | undefined
  let isCounting = false
  let dueAt = Number.NEGATIVE_INFINITY

  async function count(): Promise<PinCount> {
    let [pins, bytes] = [0, 0]
    const held = new Map<string, number>()
    for (let after: string | undefined, isFirst = true; isFirst || after !== undefined; isFirst = false) {
      const page: Page = await list({ limit: pageOf, after }, closing)
      pins += page.pins.length
      for (const pin of page.pins) {
        bytes += pin.bytes
        for (const [name, { state }] of Object.entries(pin.providers))
          if (state === 'held') held.set(name, (held.get(name) ?? 0) + 1)
      }
      after = page.next
    }
    return { pins, bytes, held }
  }

  async function countOnce(): Promise<void> {
    const began = clock.monotonic()
    isCounting = true
    try {
      last = await count()
    } finally {
      isCounting = false
      const now = clock.monotonic()
      dueAt = now + Math.max(leastRestMs, (now - began) * restOfCount)
    }
  }

  return () => {
    // What cannot be read is not counted, and tried again.
    if (!isCounting && !closing.aborted && clock.monotonic() >= dueAt) track(countOnce()).catch(() => {})
    return last
  }
}
