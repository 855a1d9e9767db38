// The parts of a gateway put together, in the order in which they may be refused.
import type { Config } from '../config/load.ts'
import type { Clock } from '../core/clock.ts'
import { createLog, type Log } from '../core/log.ts'
import { processFolders } from '../data-folder/process.ts'
import type { Inside } from '../http/doors.ts'
import { createSpools } from '../upload/spool/spool.ts'
import { type Admin, wireAdmin } from '../wiring/admin.ts'
import { openLeft, wireBackends } from '../wiring/backends.ts'
import { ownDataFolder } from '../wiring/data-folder.ts'
import { wireFront } from '../wiring/front.ts'
import type { Kept } from '../wiring/kept.ts'
import { tellLeft } from '../wiring/left.ts'
import { wirePublic } from '../wiring/public.ts'
import { wireReading } from '../wiring/reading.ts'
import { wireTiers } from '../wiring/tiers.ts'
import { wireUploads } from '../wiring/uploads.ts'
import type { Own, Whole } from '../wiring/whole.ts'

export type Made = Inside & {
  drain(): void
  close(): Promise<void>
}

export type MakeOptions = {
  readonly config: Config
  readonly log: Log | undefined
  readonly clock: Clock
  readonly kept: Kept
  readonly own: Own
}

/** Rejects with a ConfigError or a Failure, and leaves nothing behind that goes on working. */
export async function makeGateway({ config, log, clock, kept, own }: MakeOptions): Promise<Made> {
  const latest = log ?? createLog(config.log.level)
  const lease = kept.lease()
  const logs = lease.take('log', [], () => ({ newest: latest }))
  try {
    const newest: Log = (...line) => logs.newest(...line)
    const whole = {
      config,
      clock,
      lease,
      own,
      folders: processFolders,
      log: Object.assign(newest, { lost: () => logs.newest.lost?.() ?? 0 }),
    }
    const { begin, ...parts } = await putTogether(whole)
    logs.newest = latest
    begin()
    return { ...parts, close: lease.end }
  } catch (error) {
    await lease.end().catch((cause: unknown) => latest('error', 'gateway.close', { error: String(cause) }))
    throw error
  }
}

async function putTogether(whole: Whole): Promise<Omit<Made, 'close'> & Pick<Admin, 'begin'>> {
  const folder = await ownDataFolder(whole)
  const { providers, tiers: bare, members } = wireBackends(whole)
  const left = await openLeft(whole)
  const tiers = wireTiers(whole, bare, { providers, left, spools: folder.part(createSpools) })
  const reading = await wireReading(whole, { ...tiers, members })
  const shared = wirePublic(whole)
  const writing = wireUploads(whole, { folder, providers, left, reading, ...shared })
  const front = wireFront(whole, reading, { ...shared, routes: writing.routes, stack: tiers.stack })
  const { handler: admin, drain, begin } = wireAdmin(whole, { providers, tiers, reading, writing, front })
  // What was acknowledged is never 404, not even to the client that comes first.
  await writing.open
  const { router, handler } = front
  return {
    router,
    handler,
    admin,
    drain,
    begin() {
      begin()
      reading.denials.begin()
      tellLeft(whole, providers, left)
    },
  }
}
