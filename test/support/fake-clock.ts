// Time in the hand of a test: nothing moves until `advance` says so.
import type { Clock } from '../../src/core/clock.ts'

export interface FakeClock extends Clock {
  /** Moves on, running what is due in order, and lets promises settle in between. */
  advance(ms: number): Promise<void>
  /** Time goes by with nothing running, as in a process that was held up: then all that was due runs, late. */
  jump(ms: number): Promise<void>
  /** Work takes so long: time goes by within one turn of the loop, and no timer runs. */
  spend(ms: number): void
  readonly timers: number
}

export function createFakeClock(): FakeClock {
  let now = 1_000_000
  let heldUp = 0
  let timers: { at: number; action: () => void }[] = []
  const settle = async () => {
    for (let turn = 0; turn < 20; turn++) await Promise.resolve()
    await new Promise((resolve) => setImmediate(resolve))
  }
  const clock: FakeClock = {
    now: () => now,
    monotonic: () => now,
    idle: () => now - heldUp,
    after(ms, action) {
      const timer = { at: now + ms, action }
      timers.push(timer)
      return () => {
        timers = timers.filter((one) => one !== timer)
      }
    },
    sleep(ms, signal) {
      return new Promise((resolve, reject) => {
        if (signal?.aborted) return reject(signal.reason)
        const cancel = clock.after(ms, () => {
          signal?.removeEventListener('abort', leave)
          resolve()
        })
        const leave = () => {
          cancel()
          reject(signal?.reason)
        }
        signal?.addEventListener('abort', leave, { once: true })
      })
    },
    async advance(ms) {
      const until = now + ms
      await settle()
      for (;;) {
        const next = timers.filter(({ at }) => at <= until).sort((one, other) => one.at - other.at)[0]
        if (!next) break
        now = Math.max(now, next.at)
        timers = timers.filter((one) => one !== next)
        next.action()
        await settle()
      }
      now = until
      await settle()
    },
    async jump(ms) {
      await settle()
      now += ms
      heldUp += ms
      await clock.advance(0)
    },
    spend(ms) {
      now += ms
    },
    get timers() {
      return timers.length
    },
  }
  return clock
}
