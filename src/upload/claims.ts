// What gateways over one data folder count on. After a reload there are two of them for a while, or more: none may take
// away what another one counts on, or take up what another one is at.

/** A file that somebody is about to be told of: on this disk it stays as long as one of them counts on it. */
export interface Claim {
  /** Providers of this machine that held it before anybody counted on it. */
  readonly before: readonly string[]
  /** Somebody was told: from now on nobody may undo it. */
  keep(): void
  /** At the end. `undo` is called where nobody else counts on it and nobody was told; nobody can claim it meanwhile. */
  leave(undo?: () => Promise<void>): Promise<void>
}

export interface Claims {
  claim(name: string, before: () => Promise<readonly string[]>): Promise<Claim>
  /** Of entries of the journal: somebody is at it. */
  begin(id: string): void
  end(id: string): void
  /** Those of what `load` gives that nobody is at, or was while it was loaded. */
  abandoned<T extends { readonly id: string }>(load: () => Promise<readonly T[]>): Promise<T[]>
}

type Held = {
  readonly before: Promise<readonly string[]>
  users: number
  isKept: boolean
  undoing: Promise<void> | undefined
}

export function createClaims(): Claims {
  const claimed = new Map<string, Held>()
  const begun = new Set<string>()
  const loads = new Set<Set<string>>()

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
    begin(id) {
      begun.add(id)
      for (const seen of loads) seen.add(id)
    },
    end: (id) => void begun.delete(id),
    async abandoned(load) {
      // What is finished while the journal is read may be in what was read.
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
