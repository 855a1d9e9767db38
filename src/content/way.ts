// How a thing was reached by names. What is denied by a path is so in an export too, whatever CID the export begins at.
import type { CID } from 'multiformats/cid'
import type { Session } from '../retrieval/session.ts'

/** A thing on a path, and the names that lead to it from the one above it. The topmost one is the CID that was asked for. */
export type Way = {
  readonly cid: CID
  readonly names: readonly string[]
  readonly above: Way | undefined
}

export const wayFrom = (cid: CID): Way => ({ cid, names: [], above: undefined })

/** A thing at the end of a thousand folders must not cost a thousand looks each time it stands in an export. */
const mostAbove = 64

/** As if the path of this thing, and `rest` below it, had been asked for of each thing on the way. */
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

/** The same for something in an export, from the nearest things above it. */
export const visitBelow = (session: Session, way: Way): void => visitWay(session, way, [], mostAbove)
