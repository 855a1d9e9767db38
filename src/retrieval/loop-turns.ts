// Shares the event loop among what needs no waiting: walks whose blocks are all in memory, requests that come by the thousand
// in one turn, readers that an upstream turns away. All of a gateway together get one short slice of each turn of the loop, in
// one line, the first first: a walk stands behind the thousands that came before it.
import type { Clock } from '../core/clock.ts'

export interface LoopTurns {
  /** Undefined while this turn of the loop has time left; otherwise resolves in a later one. */
  giveWay(): Promise<void> | undefined
  /** Resolves in a later turn that has time left, for work that may come due thousands of times in one turn. */
  inLine(): Promise<void>
}

export const sliceMs = 5

// Those that are let go on in one turn, one behind the other while its slice lasts.
const mostReleased = 64

/** `later` runs an action in the next turn of the loop, behind what the sockets brought. */
export function createLoopTurns(clock: Clock, later: (action: () => void) => void = setImmediate): LoopTurns {
  const waiting: (() => void)[] = []
  let isOpen = false
  let beganAt = 0

  const isOver = (): boolean => clock.monotonic() - beganAt >= sliceMs

  function release(): void {
    if (!isOver()) waiting.shift()?.()
  }

  function begin(): void {
    beganAt = clock.monotonic()
    isOpen = waiting.length > 0
    if (!isOpen) return
    // The first action of the next turn, so that the slice of each turn begins before anyone goes on in it.
    later(begin)
    for (let count = Math.min(waiting.length, mostReleased); count > 0; count--) later(release)
  }

  function open(): void {
    if (isOpen) return
    isOpen = true
    beganAt = clock.monotonic()
    later(begin)
  }

  const inLine = (): Promise<void> => {
    open()
    return new Promise((resolve) => void waiting.push(resolve))
  }

  return {
    inLine,
    giveWay() {
      open()
      return isOver() ? inLine() : undefined
    },
  }
}
