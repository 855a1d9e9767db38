// Whether an answer is still wanted: by readers that wait for a block, or by a search that pulls everything. The
// readers' clock runs while they wait for upstreams, not while this process is busy.
import type { Progress } from '../progress.ts'
import type { Readers } from '../readers.ts'

export interface Demand {
  readonly isWanted: boolean
  /** Everything is wanted, without a reader (for a background search). */
  readonly isDraining: boolean
  readonly isOver: boolean
  drain(): void
  /** Runs work of this process, during which readers do not wait for upstreams. */
  during(work: () => Promise<void>): Promise<void>
  /** What changes whether it is wanted has changed. */
  note(): void
  /** Nothing is wanted any more. */
  end(): void
}

export type DemandOptions = {
  readonly readers: Readers
  readonly progress: Progress
  readonly onUnwanted: () => void
}

export function createDemand({ readers, progress, onUnwanted }: DemandOptions): Demand {
  let isDraining = false
  let isOver = false
  let working = 0

  const isWanted = (): boolean => !isOver && (isDraining || readers.size > 0)

  function note(): void {
    progress.setWaiting(isWanted() && working === 0)
    if (!isWanted()) onUnwanted()
  }

  return {
    get isWanted() {
      return isWanted()
    },
    get isDraining() {
      return isDraining
    },
    get isOver() {
      return isOver
    },
    drain() {
      isDraining = true
    },
    async during(work) {
      working++
      note()
      try {
        await work()
      } finally {
        working--
        note()
      }
    },
    note,
    end() {
      isOver = true
    },
  }
}
