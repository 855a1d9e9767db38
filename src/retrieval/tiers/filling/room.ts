// Waiting for room in the queue before a slow tier: in order of arrival, not longer than `waitMs`, not where nothing moves,
// and by no more than the queue is long.
import type { Clock } from '../../../core/clock.ts'
import type { FillQueue } from './queue.ts'

export interface QueueRoom {
  /** Whether there is room now. */
  wait(bytes: Uint8Array): Promise<boolean>
  /** The queue got shorter, or was closed. */
  look(): void
  /** A write ended, well or not: the tier does something. */
  moved(): void
}

export type QueueRoomOptions = {
  readonly queue: FillQueue
  readonly clock: Clock
  /** 0: no caller waits. */
  readonly waitMs: number
  readonly maxBytes: number
  readonly maxBlocks: number
  readonly isClosed: () => boolean
}

export function createQueueRoom({ queue, clock, waitMs, maxBytes, maxBlocks, isClosed }: QueueRoomOptions): QueueRoom {
  const seekers = new Set<() => void>()
  let moves = 0
  let isStuck = false
  return {
    async wait(bytes) {
      if (waitMs === 0 || isStuck || seekers.size >= maxBlocks || bytes.byteLength > maxBytes) return false
      const { promise, resolve } = Promise.withResolvers<boolean>()
      const before = moves
      const seek = () => {
        if (isClosed() || isStuck) resolve(false)
        else if (queue.hasRoom(bytes)) resolve(true)
      }
      const stop = clock.after(waitMs, () => {
        isStuck = moves === before
        resolve(false)
      })
      seekers.add(seek)
      try {
        return await promise
      } finally {
        stop()
        seekers.delete(seek)
      }
    },
    look() {
      for (const seek of [...seekers]) seek()
    },
    moved() {
      moves++
      isStuck = false
    },
  }
}
