// At most so much at once, the rest in line, and the line has an end. A place is held until the work is really over, also
// when the caller has stopped waiting: work that hangs must not let more of its kind pile up behind it.
import type { Clock } from './clock.ts'
import type { Failure } from './failure.ts'

export interface Gate {
  run<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T>
  /** Resolves with what gives the place back. `weight`: how much of `most` it takes; 1 by default. */
  enter(signal: AbortSignal | undefined, weight?: number): Promise<() => void>
}

type Waiting = { readonly weight: number; readonly goIn: () => void }

export function createGate(options: {
  readonly most: number
  readonly inLine: number
  /** For who finds the line full, or stood in it for too long. */
  readonly full: () => Failure
  /** How long a caller stands in line, where there is a limit to that. */
  readonly patience?: { readonly ms: number; readonly clock: Clock }
}): Gate {
  const { most, patience } = options
  const line = new Set<Waiting>()
  let inside = 0

  /** What is heavier than everything together goes in alone. */
  const fits = (weight: number): boolean => inside === 0 || inside + weight <= most

  /** In order: a heavy one is not passed over for ever. */
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
    // One whose turn has come already goes in, and out again by itself.
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
