// The wiring context: configuration, clock, log, and the lease of parts that outlive this gateway.
import type { Provider } from '../../backends/pinning/contract.ts'
import type { Tier } from '../../backends/tiers/contract.ts'
import type { Upstream } from '../../backends/upstreams/contract.ts'
import { ConfigError } from '../config/complaints.ts'
import type { Config } from '../config/load.ts'
import type { Clock } from '../core/clock.ts'
import type { FolderCompany } from '../core/disk/files.ts'
import { isFailure } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import type { Trace } from '../core/wire/trace.ts'
import { type DataFolders, openDataFolder } from '../data-folder/folder.ts'
import type { SpanExporter } from '../observe/tracing/exporter.ts'
import { createLoopScheduler, type LoopScheduler } from '../retrieval/loop-scheduler.ts'
import { createSchemaChecks, type SchemaChecks } from '../schemas/checks.ts'
import { joinStore } from '../store/open.ts'
import type { Team } from '../team/team.ts'
import type { Lease } from './component-registry.ts'

/** A program's own backends, in addition to the configured ones. Never closed here. */
export type Own = {
  readonly tiers: readonly Tier[]
  readonly upstreams: readonly Upstream[]
  readonly providers: readonly Provider[]
}

export const nothingOfItsOwn: Own = { tiers: [], upstreams: [], providers: [] }

export type WiringContext = {
  readonly config: Config
  readonly userAgent: string
  readonly clock: Clock
  /** The log of the newest gateway: parts made with it may outlive this one. */
  readonly log: Log
  readonly lease: Lease
  /** Shared by this gateway and its successors. */
  readonly turns: LoopScheduler
  /** Shared by the process, so that its gateways do not work against each other in one folder. */
  readonly folders: DataFolders
  readonly own: Own
  /** The processes of this gateway; undefined if there is one. */
  readonly team?: Team | undefined
  /** The same processes, for backends with folders. */
  readonly company?: FolderCompany | undefined
  readonly trace: Trace
  /** The span exporter; undefined if spans are off. */
  readonly spans?: SpanExporter | undefined
}

/**
 * Every gateway takes this part, even if it creates nothing new, because work begun by the previous
 * gateway continues in it.
 */
export const takeScheduler = (lease: Lease, clock: Clock): LoopScheduler =>
  lease.take('turns', [], () => createLoopScheduler(clock))

/** Throws a ConfigError if one of the operator's is not a valid schema. */
export function schemasOf({ upload, responses }: Config): SchemaChecks {
  try {
    return createSchemaChecks({ maxBytes: responses.json.maxBytes, own: upload.schemas })
  } catch (error) {
    const what = `${error instanceof Error ? error.message : error} (expected JSON Schemas)`
    throw new ConfigError([{ path: ['upload', 'schemas'], what }])
  }
}

/**
 * Holds the lock until the last gateway over it has ended. Throws a ConfigError if the lock is
 * unavailable.
 */
export async function ownDataFolder({ config, clock, log, lease, folders, own }: WiringContext) {
  const { data, pinning, upload } = config
  const isNeeded = pinning.providers.length + own.providers.length > 0 && !upload.forwardTo
  const { folder, opened } = lease.take(
    'data folder',
    [data, isNeeded],
    () => {
      const folder = folders.enter(data)
      return { folder, opened: openDataFolder(folder, { clock, log, isNeeded }) }
    },
    async ({ folder, opened }) => {
      const leave = await opened.catch(() => undefined)
      await leave?.()
      folder.leave()
    },
  )
  await opened.catch((error: unknown) => {
    throw isFailure(error, 'refused') ? new ConfigError([`data: ${error.message}`]) : error
  })
  const joined = lease.take(
    'store',
    [data],
    () => joinStore(folder, { clock, log }),
    ({ leave }) => leave(),
  )
  return { folder, store: joined.store }
}
