// A worker process of `cidgate serve` (`workers` in the configuration). Not a command for people:
// it waits for its orders, and ends with the process that started it.
import { flushCompileCache } from 'node:module'
import type { Config } from '../../config/load.ts'
import { systemClock } from '../../core/clock.ts'
import { createLog, createLogSink, formatFor, type Log } from '../../core/log.ts'
import { createGateway, type Gateway } from '../../gateway.ts'
import { serveWorker } from '../../server/team/serve-worker.ts'
import type { WorkerTeam } from '../../team/team.ts'
import { createCrewMember } from '../../team/worker-client.ts'
import { crashOnTheUnexpected } from './crash.ts'
import { putHelpersBehindTheLoop } from './helper-threads.ts'

export async function workerCommand(): Promise<number> {
  putHelpersBehindTheLoop()
  const sink = createLogSink()
  const logs = { newest: createLog('info', sink) as Log }
  const log: Log = (...line) => logs.newest(...line)
  crashOnTheUnexpected(log)
  // A terminal and service managers signal every process of a group; only the owner reacts.
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.on(signal, () => {})
  process.on('disconnect', () => process.exit(0))
  const member = createCrewMember(process, systemClock)
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
