// What may not be read. The session asks before each block, so no reader can forget to; without a policy all is allowed.
import type { CID } from 'multiformats/cid'

/** Throws for a thing that is not to be read, with the names that are asked for below it. */
export type Visit = (cid: CID, rest: readonly string[]) => void

/** Throws for a path that is not to be read below the /ipns names that led to its CID. */
export type VisitNames = (segments: readonly string[]) => void

export type Policy = { readonly visit?: Visit | undefined; readonly visitNames?: VisitNames | undefined }

/** The policy of one session, with what its paths led through. */
export interface Guard {
  readonly visit: Visit
  readonly visitNames: VisitNames
  /**
   * A path leads through this thing to `rest`. Throws where that is not to be read. From here on its block may be read, even
   * where the thing by itself may not: a path below it may be allowed.
   */
  pass(cid: CID, rest: readonly string[]): void
  /** Throws for a block that is not to be read. */
  check(cid: CID): void
}

const allowed = (): void => {}

export function createGuard({ visit = allowed, visitNames = allowed }: Policy): Guard {
  const passed: CID[] = []
  return {
    visit,
    visitNames,
    pass(cid, rest) {
      visit(cid, rest)
      if (rest.length > 0) passed.push(cid)
    },
    check(cid) {
      try {
        visit(cid, [])
      } catch (error) {
        if (!passed.some((one) => one.equals(cid))) throw error
      }
    },
  }
}
