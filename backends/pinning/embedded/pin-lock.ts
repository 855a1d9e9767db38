// Pins run together; unpinning needs the store alone, or it would free a block that a new pin counts on. All stores
// over one folder use the same lock: during a reload there are two.

export interface PinLock {
  together<T>(work: () => Promise<T>): Promise<T>
  alone<T>(work: () => Promise<T>): Promise<T>
}

export function createPinLock(): PinLock {
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
      // A caller that waits to be alone is not overtaken by later ones.
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
