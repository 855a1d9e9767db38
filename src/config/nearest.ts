// Suggests a known word for a mistyped one.

/** The known word within `most` edits. */
export function nearest(word: string, known: readonly string[], most: number): string | undefined {
  const near = known.map((one) => ({ one, far: distance(word.toLowerCase(), one.toLowerCase()) }))
  const [best] = near.sort((a, b) => a.far - b.far)
  return best && best.far <= most ? best.one : undefined
}

/** Damerau–Levenshtein distance: insertions, deletions, changes and swaps of neighbours. */
function distance(one: string, other: string): number {
  const rows = [Array.from({ length: other.length + 1 }, (_, column) => column)]
  const at = (row: number, column: number): number => rows[row]?.[column] ?? Number.POSITIVE_INFINITY
  for (let row = 1; row <= one.length; row++) {
    const line = [row]
    rows.push(line)
    for (let column = 1; column <= other.length; column++) {
      const same = one[row - 1] === other[column - 1]
      const swapped = row > 1 && column > 1 && one[row - 1] === other[column - 2] && one[row - 2] === other[column - 1]
      const changed = at(row - 1, column - 1) + (same ? 0 : 1)
      line.push(
        Math.min(
          changed,
          at(row - 1, column) + 1,
          (line[column - 1] ?? 0) + 1,
          swapped ? at(row - 2, column - 2) + 1 : changed,
        ),
      )
    }
  }
  return at(one.length, other.length)
}
