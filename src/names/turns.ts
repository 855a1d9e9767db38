// So many at once, and so many more who wait a moment: a flood of made-up names costs neither sockets nor memory without
// end, and whoever comes on top of it is told so at once.
import type { Clock } from '../clock.ts'
import { withDeadline } from '../deadline.ts'
import { Failure } from '../failure.ts'

export type Turns = <T>(signal: AbortSignal, work: () => Promise<T>) => Promise<T>

export function createTurns(options: {
  readonly atOnce: number
  readonly waiting: number
  readonly waitMs: number
  /** What is too much, for who is turned away. */
  readonly what: string
  readonly clock: Clock
}): Turns {
  const { atOnce, waiting, waitMs, what, clock } = options
  const queue = new Set<() => void>()
  let busy = 0

  const full = () =>
    new Failure('overloaded', `${what}; come back in a second`, { source: 'ours', retryAfterMs: 1_000 })

  async function enter(signal: AbortSignal): Promise<void> {
    if (busy < atOnce) {
      busy++
      return
    }
    if (queue.size >= waiting) throw full()
    const turn = Promise.withResolvers<void>()
    queue.add(turn.resolve)
    try {
      await withDeadline({ ms: waitMs, clock, signal, late: full }, () => turn.promise)
    } catch (error) {
      // The turn may have come in the moment of leaving: then it goes to the next one.
      if (!queue.delete(turn.resolve)) leave()
      throw error
    }
  }

  /** A turn that is handed on stays taken. */
  function leave(): void {
    const [next] = queue
    if (!next) {
      busy--
      return
    }
    queue.delete(next)
    next()
  }

  return async (signal, work) => {
    await enter(signal)
    try {
      return await work()
    } finally {
      leave()
    }
  }
}
