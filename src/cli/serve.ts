// `cidgate serve`: prints one line once it serves, notifies the service manager, then waits for
// signals.
import { type ChildProcess, fork } from 'node:child_process'
import { flushCompileCache } from 'node:module'
import { type Config, configFile, loadConfig } from '../config/load.ts'
import { version } from '../config/package.ts'
import { addressShown } from '../config/values.ts'
import { systemClock } from '../core/clock.ts'
import { createLog, createLogSink, formatFor, type Log, type LogFormat, type LogSink, survive } from '../core/log.ts'
import { createGateway, type Gateway, type GatewayOptions } from '../gateway.ts'
import { createNotifier, type Notifier } from '../server/notify.ts'
import { type Serving, serve } from '../server/serve.ts'
import { createProcesses, serveWorker } from '../server/workers.ts'
import type { WorkerTeam } from '../team/team.ts'
import { createWorkerClient } from '../team/workers.ts'
import { workerWord } from './command.ts'
import { lowerHelperPriority } from './helper-threads.ts'

export async function serveCommand(file: string | undefined): Promise<number> {
  const config = loadConfig(file)
  lowerHelperPriority()
  const { sink, name } = namedFirst(createLogSink(), formatFor(config.log.format))
  survive(process.stdout)
  const logs = { newest: createLog(config.log.level, sink, formatFor(config.log.format)) }
  const log: Log = (...line) => logs.newest(...line)
  crashOnTheUnexpected(log)
  const signals = listenForSignals()
  const processes = createProcesses({ clock: systemClock, log, start: startWorker })
  const create = async (next: Config, { previous }: GatewayOptions): Promise<Gateway> => {
    const own = createLog(next.log.level, sink, formatFor(next.log.format))
    const gateway = createGateway(next, { log: own, previous, tracing: process.env, team: processes.teamFor(next) })
    await gateway.start()
    logs.newest = own
    return gateway
  }
  const serving = await serve({ config, log, create, processes })
  // A killed process would not write its compile cache, and the next start would compile everything
  // again.
  flushCompileCache()
  const answers = () =>
    `${addressShown(serving.listen)}${serving.admin ? ` (admin: ${addressShown(serving.admin)})` : ''}`
  name()
  process.stdout.write(`cidgate (pid ${process.pid}): ${answers()}\n`)
  if (process.stdout.isTTY) process.stdout.write(banner(configFile(file), config))
  const notifier = createNotifier({ environment: process.env, log, clock: systemClock })
  notifier?.ready(`answers at ${answers()}`)
  await untilStopped(serving, signals, notifier, async () => {
    notifier?.reloading()
    const isNew = await serving.reload(() => loadConfig(file))
    notifier?.ready(
      isNew ? `answers at ${answers()}` : 'the new configuration was refused (see the log); the old one stays',
    )
  })
  return 0
}

/**
 * Makes sure that log lines before startup follow one that names the process. `name`: marks it as
 * named elsewhere.
 */
function namedFirst(sink: LogSink, format: LogFormat): { readonly sink: LogSink; name(): void } {
  const log = createLog('info', sink, format)
  let isNamed = false
  return {
    sink: {
      ...sink,
      write(line, form) {
        if (!isNamed) log('info', 'server.starting', { pid: process.pid, version })
        isNamed = true
        sink.write(line, form)
      },
    },
    name() {
      isNamed = true
    },
  }
}

/** A terminal and npm both forward the same Ctrl-C: signals within this time count once. */
const oneWishMs = 1000

type Signal = 'stop' | 'reload'
type Signals = { take(handler: (signal: Signal) => void): void }

/**
 * Registers handlers at once: a start may take a while, and an unhandled SIGHUP ends the process.
 */
function listenForSignals(): Signals {
  let handle: ((signal: Signal) => void) | undefined
  let isChanged = false
  let stoppedAt: number | undefined
  const stop = (signal: NodeJS.Signals) => {
    const now = systemClock.monotonic()
    if (stoppedAt !== undefined && now - stoppedAt < oneWishMs) return
    // A second signal, or one during startup, exits at once.
    if (!handle) process.exit(signal === 'SIGINT' ? 130 : 143)
    stoppedAt = now
    handle('stop')
    handle = undefined
  }
  process.on('SIGTERM', stop)
  process.on('SIGINT', stop)
  process.on('SIGHUP', () => {
    isChanged = true
    handle?.('reload')
  })
  return {
    take(handler) {
      handle = handler
      if (isChanged) handler('reload')
    },
  }
}

