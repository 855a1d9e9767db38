// At most so many at once, the rest in line, and the line has an end. A slot is held until the work is really over, also
// when whoever asked has stopped waiting: work that hangs must not let more of its kind pile up behind it. Imports leaves only.
import type { Clock } from './clock.ts'
import type { Failure } from './failure.ts'

export interface Gate {
  run<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T>
  /** Resolves with what gives the slot back. */
  enter(signal: AbortSignal | undefined): Promise<() => void>
}

export function createGate(options: {
  readonly most: number
  readonly inLine: number
  /** For whoever finds the line full, or stood in it for too long. */
  readonly full: () => Failure
  /** How long anybody stands in it, where there is a limit to that. */
  readonly patience?: { readonly ms: number; readonly clock: Clock }
}): Gate {
  const { patience } = options
  const line = new Set<() => void>()
  let inside = 0

  async function turn(signal: AbortSignal | undefined): Promise<void> {
    if (inside < options.most) {
      inside++
      return
    }
    if (line.size >= options.inLine) throw options.full()
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    // Whose turn has come already goes in, and out again by itself.
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

  function next(): void {
    const [first] = line
    if (!first) {
      inside--
      return
    }
    line.delete(first)
    first()
  }

  async function enter(signal: AbortSignal | undefined): Promise<() => void> {
    signal?.throwIfAborted()
    await turn(signal)
    let isIn = true
    const leave = () => {
      if (isIn) next()
      isIn = false
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
