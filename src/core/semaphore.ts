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
  readonly max: number
  readonly maxQueued: number
  /** Creates the Failure for a caller that finds the queue full or waited too long in it. */
  readonly full: () => Failure
  /** The maximum time in the queue; unlimited by default. */
  readonly queueTimeout?: { readonly ms: number; readonly clock: Clock }
}): Semaphore {
  const { max, queueTimeout } = options
  const queue = new Set<() => void>()
  let running = 0

  function admit(): void {
    for (const start of queue) {
      if (running >= max) return
      queue.delete(start)
      running++
      start()
    }
  }

  async function slot(signal: AbortSignal | undefined): Promise<void> {
    if (queue.size === 0 && running < max) {
      running++
      return
    }
    if (queue.size >= options.maxQueued) throw options.full()
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    // A caller that was already admitted must release its slot itself.
    const leave = (reason: unknown) => {
      if (queue.delete(resolve)) reject(reason)
    }
    const onAbort = () => leave(signal?.reason)
    const cancel = queueTimeout?.clock.after(queueTimeout.ms, () => leave(options.full()))
    queue.add(resolve)
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
    await slot(signal)
    let isHeld = true
    const release = () => {
      if (!isHeld) return
      isHeld = false
      running--
      admit()
    }
    if (signal?.aborted) release()
    signal?.throwIfAborted()
    return release
  }

  return {
    async run(work, signal) {
      const release = await enter(signal)
      try {
        return await work()
      } finally {
        release()
      }
    },
    enter,
  }
}