function untilStopped(
  serving: Serving,
  signals: Signals,
  notifier: Notifier | undefined,
  reload: () => Promise<void>,
): Promise<void> {
  return new Promise((resolve, reject) => {
    signals.take((signal) => {
      if (signal === 'reload') return void reload()
      notifier?.stopping()
      serving
        .close()
        .finally(() => notifier?.close())
        .then(resolve, reject)
    })
  })
}

/**
 * Runs a worker process (`workers` in the configuration). Not a command for people: it waits for its
 * orders, and ends with the process that started it.
 */
export async function workerCommand(): Promise<number> {
  lowerHelperPriority()
  const sink = createLogSink()
  const logs = { newest: createLog('info', sink) as Log }
  const log: Log = (...line) => logs.newest(...line)
  crashOnTheUnexpected(log)
  // A terminal and service managers signal every process of a group; only the owner reacts.
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.on(signal, () => {})
  process.on('disconnect', () => process.exit(0))
  const member = createWorkerClient(process, systemClock)
  const create = async (
    config: Config,
    { previous, team }: { readonly previous?: Gateway | undefined; readonly team: WorkerTeam },
  ): Promise<Gateway> => {
    const lines = createLog(config.log.level, sink, formatFor(config.log.format))
    const own: Log = Object.assign(
      (...[level, event, facts]: Parameters<Log>) => lines(level, event, { worker: team.index, ...facts }),
      { lost: () => lines.lost?.() ?? 0 },
    )
    const gateway = createGateway(config, { log: own, previous, tracing: process.env, team })
    await gateway.start()
    logs.newest = own
    return gateway
  }
  try {
    await serveWorker({ member, create, log, clock: systemClock })
  } catch (error) {
    member.failed(error)
    // The owner was notified, and ends it.
    await systemClock.sleep(1000)
    return 1
  }
  flushCompileCache()
  process.disconnect()
  return 0
}

const startWorker = (): ChildProcess =>
  fork(process.argv[1] ?? '', [workerWord], {
    execArgv: process.execArgv,
    serialization: 'advanced',
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })

function banner(file: string, config: Config): string {
  const { data, cache, retrieval } = config
  const lines: readonly (readonly [what: string, said: string])[] = [
    ['version', `${version}, Node ${process.versions.node}`],
    ['configuration', file],
    ['data', data],
    ['tiers', listed(cache.tiers)],
    ['upstreams', listed(retrieval.upstreams)],
    [
      'providers',
      config.upload.forwardTo ? 'none: uploads are forwarded to another service' : listed(config.pinning.providers),
    ],
    ['uploads', whoMayUpload(config)],
  ]
  return lines.map(([what, said]) => `  ${what.padEnd(14)} ${said}\n`).join('')
}

const listed = (entries: readonly { readonly name: string }[]): string =>
  entries.length === 0 ? 'none' : entries.map(({ name }) => name).join(', ')

function whoMayUpload({ upload: { auth, forwardTo: through }, pinning }: Config): string {
  if (!through && pinning.providers.length === 0) return 'nobody: no provider is configured'
  if (auth === 'none') return 'every client of this machine, without a token'
  if (auth === 'open') return 'every client, without a token'
  return `clients with a token (${auth.tokens.length} of them)`
}

/**
 * Ends the process on an unexpected error, because its state is unknown: the log has the stack, and
 * a supervisor restarts it.
 */
function crashOnTheUnexpected(log: Log): void {
  const crash = (event: string) => (error: unknown) => {
    log('error', event, { error: error instanceof Error ? error.stack : String(error) })
    process.exit(1)
  }
  process.on('unhandledRejection', crash('process.unhandled-rejection'))
  process.on('uncaughtException', crash('process.uncaught-exception'))
}
