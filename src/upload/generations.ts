// The gateways over one folder, the newest last: after a reload there are two or more for a while. An earlier gateway finishes
// its own uploads; only the newest resumes the rest. What one of them deletes is on its way in none of them.
import type { Confirmation } from './confirm/confirm.ts'

export type OnTheirWay = Pick<Confirmation, 'open' | 'drop'>

export interface Generations {
  join(uploads: OnTheirWay): UploadGeneration
}

export interface UploadGeneration {
  /** No other gateway of this process used the folder when this one started. */
  readonly isFirst: boolean
  /** Resolves when every earlier gateway has closed: true if this one is the newest, false if it was stopped first. */
  turn(stopped: AbortSignal): Promise<boolean>
  /** The uploads of every gateway over the folder, this one among them. */
  all(): readonly OnTheirWay[]
  leave(): void
}

export function createGenerations(): Generations {
  const line: Promise<void>[] = []
  const running = new Set<OnTheirWay>()

  return {
    join(uploads) {
      const { promise: gone, resolve: leave } = Promise.withResolvers<void>()
      const isFirst = line.length === 0
      const earlier = Promise.all(line)
      line.push(gone)
      running.add(uploads)
      return {
        isFirst,
        async turn(stopped) {
          const stop = Promise.withResolvers<void>()
          const onStop = () => stop.resolve()
          stopped.addEventListener('abort', onStop, { once: true })
          try {
            await Promise.race([earlier, stop.promise])
            for (let newest = line.at(-1); !stopped.aborted; newest = line.at(-1)) {
              if (newest === gone) return true
              await Promise.race([newest, stop.promise])
            }
            return false
          } finally {
            stopped.removeEventListener('abort', onStop)
          }
        },
        all: () => [...running],
        leave() {
          leave()
          running.delete(uploads)
          const at = line.indexOf(gone)
          if (at >= 0) line.splice(at, 1)
        },
      }
    },
  }
}
