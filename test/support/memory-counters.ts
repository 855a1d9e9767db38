// Counts that instances share, in memory and on a clock held in the hand, with faults on command.
import type { Increment } from '../../src/core/counting/counter-sync.ts'
import type { FakeClock } from './fake-clock.ts'

export interface MemoryCounters {
  readonly add: (told: readonly Increment[], signal: AbortSignal) => Promise<readonly number[]>
  readonly calls: (readonly Increment[])[]
  fault: 'away' | 'silent' | undefined
}

export function createMemoryCounters(clock: FakeClock): MemoryCounters {
  const counts = new Map<string, { total: number; readonly until: number }>()
  const counters: MemoryCounters = {
    fault: undefined,
    calls: [],
    async add(told, signal) {
      counters.calls.push(told)
      if (counters.fault === 'away') throw new Error('it is away')
      if (counters.fault === 'silent')
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
  return counters
}
