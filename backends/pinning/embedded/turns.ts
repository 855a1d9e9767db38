// Pins may go on together; unpinning needs the store alone, or it would free a block that another pin is counting on. So
// all stores of this process over one folder take the same turns: while one gateway takes over from another there are two.

export interface Turns {
  together<T>(work: () => Promise<T>): Promise<T>
  alone<T>(work: () => Promise<T>): Promise<T>
}

const shared = new Map<string, { readonly turns: Turns; users: number }>()

/** Those of this folder, until `leave`. */
export function joinTurns(root: string): { readonly turns: Turns; leave(): void } {
  const one = shared.get(root) ?? { turns: createTurns(), users: 0 }
  shared.set(root, one)
  one.users++
  let isGone = false
  return {
    turns: one.turns,
    leave() {
      if (isGone) return
      isGone = true
      one.users--
      if (one.users === 0) shared.delete(root)
    },
  }
}

function createTurns(): Turns {
  const running = new Set<Promise<unknown>>()
  let last: Promise<unknown> = Promise.resolve()
  let waiting = 0

  const track = <T>(work: Promise<T>): Promise<T> => {
    const settled = work.catch(() => {}).finally(() => running.delete(settled))
    running.add(settled)
    return work
  }

  return {
    async together(work) {
      // Whoever wants to be alone is not passed by those who come after it.
      while (waiting > 0) await last
      return track(work())
    },
    alone(work) {
      waiting++
      const done = last
        .then(() => Promise.all(running))
        .then(work)
        .finally(() => waiting--)
      last = done.catch(() => {})
      return done
    },
  }
}
