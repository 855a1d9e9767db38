// The last few of many measurements, and what is usual among them. They are kept in order: each of thousands a second is looked
// at right after it came.

export interface LastFew {
  add(value: number): void
  /** So many of 1 are not larger than this; undefined before the first. */
  quantile(share: number): number | undefined
  clear(): void
}

export function createLastFew(kept: number): LastFew {
  const inTurn: number[] = []
  const sorted: number[] = []
  let next = 0

  /** The first place of a value that is not smaller. */
  function placeOf(value: number): number {
    let [low, high] = [0, sorted.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if ((sorted[middle] as number) < value) low = middle + 1
      else high = middle
    }
    return low
  }

  return {
    add(value) {
      if (inTurn.length === kept) sorted.splice(placeOf(inTurn[next] as number), 1)
      inTurn[next] = value
      next = (next + 1) % kept
      sorted.splice(placeOf(value), 0, value)
    },
    quantile: (share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))],
    clear() {
      inTurn.length = sorted.length = next = 0
    },
  }
}
