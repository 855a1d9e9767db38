// Asks providers again, some time after a pin was deleted that they may have got and not said so: what they pinned since is deleted.
// In memory, and bounded: what is forgotten at the end of the process is deleted by a repeated request.
import type { CID } from 'multiformats/cid'
import type { Provider } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { InTime } from './provider-calls.ts'

export interface AskAgain {
  /** These providers may pin it later. */
  later(cid: CID, names: readonly string[]): void
}

export type AskAgainOptions = {
  readonly providers: readonly Provider[]
  readonly inTime: InTime
  /** Whether it was uploaded anew: then it stays. */
  readonly isWanted: (cid: CID) => Promise<boolean>
  /** Runs while no upload of the same file counts on what is there. */
  readonly alone: (cid: CID, work: () => Promise<void>) => Promise<unknown>
  readonly clock: Clock
  readonly log: Log
  readonly closing: AbortSignal
}

const minute = 60_000
const waits = [minute, 10 * minute, 60 * minute] as const
const most = 1000

export function createAskAgain({ providers, inTime, isWanted, alone, clock, log, closing }: AskAgainOptions): AskAgain {
  const timers = new Set<() => void>()
  closing.addEventListener('abort', () => {
    for (const stop of timers) stop()
    timers.clear()
  })

  async function ask(provider: Provider, cid: CID): Promise<void> {
    if ((await inTime(provider, closing, (own) => provider.status(cid, own))) === 'absent') return
    await inTime(provider, closing, (own) => provider.unpin(cid, own))
  }

  function wait(cid: CID, names: readonly string[], turn: number): void {
    const ms = waits[turn]
    if (ms === undefined || closing.aborted || timers.size >= most) return
    const stop = clock.after(ms, () => {
      timers.delete(stop)
      const some = providers.filter(({ name }) => names.includes(name))
      const work = async () => {
        if (await isWanted(cid)) return
        const failed: string[] = []
        const ended = some.map((one) => ask(one, cid).catch(() => void failed.push(one.name)))
        await Promise.all(ended)
        if (failed.length > 0 && turn + 1 === waits.length && !closing.aborted)
          log('warn', 'pin.not-known', { cid: cid.toString(), providers: failed })
        wait(cid, names, turn + 1)
      }
      alone(cid, work).catch(() => {}) // the gateway stops, or its journal cannot be read: a repeated request asks
    })
    timers.add(stop)
  }

  return { later: (cid, names) => wait(cid, names, 0) }
}
