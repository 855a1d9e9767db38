// Balances connections across processes. The kernel chooses who accepts a connection and clients
// keep it for hours, so the load can drift apart.
import type { Slots } from './slots.ts'

export interface Crowd {
  /** Publishes this process's count; returns how far it is above its share. */
  beyondShare(open: number, size: number): number
}

export const crowdSlots = { count: 256, bytes: 4 } as const
/** Tolerance: counts near the share stay as they are. */
const [nearRatio, nearCount] = [1.125, 2]

/** `lives`: tells if a process runs. */
export function createCrowd(
  slots: Slots,
  { index, lives }: { readonly index: number; readonly lives: (index: number) => boolean },
): Crowd {
  return {
    beyondShare(open, size) {
      slots.read(index).setUint32(0, open)
      slots.write(index)
      let [all, processes] = [open, 1]
      for (let other = 0; other < size; other++) {
        if (other === index || !lives(other)) continue
        all += slots.read(other).getUint32(0)
        processes++
      }
      const share = all / processes
      return open > share * nearRatio + nearCount ? Math.floor(open - share) : 0
    },
  }
}
