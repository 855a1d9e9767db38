// The definition of a command, and its input.
import type { Readable, Writable } from 'node:stream'

export type Io = {
  readonly stdin: Readable
  readonly stdout: Writable
  readonly stderr: Writable & { readonly isTTY?: boolean }
  readonly environment: NodeJS.ProcessEnv
}

export type Values = Readonly<Record<string, string | boolean | undefined>>
export type Given = { readonly values: Values; readonly positionals: readonly string[]; readonly io: Io }
export type Option = {
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
