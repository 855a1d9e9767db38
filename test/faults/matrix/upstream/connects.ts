// Who the gateway connects to, while a row runs: also a host that refuses, or that no packet reaches.
import { subscribe, unsubscribe } from 'node:diagnostics_channel'

export type Strangers = {
  /** Each host and port that was connected to since the last call, and is none of those that may be. */
  take(): readonly string[]
  stop(): void
}

const channel = 'undici:client:beforeConnect'

export function watchConnects(allowed: readonly string[]): Strangers {
  const known = new Set(allowed.map((url) => new URL(url).host))
  const found = new Set<string>()
  const note = (message: unknown): void => {
    const { host } = (message as { connectParams: { host: string } }).connectParams
    if (!known.has(host)) found.add(host)
  }
  subscribe(channel, note)
  return {
    take() {
      const hosts = [...found]
      found.clear()
      return hosts
    },
    stop: () => unsubscribe(channel, note),
  }
}
