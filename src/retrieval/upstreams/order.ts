// Who is asked, after what delay: a pure value. What is known of the upstreams comes in, nothing is started here.

export type Hedge = 'auto' | number

export type Candidate<Who> = {
  readonly who: Who
  /** Expected cost of asking; the smallest goes first. */
  readonly load: number
  /** How long it may take to show a first byte without being late, as learned; undefined while nothing is known. */
  readonly usualMs: number | undefined
  /**
   * Nothing is known of it, or nothing new: it is asked once beside another one, so that no reader waits for the
   * lesson.
   */
  readonly isUntried?: boolean
}

export type Step<Who> = {
  readonly who: Who
  /** The next one starts this long after this one did, unless this one failed before. */
  readonly patienceMs: number
}

const leastPatienceMs = 50
const mostPatienceMs = 2000
const unknownPatienceMs = 300

export function order<Who>(candidates: readonly Candidate<Who>[], hedge: Hedge): Step<Who>[] {
  const ranked = [...candidates].sort((one, other) => one.load - other.load)
  const known = ranked.map((candidate) => candidate.usualMs).filter((ms) => ms !== undefined)
  const quickest = known.length > 0 ? Math.min(...known) : undefined
  const isTrial = tryOneBesideTheFirst(ranked)
  return ranked.map(({ who, usualMs }, index) => ({
    who,
    patienceMs: index === 0 && isTrial ? 0 : hedge === 'auto' ? patience(usualMs, quickest) : hedge,
  }))
}

function tryOneBesideTheFirst<Who>(ranked: Candidate<Who>[]): boolean {
  const index = ranked.findIndex(({ isUntried }) => isUntried)
  const untried = ranked[index]
  if (index < 1 || !untried) return false
  ranked.splice(index, 1)
  ranked.splice(1, 0, untried)
  return true
}

// An unknown upstream is waited for as long as the quickest could take.
function patience(usualMs: number | undefined, quickestMs: number | undefined): number {
  const ms = usualMs ?? (quickestMs === undefined ? unknownPatienceMs : quickestMs)
  return Math.min(mostPatienceMs, Math.max(leastPatienceMs, ms))
}
