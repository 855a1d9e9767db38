// What lies below a path is read through this: an export must not carry a block that could not be asked for by itself.
import type { CID } from 'multiformats/cid'
import type { Session } from '../retrieval/session.ts'

/** `visit` throws for a block that is not to be read. */
export function visited(session: Session, visit: (cid: CID, rest: readonly string[]) => void): Session {
  return {
    async get(cid, around) {
      visit(cid, [])
      return session.get(cid, around)
    },
    has: (cid) => session.has(cid),
    begun: () => session.begun(),
    end: () => session.end(),
  }
}
