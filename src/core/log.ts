// One line of JSON per event on standard error. Never a secret: callers pass named facts, not objects of libraries.
// Imports nothing of ours.
import type { Writable } from 'node:stream'

/** How much a line of the log matters. */
export type LogLevel = 'debug' | 'info' | 'warn' | 'error'
/** Takes one event and its facts. It must not throw, and callers do not wait for it. */
export type Log = {
  (level: LogLevel, event: string, facts?: Readonly<Record<string, unknown>>): void
  /** Lines that could not be written. */
  readonly lost?: () => number
}

/** Where lines go. Its failures never reach the caller that writes a line. */
export type LogSink = { write(line: string): void; readonly lost: () => number }

const rank = { debug: 0, info: 1, warn: 2, error: 3 } as const
/** The limit of unread lines in memory, for a reader that has stopped reading. */
const mostWaiting = 1024 * 1024

export const silentLog: Log = () => {}

export function createLog(least: LogLevel, sink: LogSink = createLogSink()): Log {
  const log = (level: LogLevel, event: string, facts?: Readonly<Record<string, unknown>>): void => {
    if (rank[level] >= rank[least]) sink.write(lineOf(level, event, facts))
  }
  return Object.assign(log, { lost: sink.lost })
}

/**
 * A reader that is gone, or a full disk, does not end the process: each line is tried, a failed one is counted, and the
 * number of lost lines is written with the next line that gets through.
 */
export function createLogSink(stream: Writable = process.stderr): LogSink {
  let lost = 0
  let told = 0
  survive(stream)
  return {
    write(line) {
      const missing = lost - told
      if (stream.writableLength > mostWaiting) {
        lost++
        return
      }
      const text = missing === 0 ? line : `${lineOf('warn', 'log.lost', { lines: missing })}${line}`
      told += missing
      stream.write(text, (error) => {
        if (!error) return
        lost++
        told -= missing
      })
    },
    lost: () => lost,
  }
}

/** Without a listener, a write error on standard output or error would end the process. */
export function survive(stream: Writable): void {
  if (!stream.listeners('error').includes(nothing)) stream.on('error', nothing)
}

const nothing = (): void => {}

const lineOf = (level: LogLevel, event: string, facts?: Readonly<Record<string, unknown>>): string =>
  `${JSON.stringify({ time: new Date().toISOString(), level, event, ...facts })}\n`
