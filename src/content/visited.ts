// What lies below a path is read through this: an export must not carry a block that could not be asked for by itself.
import type { CID } from 'multiformats/cid'
import type { Expected, Session } from '../retrieval/session.ts'

/** Throws for what is not to be read: a thing, with the names below it. */
export type Visit = (cid: CID, rest: readonly string[]) => void

/** Throws for a path that is not to be read below the /ipns names that led to its CID. */
export type VisitNames = (segments: readonly string[]) => void

/** A thing on a path, and the names that lead to it from the one above it. */
export type Way = {
  readonly cid: CID
  readonly names: readonly string[]
  readonly above: Way | undefined
  /** Of the topmost thing, where /ipns led to it: what is denied below a name is so however it is reached there. */
  readonly visitNames?: VisitNames | undefined
}

/** Who looks at the path of each thing below an entity before it is read, and the way to the entity itself. */
export type Watch = { readonly visit: Visit; readonly way: Way }

/** Where an export begins at a thing that was asked for by its CID. */
export const watchFrom = (visit: Visit, cid: CID): Watch => ({ visit, way: { cid, names: [], above: undefined } })

/** A thing at the end of a thousand folders must not cost a thousand looks each time it stands in an export. */
const mostAbove = 64

/** As if the path of this thing, and `rest` below it, had been asked for of each thing on the way. */
export function visitWay(visit: Visit, way: Way, rest: readonly string[], most = Number.POSITIVE_INFINITY): void {
  let below = rest
  let count = 0
  for (let at: Way | undefined = way; at && count <= most; at = at.above) {
    visit(at.cid, below)
    at.visitNames?.(below)
    below = [...at.names, ...below]
    count++
  }
}

/** The same for something in an export, from the nearest things above it. */
export const visitBelow = ({ visit }: Watch, way: Way): void => visitWay(visit, way, [], mostAbove)

/** `passed`: blocks that prove a path, which were visited with what follows them on it. */
export function visited(session: Session, visit: Visit, passed: readonly CID[] = []): Session {
  return {
    async get(cid, around) {
      try {
        visit(cid, [])
      } catch (error) {
        if (!passed.some((one) => one.equals(cid))) throw error
      }
      return session.get(cid, around)
    },
    expect: (next) => session.expect(withVisits(next, visit)),
    has: (cid) => session.has(cid),
    begun: () => session.begun(),
    end: () => session.end(),
  }
}

/** What would be denied when it is asked for is not asked for ahead. */
function* withVisits(next: Iterable<Expected>, visit: Visit): Generator<Expected> {
  for (const one of next) {
    const before = one.visit
    yield {
      ...one,
      visit: () => {
        before?.()
        visit(one.cid, [])
      },
    }
  }
}
