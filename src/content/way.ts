// How an entity was reached by names: a path that is denied is denied in exports, too, whichever CID the export begins
// at.
import type { CID } from 'multiformats/cid'
import type { Session } from '../retrieval/session.ts'

/**
 * An entity on a path, and the names that lead to it from the one above. The topmost one is the CID that the client
 * asked for.
 */
export type Way = {
  readonly cid: CID
  readonly names: readonly string[]
  readonly above: Way | undefined
}

export const wayFrom = (cid: CID): Way => ({ cid, names: [], above: undefined })

/** Bounds the checks for an entity below a thousand folders, each time it occurs in an export. */
const mostAbove = 64

/** Checks the path to this entity, and `rest` below it, from each entity on the way. */
export function visitWay(session: Session, way: Way, rest: readonly string[], most = Number.POSITIVE_INFINITY): void {
  let below = rest
  let count = 0
  for (let at: Way | undefined = way; at && count <= most; at = at.above) {
    session.visit(at.cid, below)
    if (!at.above) session.visitNames(below)
    below = [...at.names, ...below]
    count++
  }
}

/** The same for an entry of an export, from the nearest entities above it. */
export const visitBelow = (session: Session, way: Way): void => visitWay(session, way, [], mostAbove)
