// The definition of a command, and its input.
import type { Readable, Writable } from 'node:stream'
import { nearest } from '../config/complaints.ts'

export type Io = {
  readonly stdin: Readable
  readonly stdout: Writable
  readonly stderr: Writable & { readonly isTTY?: boolean }
  readonly environment: NodeJS.ProcessEnv
}

export type Values = Readonly<Record<string, string | boolean | undefined>>
export type Given = { readonly values: Values; readonly positionals: readonly string[]; readonly io: Io }
type Option = {
  readonly type: 'string' | 'boolean'
  readonly short?: string
  readonly what: string
  readonly value?: string
}
export type Options = Readonly<Record<string, Option>>

export type Command = {
  readonly name: string
  readonly takes: string
  readonly what: string
  /** Extra text in its own help. */
  readonly more?: string
  readonly options: Options
  /** The required arguments: `one path`, or `a CID` for one or more. */
  readonly needs?: string
  /** Subcommands such as `ls`, for shell completion. */
  readonly words?: readonly string[]
  readonly examples: readonly string[]
  run(given: Given): Promise<number>
}

/** For every command that reports something. */
export const json = { type: 'boolean', what: 'answer in JSON, one object a line' } as const satisfies Option

export const commonOptions = {
  config: {
    type: 'string',
    short: 'c',
    value: 'FILE',
    what: 'the configuration (otherwise CIDGATE_CONFIG, or config/default.yaml)',
  },
  help: { type: 'boolean', short: 'h', what: 'show help' },
  version: { type: 'boolean', short: 'v', what: 'say which version this is' },
} as const satisfies Options

export class UsageError extends Error {}

/** The suggestion at the end of an error about an unknown word. */
export function meant(typed: string, known: readonly string[]): string {
  const word = nearest(typed, known, Math.min(2, typed.length - 1))
  return word === undefined ? '' : `; did you mean ${word}?`
}

/** The single file argument, or undefined; `config` is an alternative to it. */
export function oneFile(command: string, named: readonly string[], config: string | undefined): string | undefined {
  const [file = config, ...more] = named
  if (more.length > 0 || (named.length > 0 && config !== undefined)) throw new UsageError(`${command} accepts one file`)
  return file
}

/** The argument by which `main.ts` recognizes a worker process. */
export const workerWord = '--worker-of-cidgate'
