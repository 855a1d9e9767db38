// Ends a listener: no new connection, and the idle ones are closed. Those at work end with their answers, though their clients would
// keep them.
import type { Server } from 'node:http'

const lookMs = 100

export function stop(server: Server): Promise<void> {
  return new Promise((resolve) => {
    const looking = setInterval(() => server.closeIdleConnections(), lookMs).unref()
    server.close(() => {
      clearInterval(looking)
      resolve()
    })
    server.closeIdleConnections()
  })
}
