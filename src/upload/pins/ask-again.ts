// Asks providers again, some time after a pin was deleted that they may have got and not said so: what they pinned since is deleted.
// In memory, and bounded: what is forgotten at the end of the process is deleted by a repeated request. A reload passes it on.
import type { CID } from 'multiformats/cid'
import type { Provider } from '../../../backends/pinning/contract.ts'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { InTime } from '../asks.ts'

export interface AskAgain {
  /** These providers may pin it later. */
  later(cid: CID, names: readonly string[]): void
}

const usualMost = 1000

type Waiting = {
  readonly cid: CID
  readonly names: readonly string[]
  /** How often they were asked again. */
  readonly turn: number
  /** By the monotonic clock. */
  readonly dueAt: number
}

/** What waits, of all gateways over one folder: the first whose timer comes takes it. */
export type WaitingList = {
  readonly all: Set<Waiting>
  readonly takers: Set<(one: Waiting) => void>
  readonly most: number
  /** Beyond that. */
  forgotten: number
}

export const createWaitingList = (most = usualMost): WaitingList => ({
  all: new Set(),
  takers: new Set(),
  most,
  forgotten: 0,
})

export type AskAgainOptions = {
  /** Of all gateways over the data folder. By default of this one alone. */
  readonly list?: WaitingList
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

export function createAskAgain(options: AskAgainOptions): AskAgain {
  const { list = createWaitingList(), providers, inTime, isWanted, alone, clock, log, closing } = options
  const timers = new Set<() => void>()
  closing.addEventListener('abort', () => {
    list.takers.delete(take)
    for (const stop of timers) stop()
    timers.clear()
  })

  async function ask(provider: Provider, cid: CID): Promise<void> {
    if ((await inTime(provider, closing, (own) => provider.status(cid, own))) === 'missing') return
    await inTime(provider, closing, (own) => provider.unpin(cid, own))
  }

  function wait({ cid, names, turn }: Omit<Waiting, 'dueAt'>): void {
    const ms = waits[turn]
    if (ms === undefined) return
    if (list.all.size >= list.most) {
      list.forgotten++
      log('warn', 'pin.recheck-dropped', { cid: cid.toString(), providers: names, forgotten: list.forgotten })
      return
    }
    const one = { cid, names, turn, dueAt: clock.monotonic() + ms }
    list.all.add(one)
    for (const each of list.takers) each(one)
  }

  async function askAll({ cid, names, turn }: Waiting): Promise<void> {
    if (await isWanted(cid)) return
    const failed: string[] = []
    const some = providers.filter(({ name }) => names.includes(name))
    await Promise.all(some.map((each) => ask(each, cid).catch(() => void failed.push(each.name))))
    if (failed.length > 0 && turn + 1 === waits.length && !closing.aborted)
      log('warn', 'pin.state-unknown', { cid: cid.toString(), providers: failed })
    // Where this gateway closed meanwhile, the next one asks them.
    wait({ cid, names, turn: closing.aborted ? turn : turn + 1 })
  }

  function take(one: Waiting): void {
    const stop = clock.after(Math.max(0, one.dueAt - clock.monotonic()), () => {
      timers.delete(stop)
      // The gateway stops, or its journal cannot be read: a repeated request asks.
      if (list.all.delete(one)) alone(one.cid, () => askAll(one)).catch(() => {})
    })
    timers.add(stop)
  }

  for (const one of list.all) take(one)
  if (!closing.aborted) list.takers.add(take)
  return { later: (cid, names) => wait({ cid, names, turn: 0 }) }
}
