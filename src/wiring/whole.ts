// What every part of the wiring is given: the configuration, time, the log, and a place to say what closes with the gateway.
import type { Clock } from '../clock.ts'
import type { Config } from '../config/load.ts'
import type { Log } from '../observe/log.ts'

export type Whole = {
  readonly config: Config
  readonly clock: Clock
  readonly log: Log
  /** The last that was named is closed first. */
  readonly onClose: (close: () => unknown) => void
}
