// Ends a listener: no new connection, and the idle ones are closed. Those at work end with their answers.
import type { Server } from 'node:http'

export function stop(server: Server): Promise<void> {
  return new Promise((resolve) => {
    server.close(() => resolve())
    server.closeIdleConnections()
  })
}
