// What has to be closed again, in the opposite order of its making. Imports nothing of ours.

export interface Closers {
  add(close: () => unknown): void
  /** One that fails keeps none of the others open; the first failure is what it rejects with. */
  close(): Promise<void>
}

export function createClosers(): Closers {
  const closers: (() => unknown)[] = []
  return {
    add: (close) => void closers.push(close),
    async close() {
      const failed: unknown[] = []
      for (let next = closers.pop(); next; next = closers.pop())
        try {
          await next()
        } catch (error) {
          failed.push(error)
        }
      if (failed.length > 0) throw failed[0]
    },
  }
}
