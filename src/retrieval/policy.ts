// Decides what may not be read. The session asks the policy before each block, so no reader can forget it; without a policy
// everything is allowed.
import type { CID } from 'multiformats/cid'

/** Throws for a CID, with the path below it, that may not be read. */
export type Visit = (cid: CID, rest: readonly string[]) => void

/** Throws for a path below /ipns names that may not be read. */
export type VisitNames = (segments: readonly string[]) => void

export type Policy = { readonly visit?: Visit | undefined; readonly visitNames?: VisitNames | undefined }

/** The policy of one session, which remembers the CIDs that its paths led through. */
export interface Guard {
  readonly visit: Visit
  readonly visitNames: VisitNames
  /**
   * A path leads through this CID to `rest`. Throws if that may not be read. From here on its block may be read even if the
   * CID alone is denied: a path below it may be allowed.
   */
  pass(cid: CID, rest: readonly string[]): void
  /** Throws for a block that may not be read. */
  check(cid: CID): void
}

const allowed = (): void => {}

export function createGuard({ visit = allowed, visitNames = allowed }: Policy): Guard {
  const passed: CID[] = []
  // What a path has just ended at is read next: it is not looked up twice.
  let cleared: CID | undefined
  return {
    visit,
    visitNames,
    pass(cid, rest) {
      visit(cid, rest)
      if (rest.length > 0) passed.push(cid)
      else cleared = cid
    },
    check(cid) {
      if (cid === cleared) return
      try {
        visit(cid, [])
      } catch (error) {
        if (!passed.some((one) => one.equals(cid))) throw error
      }
    },
  }
}
