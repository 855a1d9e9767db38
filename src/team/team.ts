// The processes that answer for one gateway, as a gateway in one of them sees the others. The first one owns the data folder: its
// journal, its pins, and what is evicted. The others, its workers, read and fetch by themselves, and hand everything else on to it.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Budget } from '../core/counting/budget.ts'
import type { Arrivals } from './shared/arrivals.ts'
import type { Crowd } from './shared/crowd.ts'
import type { UnderWay } from './shared/under-way.ts'

export type Totals = ReadonlyMap<string, number>

/** What a worker says of itself each second. */
export type WorkerCounts = {
  /** Counters and histograms, by series. */
  readonly totals: Totals
  /** Gauges that are added up. */
  readonly gauges: Totals
}

export type WorkerState = {
  readonly index: number
  readonly pid: number
  readonly since: number
  readonly counts: WorkerCounts
}

export type HandsOn = (
  request: IncomingMessage,
  response: ServerResponse,
  to: number,
  otherwise: (error: Error) => void,
) => void

type Shared = {
  /** Among them; 0 is the owner of the data folder. */
  readonly index: number
  readonly size: number
  readonly arrivals: Arrivals
  readonly underWay: UnderWay
  readonly crowd: Crowd
  /** What each client may still ask of all processes. */
  budgets(limit: { readonly size: number; readonly perSecond: number }): (client: string) => Budget
  readonly handOn: HandsOn
}

export type OwnerTeam = Shared & {
  readonly index: 0
  /** The newest listener gets what workers tell and ask of this topic. */
  on(topic: Topic, listen: (said: unknown) => unknown): void
  /** Resolves when each worker has answered. One that does not is killed, and its successor begins with what holds by then. */
  askAll(topic: Topic, said: unknown): Promise<void>
  /** A rule that each worker has to begin with. */
  noteDenied(rule: DeniedRule): void
  readonly workers: () => readonly WorkerState[]
  /** How many workers ended and were replaced. */
  readonly restarts: number
  /** Counters of workers that have ended. */
  readonly endedTotals: Totals
}

export type WorkerTeam = Shared & {
  readonly index: Exclude<number, 0>
  on(topic: Topic, listen: (said: unknown) => unknown): void
  tell(topic: Topic, said: unknown): void
  ask(topic: Topic, said: unknown, ms: number): Promise<unknown>
  /** What the owner alone answers, however long that takes; `otherwise`: it is gone, or stands still. */
  toOwner(request: IncomingMessage, response: ServerResponse, otherwise: (error: Error) => void): void
  /** Rules that the owner denied before this worker began. */
  readonly denied: readonly DeniedRule[]
}

export type Team = OwnerTeam | WorkerTeam

export type DeniedRule = { readonly cid: string; readonly legal: boolean; readonly reason: string | undefined }

/** `block`, `records`, `failed`, `counts`: from a worker. `deny`, `purge`: to all of them. `ended`: a worker did. */
export type Topic = 'block' | 'records' | 'failed' | 'counts' | 'deny' | 'purge' | 'ended'

export const isWorker = (team: Team | undefined): team is WorkerTeam => team !== undefined && team.index > 0
export const isOwner = (team: Team | undefined): team is OwnerTeam => team !== undefined && team.index === 0
