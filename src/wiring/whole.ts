// What every part of the wiring is given: the configuration, time, the log, and the way to what outlives this gateway.
import type { Provider } from '../../backends/pinning/contract.ts'
import type { Tier } from '../../backends/tiers/contract.ts'
import type { Upstream } from '../../backends/upstreams/contract.ts'
import type { Config } from '../config/load.ts'
import type { Clock } from '../core/clock.ts'
import type { FolderCompany } from '../core/disk/company.ts'
import type { Log } from '../core/log.ts'
import type { Trace } from '../core/wire/trace.ts'
import type { DataFolders } from '../data-folder/folders.ts'
import type { SpanExporter } from '../observe/tracing/exporter.ts'
import { createLoopTurns, type LoopTurns } from '../retrieval/turns/loop-turns.ts'
import type { Team } from '../team/team.ts'
import type { Lease } from './kept.ts'

/** What a program brought itself, beside what the configuration names. It is never closed here. */
export type Own = {
  readonly tiers: readonly Tier[]
  readonly upstreams: readonly Upstream[]
  readonly providers: readonly Provider[]
}

export const nothingOfItsOwn: Own = { tiers: [], upstreams: [], providers: [] }

export type Whole = {
  readonly config: Config
  readonly clock: Clock
  /** Of the newest gateway, whichever that is: what is made with it may outlive this one. */
  readonly log: Log
  readonly lease: Lease
  /** Of this gateway and those that follow it. */
  readonly turns: LoopTurns
  /** Of this process, so that no two of its gateways work against each other in one. */
  readonly folders: DataFolders
  readonly own: Own
  /** The processes that answer for this gateway. Undefined: this one alone. */
  readonly team?: Team | undefined
  /** The same, for backends that keep files. */
  readonly company?: FolderCompany | undefined
  readonly trace: Trace
  /** Where spans go; undefined: none is made. */
  readonly spans?: SpanExporter | undefined
}

/** Every gateway takes them, also one that makes nothing anew: what the gateway before has made goes on in them. */
export const takeTurns = (lease: Lease, clock: Clock): LoopTurns =>
  lease.take('turns', [], () => createLoopTurns(clock))
