// The owner's side of the team starts the workers, replaces one that exits, kills one that does not
// follow its orders, and broadcasts to all. The worker's side follows them.
import type { ChildProcess } from 'node:child_process'
import type { Server } from 'node:net'
import type { Clock } from '../core/clock.ts'
import { wordsOf } from '../core/failure.ts'
import type { Log, LogLevel } from '../core/log.ts'
import { type Channel, createChannel, createHeartbeat, type Line, type Listen } from './channel.ts'
import { createForwarder } from './forward-request.ts'
import { openShared, socketPathOf } from './shared-files.ts'
import type { DeniedRule, OwnerTeam, Topic, WorkerCounts, WorkerTeam } from './team.ts'

export type WorkerSupervisor = ReturnType<typeof createWorkerSupervisor>

export type WorkerClient = ReturnType<typeof createWorkerClient>

export type Wanted = {
  readonly size: number
  readonly input: unknown
  readonly listen: readonly Server[]
  /** The time that surplus workers have to finish requests in progress. */
  readonly graceMs: number
}

type WorkerSupervisorOptions = {
  readonly folder: string
  readonly clock: Clock
  readonly log: Log
  /** Starts a process of this program that waits for its orders. */
  readonly start: () => ChildProcess
  /** The first-byte timeout for responses of another process. */
  readonly firstByteTimeoutMs: () => number
  readonly size: number
}

const firstPauseMs = 100
const maxPauseMs = 10_000
/**
 * When a reload ends a worker, clients on keep-alive connections have this long to receive
 * `Connection: close`.
 */
export const shutdownDelayMs = 1000
/** After this time a worker's exit does not count as a failed start. */
const steadyMs = 60_000

