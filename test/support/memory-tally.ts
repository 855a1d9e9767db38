// Counts that instances share, in memory and on a clock held in the hand, with faults on command.
import type { Increment } from '../../src/core/counting/counter-sync.ts'
import type { FakeClock } from './fake-clock.ts'

export interface MemoryTally {
  readonly add: (told: readonly Increment[], signal: AbortSignal) => Promise<readonly number[]>
  readonly calls: (readonly Increment[])[]
  fault: 'away' | 'silent' | undefined
}

export function createMemoryTally(clock: FakeClock): MemoryTally {
  const counts = new Map<string, { total: number; readonly until: number }>()
  const tally: MemoryTally = {
    fault: undefined,
    calls: [],
    async add(told, signal) {
      tally.calls.push(told)
      if (tally.fault === 'away') throw new Error('it is away')
      if (tally.fault === 'silent')
        return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
      return told.map(({ key, amount, keptMs }) => {
        const now = clock.monotonic()
        let count = counts.get(key)
        if (!count || count.until <= now) counts.set(key, (count = { total: 0, until: now + keptMs }))
        count.total += amount
        return count.total
      })
    },
  }
  return tally
}
