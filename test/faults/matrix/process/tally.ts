// What the clients of the process table met: what a fault may cost, and what breaks its promise. An answer other than 200 always does.
import type { Asked } from './ask.ts'
import type { ProcessFault } from './faults.ts'

/** A time in which no gateway may have answered, from the signal on: `to` is when another one ran. */
export type Outage = { readonly from: number; to: number }

export interface Tally {
  /** True: it is the 200 that was asked for, with these bytes where some were expected. */
  note(asked: Asked, bytes?: Uint8Array): boolean
  readonly complete: number
  readonly failed: number
  /** `3 complete, 1 cut, …`. */
  readonly told: string
  readonly broken: readonly string[]
}

/** Each once, with how many there are of it. */
export function summed(broken: readonly string[]): string[] {
  const counts = Map.groupBy(broken, (what) => what)
  return [...counts].map(([what, { length }]) => (length > 1 ? `${what} (${length} times)` : what))
}

export function createTally({ may }: Pick<ProcessFault, 'may'>, outages: readonly Outage[]): Tally {
  const counts = { complete: 0, cut: 0, reset: 0, refused: 0 }
  const wrong = new Map<string, number>()

  function whyWrong(asked: Asked): string | undefined {
    const { outcome, status, isToldToWait } = asked
    if (outcome === 'answered') return `answered ${status}${isToldToWait ? ' with Retry-After' : ''}`
    const outage = outages.find(({ from, to }) => asked.endedAt >= from && asked.beganAt <= to)
    if (!outage || !may[outcome]) return outage ? outcome : `${outcome} while it ran`
    const isUnderWay = asked.sentAt !== undefined && asked.sentAt < outage.from
    if (may[outcome] === 'later' && isUnderWay) return `${outcome}, though sent before the signal`
    return undefined
  }

  return {
    note(asked, bytes) {
      const { outcome, status, body } = asked
      const isFalse = bytes !== undefined && !body.equals(bytes)
      if (outcome === 'answered' && status === 200 && !isFalse) {
        counts.complete++
        return true
      }
      if (outcome !== 'answered') counts[outcome]++
      const why = outcome === 'answered' && status === 200 ? 'answered with other bytes' : whyWrong(asked)
      if (why !== undefined) wrong.set(why, (wrong.get(why) ?? 0) + 1)
      return false
    },
    get complete() {
      return counts.complete
    },
    get failed() {
      return counts.cut + counts.reset + counts.refused
    },
    get told() {
      return Object.entries(counts)
        .map(([what, count]) => `${count} ${what}`)
        .join(', ')
    },
    get broken() {
      return [...wrong].map(([why, count]) => `${count} requests were ${why}`)
    },
  }
}
