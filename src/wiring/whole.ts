// What every part of the wiring is given: the configuration, time, the log, and the way to what outlives this gateway.

import type { Config } from '../config/load.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import type { DataFolders } from '../data-folder/folders.ts'
import type { Lease } from './kept.ts'

export type Whole = {
  readonly config: Config
  readonly clock: Clock
  /** Of the newest gateway, whichever that is: what is made with it may outlive this one. */
  readonly log: Log
  readonly lease: Lease
  /** Of this process, so that no two of its gateways work against each other in one. */
  readonly folders: DataFolders
}
