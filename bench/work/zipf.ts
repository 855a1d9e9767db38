// Reproducible random numbers, and ranks as readers request them: few often, most rarely.

/** Numbers below 1 (mulberry32). */
export function numbers(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

/** Ranks from 0, the most requested first. */
export function zipf(ranks: number, skew: number, random: () => number): () => number {
  const upTo = new Float64Array(ranks)
  let sum = 0
  for (let rank = 0; rank < ranks; rank++) upTo[rank] = sum += 1 / (rank + 1) ** skew
  return () => {
    const wanted = random() * sum
    let [low, high] = [0, ranks - 1]
    while (low < high) {
      const middle = (low + high) >> 1
      if ((upTo[middle] ?? 0) < wanted) low = middle + 1
      else high = middle
    }
    return low
  }
}
