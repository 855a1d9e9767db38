// Notifies systemd of readiness, reloads, stop and liveness (sd_notify). Node has no datagram
// sockets in the file system, so systemd's own program sends each message.
import { execFile } from 'node:child_process'
import type { Clock } from '../core/clock.ts'
import { codeOf } from '../core/disk/files.ts'
import type { Log } from '../core/log.ts'

export type Notifier = NonNullable<ReturnType<typeof createNotifier>>

/**
 * Runs systemd-notify with these arguments. Rejects if it fails, is missing, or exceeds the
 * timeout.
 */
export type RunNotify = (args: readonly string[], withinMs: number) => Promise<void>

type NotifyOptions = {
  readonly environment: Readonly<Record<string, string | undefined>>
  readonly log: Log
  readonly clock: Clock
  readonly run?: RunNotify
}

type Message = {
  readonly kind: 'ready' | 'reloading' | 'stopping' | 'alive'
  readonly state: readonly string[]
  readonly withinMs: number
}

const program = 'systemd-notify'
const messageMs = 5_000

/** Undefined if no service manager asks for notifications. */
export function createNotifier({ environment, log, clock, run = runIn(environment) }: NotifyOptions) {
  if (!environment['NOTIFY_SOCKET']) return undefined
  /** At most one message of each kind, the newest: a slow program builds up no queue. */
  let pending: Message[] = []
  let sending: Promise<void> | undefined
  let isMissing = false
  let hasFailed = false
  let isStopping = false
  let endWatch = () => {}

  async function send(state: readonly string[], withinMs: number): Promise<void> {
    if (isMissing) return
    try {
      await run(state, withinMs)
      hasFailed = false
    } catch (error) {
      isMissing = codeOf(error) === 'ENOENT'
      const why = isMissing
        ? `${program} is not installed; install it, or set Type=exec and no WatchdogSec= in the unit`
        : `${program}: ${error instanceof Error ? error.message.trim() : String(error)}`
      // Logged once per failure period, because the watchdog would fill the log.
      if (!hasFailed) log('warn', 'notify.failed', { why })
      hasFailed = true
    }
  }

  async function sendAll(): Promise<void> {
    for (let next = pending.shift(); next; next = pending.shift()) await send(next.state, next.withinMs)
    sending = undefined
  }

  function say(kind: Message['kind'], state: readonly string[], withinMs = messageMs): void {
    pending = [...pending.filter((one) => one.kind !== kind), { kind, state, withinMs }]
    sending ??= sendAll()
  }

  const everyMs = watchdogMs(environment)
  function watch(): void {
    if (everyMs === undefined) return
    endWatch()
    endWatch = clock.after(everyMs, () => {
      // Skipped while another message is being sent, which proves liveness too; one that hangs must
      // not build up a queue.
      if (!sending) say('alive', ['WATCHDOG=1'], Math.min(messageMs, everyMs))
      watch()
    })
  }

  return {
    /**
     * Reports that the gateway serves: after a start, and after each reload with its result in
     * `status`.
     */
    ready(status: string): void {
      if (isStopping) return
      const alive = everyMs === undefined ? [] : ['WATCHDOG=1']
      say('ready', ['READY=1', `MAINPID=${process.pid}`, `STATUS=${status}`, ...alive])
      watch()
    },
    reloading(): void {
      const at = process.hrtime.bigint() / 1000n
      if (!isStopping) say('reloading', ['RELOADING=1', `MONOTONIC_USEC=${at}`, 'STATUS=reloading the configuration'])
    },
    stopping(): void {
      isStopping = true
      say('stopping', ['STOPPING=1', 'STATUS=answering requests in progress'])
    },
    /** Resolves when pending messages were sent or abandoned. */
    async close(): Promise<void> {
      endWatch()
      await sending
    },
  }
}

/**
 * Half of systemd's watchdog interval. Undefined if it expects no heartbeat of this process or its
 * launcher.
 */
function watchdogMs({ WATCHDOG_USEC, WATCHDOG_PID }: NotifyOptions['environment']): number | undefined {
  if (WATCHDOG_PID && ![process.pid, process.ppid].includes(Number(WATCHDOG_PID))) return undefined
  const ms = Number(WATCHDOG_USEC ?? 0) / 2000
  return ms > 0 && Number.isFinite(ms) ? ms : undefined
}

const runIn =
  (env: NotifyOptions['environment']): RunNotify =>
  (args, timeout) =>
    new Promise((resolve, reject) => {
      execFile(program, [...args], { env, timeout, killSignal: 'SIGKILL' }, (error, _out, said) => {
        if (!error) return resolve()
        if (codeOf(error) === 'ENOENT') return reject(error)
        reject(new Error(error.killed ? `no end after ${timeout} ms` : said || error.message))
      })
    })
