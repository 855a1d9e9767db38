// The command line: arguments to a command, and a command to an exit code.
import { parseArgs } from 'node:util'
import { ConfigError } from '../config/complaints.ts'
import { type Command, commonOptions, type Io, type Values } from './command.ts'
import { commands } from './commands.ts'
import { helpFor, helpForAll } from './help.ts'
import { UsageError } from './usage.ts'

export const run = (argv: readonly string[], io: Io): Promise<number> =>
  dispatch(argv, io).catch((error: unknown) => complain(error, io))

async function dispatch(argv: readonly string[], io: Io): Promise<number> {
  const say = (text: string): number => {
    io.stdout.write(text)
    return 0
  }
  const [first, ...others] = argv
  // Without a command it is `serve`: `cidgate --config FILE`.
  const isNamed = first !== undefined && !first.startsWith('-')
  if (first === 'help') return say(others[0] === undefined ? helpForAll(commands) : helpFor(find(others[0])))
  const command = find(isNamed ? first : 'serve')
  const { values, positionals } = readArguments(command, isNamed ? others : argv)
  if (values['help']) return say(isNamed ? helpFor(command) : helpForAll(commands))
  if (values['version']) return say(`${(await import('../config/package.ts')).version}\n`)
  return command.run({ values, positionals, io })
}

function find(name: string): Command {
  const command = commands.find((one) => one.name === name)
  if (command) return command
  const [near] = commands
    .map((one) => ({ name: one.name, far: distance(name, one.name) }))
    .sort((a, b) => a.far - b.far)
  const meant = near && near.far <= 2 ? `; did you mean ${near.name}?` : ''
  throw new UsageError(`unknown command ${name}${meant}`)
}

function readArguments(command: Command, args: readonly string[]) {
  const options = { ...commonOptions, ...command.options }
  try {
    const { values, positionals } = parseArgs({ args: [...args], options, allowPositionals: true })
    return { values: values as Values, positionals }
  } catch (error) {
    throw new UsageError(error instanceof Error ? (error.message.split('. ')[0] ?? '') : 'unknown arguments')
  }
}

/** How many letters have to be added, left out or changed. */
function distance(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, index) => index)
  for (const [at, letter] of [...from].entries()) {
    const next = [at + 1]
    for (const [column, other] of [...to].entries()) {
      const change = (row[column] ?? 0) + (letter === other ? 0 : 1)
      next.push(Math.min(change, (row[column + 1] ?? 0) + 1, (next[column] ?? 0) + 1))
    }
    row = next
  }
  return row.at(-1) ?? 0
}

function complain(error: unknown, { stderr }: Io): number {
  if (error instanceof ConfigError) stderr.write(`${error.message}\n`)
  else if (error instanceof UsageError) stderr.write(`cidgate: ${error.message} (see cidgate --help)\n`)
  else stderr.write(`cidgate: ${error instanceof Error ? error.message : error}\n`)
  return error instanceof ConfigError || error instanceof UsageError ? 2 : 1
}
