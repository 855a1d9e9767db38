// One worker as its owner sees it: a process that gets orders, and is ended where it does not follow them.
import type { ChildProcess } from 'node:child_process'
import type { Server } from 'node:net'
import type { Clock } from '../core/clock.ts'
import { wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { createChannel } from './channel.ts'
import { createPulse } from './pulse.ts'
import type { DeniedRule, Topic, WorkerCounts } from './team.ts'

/** What a worker is told before it answers. */
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
  /** It takes connections. */
  readonly isAnswering: boolean
  /** Nobody told it to end. */
  readonly isWanted: boolean
  readonly counts: WorkerCounts
  /** Resolves when it has done it, or has ended: its successor begins with what holds by then. */
  order(topic: string, said: unknown, ms?: number): Promise<void>
  /** In the place of those that it had. */
  listenOn(servers: readonly Server[]): void
  /**
   * Resolves when it has ended: within `graceMs`, and a little more, by itself; at once where it answers nothing yet. `lameMs`: for
   * so long clients who keep connections are told with their answers, before the idle ones are closed.
   */
  end(graceMs: number, lameMs?: number): Promise<void>
}

export type WorkerOptions = {
  readonly child: ChildProcess
  readonly orders: Orders
  readonly clock: Clock
  readonly log: Log
  /** What it tells or asks. */
  readonly heard: (topic: Topic, said: unknown) => unknown
  readonly onAnswering: () => void
  readonly onEnded: (how: HowItEnded) => void
}

/** A start, or a reload with everything that a configuration may have to be fetched for. */
export const startMs = 60_000
/** A worker that does not do in this time what it must is stuck: it may serve what was taken down. */
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
    // Of one that could not be started nothing else is heard.
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
