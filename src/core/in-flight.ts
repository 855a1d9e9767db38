// Runs a few pieces of work concurrently while the next is prepared. The first failure ends it.

interface InFlight {
  /** Resolves when there is capacity for more. Rejects with the first failure so far. */
  add(work: Promise<unknown>): Promise<void>
  /** Waits for all of it, even after a failure. Rejects with the first one. */
  end(): Promise<void>
}

export function createInFlight(max: number): InFlight {
  const running = new Set<Promise<void>>()
  let failed: { readonly error: unknown } | undefined

  function throwIfFailed(): void {
    if (failed) throw failed.error
  }

  return {
    async add(work) {
      const one = work
        .then(
          () => {},
          (error: unknown) => {
            failed ??= { error }
          },
        )
        .finally(() => running.delete(one))
      running.add(one)
      if (running.size >= max) await Promise.race(running)
      throwIfFailed()
    },
    async end() {
      await Promise.all(running)
      throwIfFailed()
    },
  }
}
