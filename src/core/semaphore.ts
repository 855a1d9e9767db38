// A semaphore with a bounded queue. Work keeps its slot until it has ended, even if its caller
// left: otherwise hanging work would pile up.
import type { Clock } from './clock.ts'
import type { Failure } from './failure.ts'

export interface Semaphore {
  run<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T>
  /** Resolves with a function that releases the slot. */
  enter(signal: AbortSignal | undefined): Promise<() => void>
}

export function createSemaphore(options: {
  readonly most: number
  readonly inLine: number
  /** Creates the Failure for a caller that finds the queue full or waited too long in it. */
  readonly full: () => Failure
  /** The maximum time in the queue; unlimited by default. */
  readonly patience?: { readonly ms: number; readonly clock: Clock }
}): Semaphore {
  const { most, patience } = options
  const line = new Set<() => void>()
  let inside = 0

  function admit(): void {
    for (const goIn of line) {
      if (inside >= most) return
      line.delete(goIn)
      inside++
      goIn()
    }
  }

  async function turn(signal: AbortSignal | undefined): Promise<void> {
    if (line.size === 0 && inside < most) {
      inside++
      return
    }
    if (line.size >= options.inLine) throw options.full()
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    // A caller that was already admitted must release its slot itself.
    const leave = (reason: unknown) => {
      if (line.delete(resolve)) reject(reason)
    }
    const onAbort = () => leave(signal?.reason)
    const cancel = patience?.clock.after(patience.ms, () => leave(options.full()))
    line.add(resolve)
    signal?.addEventListener('abort', onAbort, { once: true })
    try {
      await promise
    } finally {
      cancel?.()
      signal?.removeEventListener('abort', onAbort)
    }
  }

  async function enter(signal: AbortSignal | undefined): Promise<() => void> {
    signal?.throwIfAborted()
    await turn(signal)
    let isIn = true
    const leave = () => {
      if (!isIn) return
      isIn = false
      inside--
      admit()
    }
    if (signal?.aborted) leave()
    signal?.throwIfAborted()
    return leave
  }

  return {
    async run(work, signal) {
      const leave = await enter(signal)
      try {
        return await work()
      } finally {
        leave()
      }
    },
    enter,
  }
}
