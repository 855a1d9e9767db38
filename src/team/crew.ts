// The owner's side: as many workers as there should be, another in the place of one that ends, and what all of them must know.
import type { ChildProcess } from 'node:child_process'
import type { Server } from 'node:net'
import type { Clock } from '../core/clock.ts'
import { wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { createHandOn } from './hand-on.ts'
import { doorOf, openShared } from './shared/place.ts'
import type { DeniedRule, OwnerTeam, Topic } from './team.ts'
import { createWorkerProcess, type HowItEnded, startMs, type WorkerProcess } from './worker-process.ts'

export interface Crew {
  readonly team: OwnerTeam
  /** From now on there are so many processes, with this configuration, on these listening sockets. */
  set(how: Wanted): Promise<void>
  /** They take no more connections, and end when what is under way is answered. `lameMs`: see WorkerProcess. */
  stop(graceMs: number, lameMs?: number): Promise<void>
  close(): void
}

export type Wanted = {
  readonly size: number
  readonly input: unknown
  readonly listen: readonly Server[]
  /** How long those that are too many may go on with what is under way. */
  readonly graceMs: number
}

export type CrewOptions = {
  readonly folder: string
  readonly clock: Clock
  readonly log: Log
  /** Starts a process of this program that waits for its orders. */
  readonly start: () => ChildProcess
  /** How long another process may take for the first byte of an answer. */
  readonly patienceMs: () => number
  readonly size: number
}

const firstPauseMs = 100
const mostPauseMs = 10_000
/** Of a worker that a reload ends: a client that asks again and again reads within this time that it goes. */
export const lameMs = 1000
/** One that ran for so long did not fail at its start. */
const steadyMs = 60_000

export function createCrew({ folder, clock, log, start, patienceMs, size: first }: CrewOptions): Crew {
  const shared = openShared(folder, { index: 0, isNew: true })
  shared.lives.begin(0, process.pid)
  const sends = createHandOn(patienceMs)
  const workers = new Map<number, WorkerProcess>()
  const pauses = new Map<number, number>()
  const waiting = new Map<number, () => void>()
  const listeners = new Map<Topic, (said: unknown) => unknown>()
  const endedTotals = new Map<string, number>()
  const denied: DeniedRule[] = []
  let size = first
  let input: unknown
  let listen: readonly Server[] = []
  let restarts = 0
  let isStopping = false

  function begin(index: number): void {
    // While others were waited for, the end began.
    if (isStopping) return
    let child: ChildProcess
    try {
      child = start()
    } catch (error) {
      log('error', 'worker.failed', { worker: index, why: wordsOf(error) })
      beginLater(index, false)
      return
    }
    const worker = createWorkerProcess({
      child,
      orders: { index, size, folder, input, denied },
      clock,
      log,
      heard: (topic, said) => listeners.get(topic)?.(said),
      onAnswering() {
        shared.lives.begin(index, worker.pid)
        worker.listenOn(listen)
      },
      onEnded: (how) => over(worker, how),
    })
    workers.set(index, worker)
  }

  function over(worker: WorkerProcess, how: HowItEnded): void {
    const { index, pid, since, counts, isWanted } = worker
    if (workers.get(index) === worker) {
      workers.delete(index)
      shared.lives.end(index)
    }
    for (const [series, value] of counts.totals) endedTotals.set(series, (endedTotals.get(series) ?? 0) + value)
    listeners.get('ended')?.(index)
    if (isStopping) return
    if (!isWanted) {
      // It was one too many, and is wanted again by now.
      if (index < size && !workers.has(index)) begin(index)
      return
    }
    restarts++
    const nextInMs = beginLater(index, clock.now() - since > steadyMs)
    log('error', 'worker.ended', { worker: index, pid, ...how, nextInMs })
  }

  /** After a pause that grows while it fails. The answer: how long that is. */
  function beginLater(index: number, wasSteady: boolean): number {
    const pauseMs = wasSteady ? firstPauseMs : Math.min(mostPauseMs, (pauses.get(index) ?? firstPauseMs / 2) * 2)
    pauses.set(index, pauseMs)
    const again = () => {
      waiting.delete(index)
      if (index < size && !workers.has(index)) begin(index)
    }
    waiting.set(index, clock.after(pauseMs, again))
    return pauseMs
  }

  const all = (): WorkerProcess[] => [...workers.values()]

  const team: OwnerTeam = {
    index: 0,
    get size() {
      return size
    },
    ...shared.team,
    handOn: (request, response, to, otherwise) => sends(request, response, doorOf(folder, to), otherwise),
    on: (topic, heard) => void listeners.set(topic, heard),
    async askAll(topic, said) {
      await Promise.all(all().map((worker) => worker.order(topic, said)))
    },
    noteDenied: (rule) => void denied.push(rule),
    workers: () => all().filter(({ isAnswering }) => isAnswering),
    get restarts() {
      return restarts
    },
    endedTotals,
  }

  return {
    team,
    async set(how) {
      if (isStopping) return
      const isSame = input === how.input
      const isMoved = how.listen.some((server) => !listen.includes(server))
      ;({ size, input, listen } = how)
      const wanted = all().filter(({ isWanted }) => isWanted)
      const kept = wanted.filter(({ index }) => index < size)
      for (const worker of wanted) if (worker.index >= size) void worker.end(how.graceMs, lameMs)
      if (!isSame) await Promise.all(kept.map((worker) => worker.order('reload', { input, size }, startMs)))
      if (isMoved) for (const worker of kept) if (worker.isAnswering) worker.listenOn(listen)
      for (let index = 1; index < size; index++) if (!workers.has(index) && !waiting.has(index)) begin(index)
    },
    async stop(graceMs, lame = 0) {
      isStopping = true
      for (const cancel of waiting.values()) cancel()
      await Promise.all(all().map((worker) => worker.end(graceMs, lame)))
    },
    close() {
      sends.close()
      shared.close()
    },
  }
}
