// How many connections each process has. Which process accepts one is chance, and clients keep theirs for hours.
import type { Slots } from './slots.ts'

export interface Crowd {
  /** Notes how many this process has. The answer: how many of them it has beyond its share. */
  beyondShare(open: number, size: number): number
}

export const crowdSlots = { count: 256, bytes: 4 } as const
/** A share is no exact thing: what is near it stays. */
const [nearRatio, nearCount] = [1.125, 2]

/** `lives`: whether a process answers. */
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
