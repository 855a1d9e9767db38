// Upstreams start one after another; the first that answers with something proved wins, the others are aborted.
// A failure starts the next one at once and is no hedge; only impatience draws on the hedge budget.
import pAny, { AggregateError as AllFailed } from 'p-any'
import type { Clock } from '../../core/clock.ts'
import { cancelled, Failure, isFailure } from '../../core/failure.ts'
import type { Step } from '../upstreams/order.ts'

export type RaceOptions<Who, T> = {
  readonly steps: readonly Step<Who>[]
  /**
   * Runs one attempt; resolves only with something proved. The signal aborts when it has lost or no reader waits. `giveWay`:
   * the attempt failed and may be tried again, so the next one starts as if it had ended.
   */
  readonly attempt: (who: Who, signal: AbortSignal, giveWay: () => void) => Promise<T>
  /** Whether this one may be started although none has failed. */
  readonly mayHedge: (who: Who) => boolean
  /** Called when one failed, or took longer than it may. */
  readonly onLate?: () => void
  readonly signal: AbortSignal
  readonly clock: Clock
}

const retryHedgeMs = 100

/** The reason a losing attempt is aborted with: it counts as slower than the winner, not as a failure. */
export const lost: Failure = new Failure('cancelled', 'another upstream was faster', { source: 'ours' })

/** Resolves with the winner's value. Rejects with the failures of all, in order, or with the signal's reason. */
export function race<Who, T>(options: RaceOptions<Who, T>): Promise<T> {
  const [only] = options.steps
  return only && options.steps.length === 1 ? alone(only.who, options) : together(options)
}

async function together<Who, T>(options: RaceOptions<Who, T>): Promise<T> {
  const { steps, signal, clock } = options
  signal.throwIfAborted()
  if (steps.length === 0)
    throw new Failure('unavailable', 'no upstream is configured, or none can be asked', { source: 'ours' })
  const gates = steps.map(() => Promise.withResolvers<void>())
  const waiting = steps.map((_, index) => index)
  let over = false
  let stopTimer = () => {}

  const start = (index: number | undefined) => {
    stopTimer()
    const step = index === undefined ? undefined : steps[index]
    if (over || index === undefined || !step) return
    waiting.splice(waiting.indexOf(index), 1)
    gates[index]?.resolve()
    stopTimer = clock.after(step.patienceMs, hedge)
  }
  const hedge = () => {
    if (over) return
    options.onLate?.()
    if (waiting.length === 0) return
    const next = waiting.find((index) => options.mayHedge((steps[index] as Step<Who>).who))
    if (next !== undefined) start(next)
    else stopTimer = clock.after(retryHedgeMs, hedge)
  }

  const attempts = steps.map((step, index) => {
    const controller = new AbortController()
    let hasGivenWay = false
    const giveWay = () => {
      if (!hasGivenWay && !over) {
        options.onLate?.()
        start(waiting[0])
      }
      hasGivenWay = true
    }
    const run = async (): Promise<T> => {
      await gates[index]?.promise
      try {
        return await options.attempt(step.who, controller.signal, giveWay)
      } catch (error) {
        giveWay()
        throw error
      }
    }
    // p-any stops the losers by calling `cancel` on them.
    return Object.assign(run(), {
      cancel: (reason: Failure = lost) => {
        controller.abort(reason)
        gates[index]?.reject(reason)
      },
    })
  })
  const abandon = () => {
    const reason = isFailure(signal.reason) ? signal.reason : cancelled()
    for (const attempt of attempts) attempt.cancel(reason)
  }
  signal.addEventListener('abort', abandon, { once: true })
  start(waiting[0])
  try {
    return await pAny(attempts)
  } catch (error) {
    signal.throwIfAborted()
    throw error
  } finally {
    over = true
    stopTimer()
    signal.removeEventListener('abort', abandon)
  }
}

/** The only one there is to ask: nothing has to be started, or let go. */
async function alone<Who, T>(who: Who, { attempt, signal }: RaceOptions<Who, T>): Promise<T> {
  signal.throwIfAborted()
  try {
    return await attempt(who, signal, () => {})
  } catch (error) {
    signal.throwIfAborted()
    throw new AllFailed([error instanceof Error ? error : new Error(String(error))])
  }
}
