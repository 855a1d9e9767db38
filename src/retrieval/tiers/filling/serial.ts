// For each key one thing at a time, in the order in which it was asked for.
export interface Serial {
  /** Does the work after what was asked for under this key before, whatever became of that. */
  run<T>(key: string, work: () => Promise<T>): Promise<T>
  isBusy(key: string): boolean
  /** How many keys are busy. */
  readonly size: number
}

/** `onDone`: after each piece of work. */
export function createSerial(onDone: () => void): Serial {
  // None of these promises rejects.
  const busy = new Map<string, Promise<unknown>>()
  return {
    run(key, work) {
      const before = busy.get(key)
      const done = before === undefined ? work() : before.then(work)
      const settled = done.then(
        () => {},
        () => {},
      )
      const over = settled.then(() => {
        if (busy.get(key) === over) busy.delete(key)
        onDone()
      })
      busy.set(key, over)
      return done
    },
    isBusy: (key) => busy.has(key),
    get size() {
      return busy.size
    },
  }
}
