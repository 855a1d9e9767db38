// `cidgate check`: everything that can be checked in a configuration without contacting other machines.
import { accessSync, constants } from 'node:fs'
import { ConfigError } from '../config/complaints.ts'
import { type Config, loadWithPositions, located } from '../config/load.ts'
import { codeOf } from '../config/substitute.ts'
import { systemClock } from '../core/clock.ts'
import { silentLog } from '../core/log.ts'
import { createTrace } from '../core/wire/trace.ts'
import { processFolders } from '../data-folder/process.ts'
import { createKept } from '../wiring/kept.ts'
import { notesOn } from '../wiring/left.ts'
import { schemasOf } from '../wiring/schemas.ts'
import { nothingOfItsOwn } from '../wiring/whole.ts'
import type { Io } from './command.ts'
import { effective } from './effective.ts'
import { notesOnTrust, unusableSockets } from './sockets.ts'

/** Throws a ConfigError. */
export async function checkCommand(
  file: string,
  isEffective: boolean,
  { stdout }: Pick<Io, 'stdout'>,
): Promise<number> {
  const { config, positionOf } = loadWithPositions(file)
  located(() => schemasOf(config), positionOf)
  const missing = config.denylists.flatMap((list, index) => {
    const file = typeof list === 'object' ? list.copy : /^https?:/.test(list) ? undefined : list
    const why = file === undefined ? undefined : whyUnreadable(file)
    const what = `${file} cannot be read: ${why} (expected a file or a URL)`
    return why === undefined ? [] : [{ path: ['denylists', index], what }]
  })
  if (missing.length > 0) throw new ConfigError(missing, positionOf)
  if (isEffective) {
    stdout.write(effective(file))
    return 0
  }
  stdout.write(`${file}: valid\n`)
  for (const note of [...unusableSockets(config), ...notesOnTrust(config), ...(await notes(config))])
    stdout.write(`note: ${note}\n`)
  return 0
}

/** Notes on a valid configuration that may not be what the operator meant. */
async function notes(config: Config): Promise<string[]> {
  const lease = createKept().lease()
  try {
    return await notesOn({
      config,
      clock: systemClock,
      log: silentLog,
      lease,
      folders: processFolders,
      own: nothingOfItsOwn,
      trace: createTrace(),
    })
  } finally {
    await lease.end()
  }
}

function whyUnreadable(path: string): string | undefined {
  try {
    accessSync(path, constants.R_OK)
    return undefined
  } catch (error) {
    return codeOf(error)
  }
}
