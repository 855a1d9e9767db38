// A worker as its owner sees it: a process that receives orders, and is killed if it does not
// follow them.
import type { ChildProcess } from 'node:child_process'
import type { Server } from 'node:net'
import type { Clock } from '../core/clock.ts'
import { wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { createChannel } from './channel.ts'
import { createPulse } from './pulse.ts'
import type { DeniedRule, Topic, WorkerCounts } from './team.ts'

/** The first message to a worker. */
export type Orders = {
  readonly index: number
  readonly size: number
  readonly folder: string
  readonly input: unknown
  readonly denied: readonly DeniedRule[]
}

export type HowItEnded = { readonly code: number | null; readonly signal: string | null }

export interface WorkerProcess {
  readonly index: number
  readonly pid: number
  readonly since: number
  /** True while it accepts connections. */
  readonly isAnswering: boolean
  /** True unless it was told to exit. */
  readonly isWanted: boolean
  readonly counts: WorkerCounts
  /**
   * Resolves when the worker has done it, or has exited: its successor starts with the current
   * state.
   */
  order(topic: string, said: unknown, ms?: number): Promise<void>
  /** Replaces its listening sockets. */
  listenOn(servers: readonly Server[]): void
  /**
   * Resolves when it has exited: within `graceMs` plus a margin by itself, or at once if it does
   * not serve yet. `lameMs`: the time in which keep-alive clients receive `Connection: close`,
   * before idle connections are closed.
   */
  end(graceMs: number, lameMs?: number): Promise<void>
}

export type WorkerOptions = {
  readonly child: ChildProcess
  readonly orders: Orders
  readonly clock: Clock
  readonly log: Log
  /** Called with its messages and requests. */
  readonly heard: (topic: Topic, said: unknown) => unknown
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
const none: WorkerCounts = { totals: new Map(), gauges: new Map() }

export function createWorkerProcess(options: WorkerOptions): WorkerProcess {
  const { child, orders, clock, log, heard } = options
  const { index } = orders
  const channel = createChannel(child, clock)
  const ended = Promise.withResolvers<void>()
  const about = { worker: index, pid: child.pid }
  const since = clock.now()
  let isAnswering = false
  let isWanted = true
  let isOver = false
  let counts = none

  function over(how: HowItEnded): void {
    isOver = true
    isAnswering = false
    stopPulse()
    channel.end()
    options.onEnded(how)
    ended.resolve()
  }

  child.once('error', (error) => {
    log('error', 'worker.failed', { ...about, why: wordsOf(error) })
    // A process that could not be started emits nothing else.
    if (child.pid === undefined) over({ code: null, signal: null })
  })
  child.once('exit', (code, signal) => over({ code, signal }))
  channel.on('counts', (said) => {
    counts = said as WorkerCounts
  })
  for (const topic of ['block', 'records', 'failed'] as const) channel.on(topic, (said) => heard(topic, said))

  function kill(event: string, error: unknown): void {
    log('error', event, { ...about, why: wordsOf(error) })
    child.kill('SIGKILL')
  }

  let stopPulse = () => {}

  channel.ask('begin', orders, startMs).then(
    () => {
      if (!isWanted || isOver) return
      isAnswering = true
      stopPulse = createPulse(channel, clock, () => kill('worker.stuck', new Error('it gives no sign of life')))
      options.onAnswering()
      log('info', 'worker.ready', about)
    },
    (error) => {
      if (isWanted && !isOver) kill('worker.failed', error)
    },
  )

  return {
    index,
    pid: child.pid ?? 0,
    since,
    get isAnswering() {
      return isAnswering
    },
    get isWanted() {
      return isWanted
    },
    get counts() {
      return counts
    },
    async order(topic, said, ms = orderMs) {
      try {
        await channel.ask(topic, said, ms)
      } catch (error) {
        if (!isWanted) return
        if (!isOver) kill('worker.stuck', error)
        await ended.promise
      }
    },
    listenOn(servers) {
      for (const [at, server] of servers.entries())
        channel.tell('listen', { isFirst: at === 0, isUnix: typeof server.address() === 'string' }, server)
    },
    async end(graceMs, lameMs = 0) {
      isWanted = false
      if (!isAnswering) child.kill('SIGKILL')
      channel.tell('stop', { graceMs, lameMs })
      const cancel = clock.after(lameMs + graceMs + orderMs, () => child.kill('SIGKILL'))
      await ended.promise
      cancel()
    },
  }
}
