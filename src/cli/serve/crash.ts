// Ends the process on a bug.
import type { Log } from '../../core/log.ts'

/**
 * Ends the process on an unexpected error, because its state is unknown: the log has the stack, and
 * a supervisor restarts it.
 */
export function crashOnTheUnexpected(log: Log): void {
  const crash = (event: string) => (error: unknown) => {
    log('error', event, { error: error instanceof Error ? error.stack : String(error) })
    process.exit(1)
  }
  process.on('unhandledRejection', crash('process.unhandled-rejection'))
  process.on('uncaughtException', crash('process.uncaught-exception'))
}
