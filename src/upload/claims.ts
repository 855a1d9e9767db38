// Claims of gateways on uploads in one data folder. After a reload two or more gateways share it for a while: none may undo
// a pin that another one relies on, or resume a journal entry that another one works on.

/** A claim on a file whose client is about to get its 200: the file stays on this disk as long as one claim is held. */
export interface Claim {
  /** Providers of this machine that held the file before the first claim. */
  readonly before: readonly string[]
  /** A client got its 200: from now on no gateway may undo the pin. */
  keep(): void
  /** Ends the claim. Calls `undo` when it was the last one and no client got a 200; new claims wait meanwhile. */
  leave(undo?: () => Promise<void>): Promise<void>
}

export interface Claims {
  claim(name: string, before: () => Promise<readonly string[]>): Promise<Claim>
  /** A gateway works on this journal entry. */
  begin(id: string): void
  /** The same if no gateway works on it; otherwise false. */
  tryToBegin(id: string): boolean
  end(id: string): void
  /** The entries from `load` that no gateway works on, or worked on while they were loaded. */
  abandoned<T extends { readonly id: string }>(load: () => Promise<readonly T[]>): Promise<T[]>
}

type SharedClaim = {
  readonly before: Promise<readonly string[]>
  users: number
  isKept: boolean
  undoing: Promise<void> | undefined
}

export function createClaims(): Claims {
  const claimed = new Map<string, SharedClaim>()
  const begun = new Set<string>()
  const loads = new Set<Set<string>>()

  function begin(id: string): void {
    begun.add(id)
    for (const seen of loads) seen.add(id)
  }

  return {
    async claim(name, before) {
      for (let other = claimed.get(name); other?.undoing; other = claimed.get(name)) await other.undoing
      const held = claimed.get(name) ?? { before: before(), users: 0, isKept: false, undoing: undefined }
      claimed.set(name, held)
      held.users++
      let isLeft = false
      const claim = (found: readonly string[]): Claim => ({
        before: found,
        keep() {
          held.isKept = true
        },
        async leave(undo) {
          if (isLeft) return
          isLeft = true
          const isLast = --held.users === 0
          try {
            if (isLast && !held.isKept && undo) await (held.undoing = undo())
          } finally {
            if (isLast) claimed.delete(name)
          }
        },
      })
      try {
        return claim(await held.before)
      } catch (error) {
        await claim([]).leave()
        throw error
      }
    },
    begin,
    tryToBegin(id) {
      if (begun.has(id)) return false
      begin(id)
      return true
    },
    end: (id) => void begun.delete(id),
    async abandoned(load) {
      // An entry that a gateway finishes during the load may still be in its result.
      const seen = new Set(begun)
      loads.add(seen)
      try {
        return (await load()).filter(({ id }) => !seen.has(id))
      } finally {
        loads.delete(seen)
      }
    },
  }
}
