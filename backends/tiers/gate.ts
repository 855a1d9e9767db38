// At most so many at once, the rest in line, and the line has an end. A slot is held until the work is really over, also
// when whoever asked has stopped waiting: work that hangs must not let more of its kind pile up behind it.
import type { Failure } from '../../src/failure.ts'

export interface Gate {
  run<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T>
}

export function createGate(options: {
  readonly most: number
  readonly inLine: number
  readonly full: () => Failure
}): Gate {
  const line = new Set<() => void>()
  let inside = 0

  async function turn(signal: AbortSignal): Promise<void> {
    if (inside < options.most) {
      inside++
      return
    }
    if (line.size >= options.inLine) throw options.full()
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const leave = () => {
      line.delete(resolve)
      reject(signal.reason)
    }
    line.add(resolve)
    signal.addEventListener('abort', leave, { once: true })
    try {
      await promise
    } finally {
      signal.removeEventListener('abort', leave)
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

  return {
    async run(work, signal) {
      signal.throwIfAborted()
      await turn(signal)
      try {
        signal.throwIfAborted()
        return await work()
      } finally {
        next()
      }
    },
  }
}
