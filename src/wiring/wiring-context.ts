// The wiring context: configuration, clock, log, and the lease of parts that outlive this gateway.
import type { Provider } from '../../backends/pinning/contract.ts'
import type { Tier } from '../../backends/tiers/contract.ts'
import type { Upstream } from '../../backends/upstreams/contract.ts'
import type { Config } from '../config/load.ts'
import type { Clock } from '../core/clock.ts'
import type { FolderCompany } from '../core/disk/shared-folders.ts'
import type { Log } from '../core/log.ts'
import type { Trace } from '../core/wire/trace.ts'
import type { DataFolders } from '../data-folder/folder.ts'
import type { SpanExporter } from '../observe/tracing/exporter.ts'
import { createLoopScheduler, type LoopScheduler } from '../retrieval/loop-scheduler.ts'
import type { Team } from '../team/team.ts'
import type { Lease } from './component-registry.ts'

/** A program's own backends, in addition to the configured ones. Never closed here. */
export type Own = {
  readonly tiers: readonly Tier[]
  readonly upstreams: readonly Upstream[]
  readonly providers: readonly Provider[]
}

export const nothingOfItsOwn: Own = { tiers: [], upstreams: [], providers: [] }

export type Whole = {
  readonly config: Config
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
export const takeTurns = (lease: Lease, clock: Clock): LoopScheduler =>
  lease.take('turns', [], () => createLoopScheduler(clock))
