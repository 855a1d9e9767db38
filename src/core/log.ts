// One line per event on standard error, as JSON or text. Never a secret: callers pass named fields,
// not objects of libraries. Imports nothing from `src`.
import type { Writable } from 'node:stream'

export type LogLevel = 'debug' | 'info' | 'warn' | 'error'
/**
 * `errors`: statuses from 400 on, and responses that were cut off. `sampled`: those, and one in 100
 * of the others.
 */
export const accessModes = ['off', 'errors', 'sampled', 'all'] as const
export type AccessMode = (typeof accessModes)[number]

export type LogFormat = 'json' | 'text'

/** Writes an event and its fields. Never throws, and callers do not wait for it. */
export type Log = {
  (level: LogLevel, event: string, facts?: Readonly<Record<string, unknown>>): void
  /** The number of lines that could not be written. */
  readonly lost?: () => number
}

/** Writes lines of the log. Its failures never reach the caller. */
export type LogSink = { write(line: string, format?: LogFormat): void; readonly lost: () => number }

/** True for an option or parameter whose name says that its value is secret. */
export const isSecretName = (name: string): boolean =>
  /auth|basic|bearer|headers|jwt|key|password|secret|token/i.test(name)

const rank = { debug: 0, info: 1, warn: 2, error: 3 } as const
/** The limit of unwritten lines in memory, in case the reader of the log has stopped reading. */
const maxWaiting = 1024 * 1024

export const silentLog: Log = () => {}

export function createLog(minLevel: LogLevel, sink: LogSink = createLogSink(), format: LogFormat = 'json'): Log {
  const log = (level: LogLevel, event: string, facts?: Readonly<Record<string, unknown>>): void => {
    if (rank[level] >= rank[minLevel]) sink.write(lines[format](level, event, facts), format)
  }
  return Object.assign(log, { lost: sink.lost })
}

/**
 * A closed pipe or a full disk does not end the process: each line is tried, failures are counted,
 * and the number of lost lines is written with the next line that succeeds.
 */
export function createLogSink(stream: Writable = process.stderr): LogSink {
  let lost = 0
  let reported = 0
  survive(stream)
  return {
    write(line, format = 'json') {
      const missing = lost - reported
      if (stream.writableLength > maxWaiting) {
        lost++
        return
      }
      const text = missing === 0 ? line : `${lines[format]('warn', 'log.lost', { lines: missing })}${line}`
      reported += missing
      stream.write(text, (error) => {
        if (!error) return
        lost++
        reported -= missing
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

type Line = (level: LogLevel, event: string, facts?: Readonly<Record<string, unknown>>) => string

const asJson: Line = (level, event, facts) =>
  `${escaped(JSON.stringify({ time: new Date().toISOString(), level, event, ...facts }))}\n`

const asText: Line = (level, event, facts) => {
  const said = Object.entries(facts ?? {}).flatMap(([name, value]) =>
    value === undefined ? [] : `${name}=${worded(value)}`,
  )
  return `${[new Date().toISOString(), level.toUpperCase().padEnd(5), event, ...said].join(' ')}\n`
}

const lines: Readonly<Record<LogFormat, Line>> = { json: asJson, text: asText }

function worded(value: unknown): string {
  if (typeof value === 'string' && /^[\w./:@%+,*~-]+$/.test(value)) return value
  return escaped(JSON.stringify(value) ?? String(value))
}

/**
 * Escapes control characters in JSON, so that text from a client cannot control the operator's
 * terminal.
 */
const escaped = (json: string): string =>
  json.replace(
    /[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, '0')}`,
  )

/** `auto`: text on a terminal, JSON elsewhere. */
export const formatFor = (
  wanted: LogFormat | 'auto',
  stream: { readonly isTTY?: boolean } = process.stderr,
): LogFormat => (wanted !== 'auto' ? wanted : stream.isTTY ? 'text' : 'json')
