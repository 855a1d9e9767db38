// The command line: argv to a command, and a command to an exit code. 0: it worked, 1: it failed, 2: wrong usage.
// Commands are imported on demand, so that `--help` does not load the gateway.
import { parseArgs } from 'node:util'
import { ConfigError } from '../config/complaints.ts'

const help = `cidgate: one HTTP address for content-addressed files

  cidgate [serve] [--config FILE]   run the gateway (without a file: config/default.yaml)
  cidgate check [--config] FILE     say what is wrong with a configuration, and where
  cidgate doctor [--config FILE]    check its folder, providers, tiers and upstreams, and say what to fix
  cidgate --help, --version

A configuration is read again on SIGHUP. SIGTERM and SIGINT stop after what was asked is answered; again
SIGTERM and SIGINT answer the requests in progress and stop; a second
CIDGATE_LISTEN, CIDGATE_ADMIN and CIDGATE_DATA win over the file; CIDGATE_CONFIG names one where --config does not.
`

class UsageError extends Error {}

const flags = {
  config: { type: 'string', short: 'c' },
  help: { type: 'boolean', short: 'h' },
  version: { type: 'boolean', short: 'v' },
} as const

async function run(argv: readonly string[]): Promise<number> {
  const { values, positionals } = readArguments(argv)
  if (values.help) return say(help)
  const [command = 'serve', ...rest] = positionals
  if (values.version) return say(`${(await import('../config/package.ts')).version}\n`)
  switch (command) {
    case 'serve':
      if (rest.length > 0) throw new UsageError(`serve takes no ${rest[0]}; a configuration is named with --config`)
      return (await import('./serve.ts')).serveCommand(values.config)
    case 'check': {
      const file = oneFile(command, rest, values.config)
      if (file === undefined) throw new UsageError('check takes one file')
      return (await import('./check.ts')).checkCommand(file)
    }
    case 'doctor':
      return (await import('./doctor.ts')).doctorCommand(oneFile(command, rest, values.config))
    case 'help':
      return say(help)
    default:
      throw new UsageError(`unknown command ${command}`)
  }
}

/** Named with --config, or on its own. */
function oneFile(command: string, named: readonly string[], config: string | undefined): string | undefined {
  const [file = config, ...more] = named
  if (more.length > 0 || (named.length > 0 && config !== undefined)) throw new UsageError(`${command} takes one file`)
  return file
}

function readArguments(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options: flags, allowPositionals: true })
  } catch (error) {
    throw new UsageError(error instanceof Error ? (error.message.split('. ')[0] ?? '') : 'unknown arguments')
  }
}

function say(text: string): number {
  process.stdout.write(text)
  return 0
}

function complain(error: unknown): number {
  if (error instanceof ConfigError) process.stderr.write(`${error.message}\n`)
  else if (error instanceof UsageError) process.stderr.write(`cidgate: ${error.message} (see cidgate --help)\n`)
  else process.stderr.write(`cidgate: ${error instanceof Error ? error.message : error}\n`)
  return error instanceof ConfigError || error instanceof UsageError ? 2 : 1
}

process.exitCode = await run(process.argv.slice(2)).catch(complain)
