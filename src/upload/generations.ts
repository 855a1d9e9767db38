// The gateways over one folder, the newest last: after a reload there are two or more for a while. An earlier gateway finishes
// its own uploads; only the newest resumes the rest.

export interface Generations {
  join(): UploadGeneration
}

export interface UploadGeneration {
  /** No other gateway of this process used the folder when this one started. */
  readonly isFirst: boolean
  /** Resolves when every earlier gateway has closed: true if this one is the newest, false if it was stopped first. */
  turn(stopped: AbortSignal): Promise<boolean>
  leave(): void
}

export function createGenerations(): Generations {
  const line: Promise<void>[] = []

  return {
    join() {
      const { promise: gone, resolve: leave } = Promise.withResolvers<void>()
      const isFirst = line.length === 0
      const earlier = Promise.all(line)
      line.push(gone)
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
        leave() {
          leave()
          const at = line.indexOf(gone)
          if (at >= 0) line.splice(at, 1)
        },
      }
    },
  }
}
