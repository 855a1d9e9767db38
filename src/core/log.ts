// One line of JSON per event on standard error. Never a secret: callers pass named facts, not objects of
// foreign libraries. Imports nothing of ours.
import type { Writable } from 'node:stream'

/** How much a line of the log matters. */
export type LogLevel = 'debug' | 'info' | 'warn' | 'error'
/** Takes one event and what is known of it. It must not throw, and it is not waited for. */
export type Log = {
  (level: LogLevel, event: string, facts?: Readonly<Record<string, unknown>>): void
  /** Lines that could not be written. */
  readonly lost?: () => number
}

/** Where lines go. Nothing that goes wrong there is the affair of whoever writes one. */
export type LogSink = { write(line: string): void; readonly lost: () => number }

const rank = { debug: 0, info: 1, warn: 2, error: 3 } as const
/** A reader that stands still is written to no further than this: what is kept for it is memory of ours. */
const mostWaiting = 1024 * 1024

export const silentLog: Log = () => {}

export function createLog(least: LogLevel, sink: LogSink = createLogSink()): Log {
  const log = (level: LogLevel, event: string, facts?: Readonly<Record<string, unknown>>): void => {
    if (rank[level] >= rank[least]) sink.write(lineOf(level, event, facts))
  }
  return Object.assign(log, { lost: sink.lost })
}

/**
 * A reader that is gone, or a disk that is full, ends no process: each line is tried, one that fails is counted, and how many
 * there were is said as soon as one gets through.
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

/** What cannot be written to standard output or error is an event there, and without a listener the end of the process. */
export function survive(stream: Writable): void {
  if (!stream.listeners('error').includes(nothing)) stream.on('error', nothing)
}

const nothing = (): void => {}

const lineOf = (level: LogLevel, event: string, facts?: Readonly<Record<string, unknown>>): string =>
  `${JSON.stringify({ time: new Date().toISOString(), level, event, ...facts })}\n`
