// Pins may go on together; unpinning needs the store alone, or it would free a block that another pin is counting on. So
// all stores over one folder take the same turns: while one gateway takes over from another there are two.

export interface Turns {
  together<T>(work: () => Promise<T>): Promise<T>
  alone<T>(work: () => Promise<T>): Promise<T>
}

export function createTurns(): Turns {
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
