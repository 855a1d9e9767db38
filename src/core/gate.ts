// Limits concurrency: at most so much at once, the rest waits in a bounded queue. Work keeps its place until it is
// really over, even when its caller has left: hanging work must not let more pile up behind it.
import type { Clock } from './clock.ts'
import type { Failure } from './failure.ts'

export interface Gate {
  run<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T>
  /** Resolves with a function that gives the place back. `weight`: how much of `most` it takes; 1 by default. */
  enter(signal: AbortSignal | undefined, weight?: number): Promise<() => void>
}

type Waiting = { readonly weight: number; readonly goIn: () => void }

export function createGate(options: {
  readonly most: number
  readonly inLine: number
  /** The Failure for a caller that finds the queue full, or waited too long in it. */
  readonly full: () => Failure
  /** How long a caller may wait in the queue; without it there is no limit. */
  readonly patience?: { readonly ms: number; readonly clock: Clock }
}): Gate {
  const { most, patience } = options
  const line = new Set<Waiting>()
  let inside = 0

  /** Work heavier than the whole limit runs alone. */
  const fits = (weight: number): boolean => inside === 0 || inside + weight <= most

  /** First come, first served: heavy work is not overtaken for ever. */
  function admit(): void {
    for (const first of line) {
      if (!fits(first.weight)) return
      line.delete(first)
      inside += first.weight
      first.goIn()
    }
  }

  async function turn(weight: number, signal: AbortSignal | undefined): Promise<void> {
    if (line.size === 0 && fits(weight)) {
      inside += weight
      return
    }
    if (line.size >= options.inLine) throw options.full()
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const waiting: Waiting = { weight, goIn: resolve }
    // A caller that was let in already leaves by itself.
    const leave = (reason: unknown) => {
      if (!line.delete(waiting)) return
      reject(reason)
      admit()
    }
    const onAbort = () => leave(signal?.reason)
    const cancel = patience?.clock.after(patience.ms, () => leave(options.full()))
    line.add(waiting)
    signal?.addEventListener('abort', onAbort, { once: true })
    try {
      await promise
    } finally {
      cancel?.()
      signal?.removeEventListener('abort', onAbort)
    }
  }

  async function enter(signal: AbortSignal | undefined, weight = 1): Promise<() => void> {
    signal?.throwIfAborted()
    await turn(weight, signal)
    let isIn = true
    const leave = () => {
      if (!isIn) return
      isIn = false
      inside -= weight
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
