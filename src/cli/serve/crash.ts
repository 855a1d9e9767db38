// A bug ends the process.
import type { Log } from '../../core/log.ts'

/** Half a gateway never goes on: the log has the stack, and a supervisor starts it again. */
export function crashOnTheUnexpected(log: Log): void {
  const crash = (event: string) => (error: unknown) => {
    log('error', event, { error: error instanceof Error ? error.stack : String(error) })
    process.exit(1)
  }
  process.on('unhandledRejection', crash('process.unhandled-rejection'))
  process.on('uncaughtException', crash('process.uncaught-exception'))
}