export function createWorkerSupervisor({
  folder,
  clock,
  log,
  start,
  firstByteTimeoutMs,
  size: first,
}: WorkerSupervisorOptions) {
  const shared = openShared(folder, { index: 0, isNew: true })
  shared.processTable.begin(0, process.pid)
  const sends = createForwarder(firstByteTimeoutMs)
  const workers = new Map<number, WorkerProcess>()
  const pauses = new Map<number, number>()
  const waiting = new Map<number, () => void>()
  const listeners = new Map<Topic, (body: unknown) => unknown>()
  const endedTotals = new Map<string, number>()
  const denied: DeniedRule[] = []
  let size = first
  let input: unknown
  let listen: readonly Server[] = []
  let restarts = 0
  let isStopping = false

  function begin(index: number): void {
    // The shutdown may have begun during the wait above.
    if (isStopping) return
    let child: ChildProcess
    try {
      child = start()
    } catch (error) {
      log('error', 'worker.failed', { worker: index, why: wordsOf(error) })
      beginLater(index, false)
      return
    }
    const worker = new WorkerProcess({
      ...{ child, clock, log },
      orders: { index, size, folder, input, denied },
      onMessage: (topic, body) => listeners.get(topic)?.(body),
      onAnswering() {
        shared.processTable.begin(index, worker.pid)
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
      shared.processTable.end(index)
    }
    for (const [series, value] of counts.totals) endedTotals.set(series, (endedTotals.get(series) ?? 0) + value)
    listeners.get('ended')?.(index)
    if (isStopping) return
    if (!isWanted) {
      // The worker was surplus, but is needed again by now.
      if (index < size && !workers.has(index)) begin(index)
      return
    }
    restarts++
    const nextInMs = beginLater(index, clock.now() - since > steadyMs)
    log('error', 'worker.ended', { worker: index, pid, ...how, nextInMs })
  }

  /** Restarts with exponential backoff. Returns the delay. */
  function beginLater(index: number, wasSteady: boolean): number {
    const pauseMs = wasSteady ? firstPauseMs : Math.min(maxPauseMs, (pauses.get(index) ?? firstPauseMs / 2) * 2)
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
    forward: (request, response, to, otherwise) => sends(request, response, socketPathOf(folder, to), otherwise),
    on: (topic, onMessage) => void listeners.set(topic, onMessage),
    async askAll(topic, body) {
      await Promise.all(all().map((worker) => worker.order(topic, body)))
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
    /** Sets the number of processes, their configuration and their listening sockets. */
    async set(how: Wanted): Promise<void> {
      if (isStopping) return
      const isSame = input === how.input
      const isMoved = how.listen.some((server) => !listen.includes(server))
      ;({ size, input, listen } = how)
      const wanted = all().filter(({ isWanted }) => isWanted)
      const kept = wanted.filter(({ index }) => index < size)
      for (const worker of wanted) if (worker.index >= size) void worker.end(how.graceMs, shutdownDelayMs)
      if (!isSame) await Promise.all(kept.map((worker) => worker.order('reload', { input, size }, startMs)))
      if (isMoved) for (const worker of kept) if (worker.isAnswering) worker.listenOn(listen)
      for (let index = 1; index < size; index++) if (!workers.has(index) && !waiting.has(index)) begin(index)
    },
    /** Stops accepting connections; workers exit when requests in progress are answered. See `WorkerProcess.end`. */
    async stop(graceMs: number, delayMs = 0): Promise<void> {
      isStopping = true
      for (const cancel of waiting.values()) cancel()
      await Promise.all(all().map((worker) => worker.end(graceMs, delayMs)))
    },
    close(): void {
      sends.close()
      shared.close()
    },
  }
}

/** The first message to a worker. */
export type Orders = {
  readonly index: number
  readonly size: number
  readonly folder: string
  readonly input: unknown
  readonly denied: readonly DeniedRule[]
}

type HowItEnded = { readonly code: number | null; readonly signal: string | null }

type WorkerOptions = {
  readonly child: ChildProcess
  readonly orders: Orders
  readonly clock: Clock
  readonly log: Log
  /** Called with its messages and requests. */
  readonly onMessage: (topic: Topic, body: unknown) => unknown
  readonly onAnswering: () => void
  readonly onEnded: (how: HowItEnded) => void
}

/** Includes a start, or a reload with everything that a configuration may have to fetch. */
export const startMs = 60_000
/**
 * A worker that exceeds this is stuck, and is killed because it could serve content that was taken
 * down.
 */
const orderMs = 5000

export class WorkerProcess {
  readonly index: number
  readonly pid: number
  readonly since: number
  /** True while it accepts connections. */
  isAnswering = false
  /** True unless it was ordered to exit. */
  isWanted = true
  counts: WorkerCounts = { totals: new Map(), gauges: new Map() }
  readonly #options: WorkerOptions
  readonly #channel: Channel
  readonly #ended = Promise.withResolvers<void>()
  #isOver = false
  #stopHeartbeat = () => {}

  constructor(options: WorkerOptions) {
    const { child, orders, clock, onMessage } = options
    this.#options = options
    this.index = orders.index
    this.pid = child.pid ?? 0
    this.since = clock.now()
    this.#channel = createChannel(child, clock)
    child.once('error', (error) => {
      this.#log('error', 'worker.failed', error)
      // A process that could not be started emits nothing else.
      if (child.pid === undefined) this.#over({ code: null, signal: null })
    })
    child.once('exit', (code, signal) => this.#over({ code, signal }))
    this.#channel.on('counts', (body) => {
      this.counts = body as WorkerCounts
    })
    for (const topic of ['block', 'records', 'failed'] as const)
      this.#channel.on(topic, (body) => onMessage(topic, body))
    this.#channel.ask('begin', orders, startMs).then(
      () => this.#begun(),
      (error) => {
        if (this.isWanted && !this.#isOver) this.#kill('worker.failed', error)
      },
    )
  }

  #log(level: LogLevel, event: string, error?: unknown): void {
    const { child, log } = this.#options
    log(level, event, { worker: this.index, pid: child.pid, ...(error !== undefined && { why: wordsOf(error) }) })
  }

  #begun(): void {
    if (!this.isWanted || this.#isOver) return
    this.isAnswering = true
    const onSilent = () => this.#kill('worker.stuck', new Error('no heartbeat'))
    this.#stopHeartbeat = createHeartbeat(this.#channel, this.#options.clock, onSilent)
    this.#options.onAnswering()
    this.#log('info', 'worker.ready')
  }

  #over(how: HowItEnded): void {
    this.#isOver = true
    this.isAnswering = false
    this.#stopHeartbeat()
    this.#channel.end()
    this.#options.onEnded(how)
    this.#ended.resolve()
  }

  #kill(event: string, error: unknown): void {
    this.#log('error', event, error)
    this.#options.child.kill('SIGKILL')
  }

  /**
   * Resolves when the worker has done it, or has exited: its successor starts with the current
   * state.
   */
  async order(topic: string, body: unknown, ms = orderMs): Promise<void> {
    try {
      await this.#channel.ask(topic, body, ms)
    } catch (error) {
      if (!this.isWanted) return
      if (!this.#isOver) this.#kill('worker.stuck', error)
      await this.#ended.promise
    }
  }

  /** Replaces its listening sockets. */
  listenOn(servers: readonly Server[]): void {
    for (const [at, server] of servers.entries())
      this.#channel.send('listen', { isFirst: at === 0, isUnix: typeof server.address() === 'string' }, server)
  }

  /**
   * Resolves when it has exited: within `graceMs` plus a margin by itself, or at once if it does
   * not serve yet. `shutdownDelayMs`: the time in which keep-alive clients receive `Connection: close`,
   * before idle connections are closed.
   */
  async end(graceMs: number, shutdownDelayMs = 0): Promise<void> {
    const { child, clock } = this.#options
    this.isWanted = false
    if (!this.isAnswering) child.kill('SIGKILL')
    this.#channel.send('stop', { graceMs, shutdownDelayMs })
    const cancel = clock.after(shutdownDelayMs + graceMs + orderMs, () => child.kill('SIGKILL'))
    await this.#ended.promise
    cancel()
  }
}

