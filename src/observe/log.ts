// One line of JSON per event on standard error. Never a secret: callers pass named facts, not objects of
// foreign libraries. Imports nothing of ours.

export type LogLevel = 'debug' | 'info' | 'warn' | 'error'
export type Log = (level: LogLevel, event: string, facts?: Readonly<Record<string, unknown>>) => void

const rank = { debug: 0, info: 1, warn: 2, error: 3 } as const

export const silentLog: Log = () => {}

export function createLog(least: LogLevel, write: (line: string) => void = (line) => process.stderr.write(line)): Log {
  return (level, event, facts) => {
    if (rank[level] < rank[least]) return
    write(`${JSON.stringify({ time: new Date().toISOString(), level, event, ...facts })}\n`)
  }
}
