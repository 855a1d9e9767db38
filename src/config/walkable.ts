// Checks that a configuration can be traversed. A mapping may contain itself, and thirty lists of a
// few aliases of the previous list expand to more values than there is time for: both are a few
// lines of YAML.
import type { Complaint } from './complaints.ts'

const maxLevels = 64
const maxValues = 100_000

/** The first key whose subtree is too large. */
export function tooMuch(tree: unknown): Complaint | undefined {
  if (typeof tree !== 'object' || tree === null) return undefined
  let left = maxValues

  function isTooDeep(value: unknown, levels: number): boolean {
    if (--left < 0 || typeof value !== 'object' || value === null) return false
    return levels === 0 || Object.values(value).some((inner) => isTooDeep(inner, levels - 1))
  }

  for (const [key, value] of Object.entries(tree)) {
    const path = [Array.isArray(tree) ? Number(key) : key]
    if (isTooDeep(value, maxLevels))
      return { path, what: `is nested too deeply (expected at most ${maxLevels} levels)` }
    if (left < 0) return { path, what: `has too many values (expected at most ${maxValues} in all)` }
  }
  return undefined
}
