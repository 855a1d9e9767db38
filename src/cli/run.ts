// The command line: selects a command by the arguments, and returns its exit code.
import { parseArgs } from 'node:util'
import { ConfigError } from '../config/complaints.ts'
import { type Command, commonOptions, type Io, meant, UsageError, type Values } from './command.ts'
import { commands } from './commands.ts'
import { helpFor, helpForAll } from './help.ts'

export const run = (argv: readonly string[], io: Io): Promise<number> =>
  dispatch(argv, io).catch((error: unknown) => complain(error, io))

async function dispatch(argv: readonly string[], io: Io): Promise<number> {
  const say = (text: string): number => {
    io.stdout.write(text)
    return 0
  }
  const [first, ...others] = argv
  // Without a command, as in `cidgate --config FILE`, it is `serve`.
  const isNamed = first !== undefined && !first.startsWith('-')
  if (first === 'help') return say(others[0] === undefined ? helpForAll(commands) : helpFor(find(others[0])))
  const command = find(isNamed ? first : 'serve')
  const { values, positionals } = readArguments(command, isNamed ? others : argv)
  if (values['help']) return say(isNamed ? helpFor(command) : helpForAll(commands))
  if (values['version']) return say(`${(await import('../config/package.ts')).version}\n`)
  refuseArguments(command, positionals)
  return command.run({ values, positionals, io })
}

function refuseArguments({ name, takes, needs = '' }: Command, given: readonly string[]): void {
  if (takes === '' && given.length > 0)
    throw new UsageError(`${name} does not accept ${given[0]}; name a configuration with --config`)
  const isFit = needs === '' || (needs.startsWith('one ') ? given.length === 1 : given.length > 0)
  if (!isFit) throw new UsageError(`${name} needs ${needs}`)
}

function find(name: string): Command {
  const command = commands.find((one) => one.name === name)
  if (command) return command
  const names = commands.map((one) => one.name)
  throw new UsageError(`unknown command ${name}${meant(name, names)}`)
}

function readArguments(command: Command, args: readonly string[]) {
  const options = { ...commonOptions, ...command.options }
  try {
    const { values, positionals } = parseArgs({ args: [...args], options, allowPositionals: true })
    return { values: values as Values, positionals }
  } catch (error) {
    const said = error instanceof Error ? (error.message.split('. ')[0] ?? '') : 'unknown arguments'
    const [, typed] = /^Unknown option '--([^']+)'/.exec(said) ?? []
    const known = Object.keys(options).map((name) => `--${name}`)
    throw new UsageError(typed === undefined ? said : `${said}${meant(`--${typed}`, known)}`)
  }
}

function complain(error: unknown, { stderr }: Io): number {
  if (error instanceof ConfigError) stderr.write(`${error.message}\n`)
  else if (error instanceof UsageError) stderr.write(`cidgate: ${error.message} (see cidgate --help)\n`)
  else stderr.write(`cidgate: ${error instanceof Error ? error.message : error}\n`)
  return error instanceof ConfigError || error instanceof UsageError ? 2 : 1
}
