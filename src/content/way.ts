// The path by which an entity was reached. Denied paths must also be denied inside an export, even
// if the export starts below them.
import type { CID } from 'multiformats/cid'
import type { Session } from '../retrieval/session.ts'

/**
 * An entity on a path, its parent, and the names that lead to it from there. The topmost one is the
 * CID of the request.
 */
export type Way = {
  readonly cid: CID
  readonly names: readonly string[]
  readonly above: Way | undefined
}

export const wayFrom = (cid: CID): Way => ({ cid, names: [], above: undefined })

/** Bounds the checks for each entity of an export that is nested a thousand directories deep. */
const mostAbove = 64

/**
 * Checks the path to this entity, and `rest` below it, against the denylists, starting from each
 * entity on the path.
 */
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

/** The same check for an entry of an export, starting from its nearest ancestors only. */
export const visitBelow = (session: Session, way: Way): void => visitWay(session, way, [], mostAbove)