/** The worker's side. */
export function createWorkerClient(line: Line, clock: Clock) {
  const channel = createChannel(line, clock)
  const orders = Promise.withResolvers<Orders>()
  const ready = Promise.withResolvers<void>()
  ready.promise.catch(() => {})
  channel.on('begin', (body) => {
    orders.resolve(body as Orders)
    return ready.promise
  })

  const listeners = new Map<string, Listen>()
  for (const topic of ['listen', 'reload', 'stop', 'deny', 'purge'] as const)
    channel.on(topic, (body, handle) => ready.promise.then(() => listeners.get(topic)?.(body, handle)))

  return {
    /** Resolves with the first orders. */
    orders: orders.promise,
    /** Handles orders. Orders that arrive before `begun` are queued. */
    follow: (topic: 'listen' | 'reload' | 'stop', how: Listen) => void listeners.set(topic, how),
    /** Reports that the gateway runs, and handles queued orders. */
    begun: () => ready.resolve(),
    /** Reports that the orders could not be followed. */
    failed: (error: unknown) => ready.reject(error),
    /** Joins the team, once the orders have arrived. */
    join({ index, size, folder, denied }: Orders, firstByteTimeoutMs: () => number) {
      const shared = openShared(folder, { index, isNew: false })
      const toOthers = createForwarder(firstByteTimeoutMs)
      const toOwner = createForwarder()
      createHeartbeat(channel, clock, () => toOwner.giveUp('no heartbeat of the owner'))
      const team = {
        ...{ ...shared.team, index, size, denied },
        forward: (request, response, to, otherwise) => toOthers(request, response, socketPathOf(folder, to), otherwise),
        toOwner: (request, response, otherwise) => toOwner(request, response, socketPathOf(folder, 0), otherwise),
        on: (topic, onMessage) => void listeners.set(topic, onMessage),
        send: channel.send,
        ask: channel.ask,
      } satisfies WorkerTeam
      return {
        team: team as WorkerTeam,
        setSize(next: number): void {
          team.size = next
        },
      }
    },
  }
}
