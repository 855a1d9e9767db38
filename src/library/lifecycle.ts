// The life cycle of a gateway in a program: nothing is touched before `start`, and everything is
// released by `close`.
import { Failure } from '../core/failure.ts'

export type LifecycleOptions<Running> = {
  readonly make: () => Promise<Running>
  /** Called when it starts. */
  readonly onStart: () => void
  readonly onRunning: (running: Running) => void
  /** Called when it will not run, or no longer runs. */
  readonly onOver: (why: Failure) => void
}

export interface Lifecycle<Running> {
  start(): Promise<void>
  close(): Promise<void>
  /** Undefined unless it runs. */
  current(): Running | undefined
  /** Resolves once it has started. Rejects with a Failure if it does not run. */
  running(): Promise<Running>
}

export function createLifecycle<Running extends { close(): Promise<void> }>(
  options: LifecycleOptions<Running>,
): Lifecycle<Running> {
  let starting: Promise<Running> | undefined
  let closing: Promise<void> | undefined
  let running: Running | undefined

  async function begin(): Promise<Running> {
    options.onStart()
    try {
      const made = await options.make()
      if (closing !== undefined) return made
      running = made
      options.onRunning(made)
      return made
    } catch (error) {
      if (closing === undefined) options.onOver(notRunning('this gateway could not start'))
      throw error
    }
  }

  async function end(): Promise<void> {
    running = undefined
    options.onOver(ended())
    const made = await starting?.catch(() => undefined)
    await made?.close()
  }

  return {
    async start() {
      if (closing !== undefined) throw ended()
      starting ??= begin()
      await starting
      if (closing !== undefined) throw ended()
    },
    close() {
      closing ??= end()
      return closing
    },
    current: () => running,
    async running() {
      if (running) return running
      if (closing !== undefined) throw ended()
      if (starting === undefined) throw notStarted()
      await starting.catch(() => {})
      if (running) return running
      throw closing === undefined ? notRunning('this gateway could not start') : ended()
    },
  }
}

const notRunning = (what: string): Failure => new Failure('overloaded', what, { source: 'ours', retryAfterMs: 1000 })
const ended = (): Failure => notRunning('this gateway is closed')

/** The Failure before a start. */
export const notStarted = (): Failure => notRunning('this gateway is not started: call its start()')
