// `cidgate check`: what can be known of a configuration without touching what it names on other machines.
import { accessSync, constants } from 'node:fs'
import { ConfigError } from '../config/complaints.ts'
import { loadConfig } from '../config/load.ts'
import { codeOf } from '../config/substitute.ts'
import { schemasOf } from '../wiring/schemas.ts'

/** Throws a ConfigError. */
export function checkCommand(file: string): number {
  const config = loadConfig(file)
  schemasOf(config)
  const missing = config.denylists.flatMap((list, index) => {
    const why = /^https?:/.test(list) ? undefined : whyUnreadable(list)
    return why === undefined ? [] : [`denylists[${index}]: ${list} cannot be read: ${why} (expected a file or a URL)`]
  })
  if (missing.length > 0) throw new ConfigError(missing)
  process.stdout.write(`${file}: good\n`)
  return 0
}

function whyUnreadable(path: string): string | undefined {
  try {
    accessSync(path, constants.R_OK)
    return undefined
  } catch (error) {
    return codeOf(error)
  }
}
