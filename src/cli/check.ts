// `cidgate check`: all checks of a configuration that need no other machine.
import { accessSync, constants } from 'node:fs'
import { ConfigError } from '../config/complaints.ts'
import { type Config, configFile, loadWithPositions, type Rule } from '../config/load.ts'
import { codeOf } from '../config/substitute.ts'
import { systemClock } from '../core/clock.ts'
import { silentLog } from '../core/log.ts'
import { processFolders } from '../data-folder/folder.ts'
import { notesOn } from '../wiring/orphaned-uploads.ts'
import { schemasOf } from '../wiring/schemas.ts'
import { nothingOfItsOwn } from '../wiring/wiring-context.ts'
import type { Io } from './command.ts'
import { effective, effectiveValues } from './effective.ts'
import { notesOnTrust, unusableSockets } from './sockets.ts'

type Asked = { readonly io: Pick<Io, 'stdout'>; readonly isEffective?: boolean; readonly asJson?: boolean }

/** Throws a ConfigError; with --json prints it instead. */
export async function checkCommand(
  named: string | undefined,
  { io, isEffective = false, asJson = false }: Asked,
): Promise<number> {
  const file = configFile(named)
  const print = (line: object | string): void => {
    io.stdout.write(`${typeof line === 'string' ? line : JSON.stringify(line)}\n`)
  }
  try {
    const { config } = loadWithPositions(file, process.env, [thrownBy(schemasOf), unreadableLists])
    if (isEffective) {
      if (asJson) for (const { key, shown, from } of effectiveValues(file)) print({ key, value: shown, from })
      else io.stdout.write(effective(file))
      return 0
    }
    const notesFound = [...unusableSockets(config), ...notesOnTrust(config), ...(await notes(config))]
    if (asJson) print({ file, isValid: true, notes: notesFound })
    else for (const line of [`${file}: valid`, ...notesFound.map((note) => `note: ${note}`)]) print(line)
    return 0
  } catch (error) {
    if (!asJson || !(error instanceof ConfigError)) throw error
    print({ file, isValid: false, mistakes: error.mistakes })
    return 2
  }
}

const unreadableLists: Rule = ({ denylists }) =>
  denylists.flatMap((list, index) => {
    const file = typeof list === 'object' ? list.copy : /^https?:/.test(list) ? undefined : list
    const why = file === undefined ? undefined : whyUnreadable(file)
    return why === undefined
      ? []
      : [{ path: ['denylists', index], what: `cannot be read: ${why} (expected a file or a URL)` }]
  })

/** Collects the mistakes that a rule throws. */
const thrownBy =
  (rule: (config: Config) => unknown): Rule =>
  (config) => {
    try {
      rule(config)
      return []
    } catch (error) {
      if (error instanceof ConfigError) return error.complaints
      throw error
    }
  }

/** Notes on a valid configuration that may not be what the operator intended. */
async function notes(config: Config): Promise<string[]> {
  return notesOn({ config, own: nothingOfItsOwn, folders: processFolders, clock: systemClock, log: silentLog })
}

function whyUnreadable(path: string): string | undefined {
  try {
    accessSync(path, constants.R_OK)
    return undefined
  } catch (error) {
    return codeOf(error)
  }
}
