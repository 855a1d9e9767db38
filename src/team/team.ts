// The processes of one gateway, as one of them sees the others. The first one owns the data folder:
// its store, its pins, and eviction. The others, its workers, read and fetch by themselves, and
// forward everything else to it.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { SharedFiles } from './shared-files.ts'

export type Totals = ReadonlyMap<string, number>

/** Metrics that a worker reports each second. */
export type WorkerCounts = {
  /** Counters and histograms, by series. */
  readonly totals: Totals
  /** Gauges that can be summed. */
  readonly gauges: Totals
}

type WorkerState = {
  readonly index: number
  readonly pid: number
  readonly since: number
  readonly counts: WorkerCounts
}

export type Forward = (
  request: IncomingMessage,
  response: ServerResponse,
  to: number,
  otherwise: (error: Error) => void,
) => void

type Shared = SharedFiles['team'] & {
  /** The index of this process; 0 is the owner of the data folder. */
  readonly index: number
  readonly size: number
  readonly forward: Forward
}

export type OwnerTeam = Shared & {
  readonly index: 0
  /** The newest listener receives what workers send on this topic. */
  on(topic: Topic, listen: (body: unknown) => unknown): void
  /**
   * Resolves when each worker has answered. One that does not answer is killed, and its successor
   * starts with the current state.
   */
  askAll(topic: Topic, body: unknown): Promise<void>
  /** Adds a rule that each new worker starts with. */
  noteDenied(rule: DeniedRule): void
  readonly workers: () => readonly WorkerState[]
  /** The number of workers that exited and were replaced. */
  readonly restarts: number
  /** Counters of workers that have exited. */
  readonly endedTotals: Totals
}

export type WorkerTeam = Shared & {
  readonly index: Exclude<number, 0>
  on(topic: Topic, listen: (body: unknown) => unknown): void
  send(topic: Topic, body: unknown): void
  ask(topic: Topic, body: unknown, ms: number): Promise<unknown>
  /**
   * Forwards a request that only the owner can answer. Has no timeout; calls `otherwise` if the
   * owner has exited or stopped responding.
   */
  toOwner(request: IncomingMessage, response: ServerResponse, otherwise: (error: Error) => void): void
  /** Takedowns from before this worker's start. */
  readonly denied: readonly DeniedRule[]
}

export type Team = OwnerTeam | WorkerTeam

export type DeniedRule = { readonly cid: string; readonly legal: boolean; readonly reason: string | undefined }

/**
 * `block`, `records`, `failed`, `counts`: from a worker. `deny`, `purge`: to all workers. `ended`:
 * a worker exited.
 */
export type Topic = 'block' | 'records' | 'failed' | 'counts' | 'deny' | 'purge' | 'ended'

export const isWorker = (team: Team | undefined): team is WorkerTeam => team !== undefined && team.index > 0
export const isOwner = (team: Team | undefined): team is OwnerTeam => team !== undefined && team.index === 0
