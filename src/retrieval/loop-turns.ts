// Shares the event loop among what needs no waiting: walks whose blocks are all in memory, requests that come by the hundred in one
// turn, readers that an upstream turns away. All of a gateway together get one short slice of each turn of the loop, in one line, the
// first first: a walk stands behind the thousands that came before it. Requests that begin have a line of their own before it.
import type { Clock } from '../core/clock.ts'

export interface LoopTurns {
  /**
   * For a request: undefined if it may begin in this turn, otherwise resolves in the turn in which it may. What a request does after
   * that comes in later turns, and each of those lasts as long as all that began before want of it: so few begin in each turn.
   */
  begin(): Promise<void> | undefined
  /** Undefined while this turn of the loop has time left; otherwise resolves in a later one. */
  giveWay(): Promise<void> | undefined
  /** Resolves in a later turn that has time left, for work that may come due thousands of times in one turn. */
  inLine(): Promise<void>
}

export const sliceMs = 5
/** While requests wait to begin: a walk is long, and they are most likely short. */
export const shortSliceMs = 2
export const mostBegun = 8

// Those that are let go on in one turn, one behind the other while its slice lasts.
const mostReleased = 64

/** `later` runs an action in the next turn of the loop, behind what the sockets brought. */
export function createLoopTurns(clock: Clock, later: (action: () => void) => void = setImmediate): LoopTurns {
  const waiting: (() => void)[] = []
  const toBegin: (() => void)[] = []
  let isOpen = false
  let beganAt = 0
  let begun = 0

  const isOver = (): boolean => clock.monotonic() - beganAt >= (toBegin.length > 0 ? shortSliceMs : sliceMs)

  function release(): void {
    if (!isOver()) waiting.shift()?.()
  }

  function nextTurn(): void {
    beganAt = clock.monotonic()
    isOpen = waiting.length > 0 || toBegin.length > 0
    begun = Math.min(mostBegun, toBegin.length)
    if (!isOpen) return
    // The first action of the next turn, so that the slice of each turn begins before anyone goes on in it.
    later(nextTurn)
    for (const begin of toBegin.splice(0, begun)) later(begin)
    for (let count = Math.min(waiting.length, mostReleased); count > 0; count--) later(release)
  }

  function open(): void {
    if (isOpen) return
    isOpen = true
    beganAt = clock.monotonic()
    later(nextTurn)
  }

  const inLine = (): Promise<void> => {
    open()
    return new Promise((resolve) => void waiting.push(resolve))
  }

  return {
    begin() {
      open()
      if (begun >= mostBegun || toBegin.length > 0) return new Promise((resolve) => void toBegin.push(resolve))
      begun++
      return undefined
    },
    inLine,
    giveWay() {
      open()
      return isOver() ? inLine() : undefined
    },
  }
}
