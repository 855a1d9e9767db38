// `cidgate check`: all checks of a configuration that need no other machine.
import { accessSync, constants, lstatSync, statSync } from 'node:fs'
import { dirname } from 'node:path'
import { ConfigError, isSecret, keyPath, valueAt } from '../config/complaints.ts'
import { type Config, configFile, loadWithPositions, type Rule, variableOf } from '../config/load.ts'
import { type Address, addressText, isUnix, type UnixAddress } from '../config/values.ts'
import { systemClock } from '../core/clock.ts'
import { codeOf } from '../core/disk/files.ts'
import { silentLog } from '../core/log.ts'
import { processFolders } from '../data-folder/folder.ts'
import { nothingOfItsOwn } from '../wiring/components.ts'
import { notesOn } from '../wiring/orphaned-uploads.ts'
import { schemasOf } from '../wiring/uploads.ts'
import type { Io } from './command.ts'

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
    return codeOf(error) ?? 'unknown reason'
  }
}

type Path = readonly (string | number)[]

type EffectiveValue = { readonly key: string; readonly shown: unknown; readonly from: string }

function effective(file: string): string {
  const lines = effectiveValues(file).map(({ key, shown, from }) => ({ shown: `${key} = ${textOf(shown)}`, from }))
  const width = Math.min(60, Math.max(...lines.map(({ shown }) => shown.length)))
  const head = '# Durations are in milliseconds and sizes in bytes, unless taken from the file.\n'
  return `${head}${lines.map(({ shown, from }) => `${shown.padEnd(width)}  # ${from}\n`).join('')}`
}

function effectiveValues(file: string): EffectiveValue[] {
  const { config, positionOf, given } = loadWithPositions(file)
  const rows = leaves({ ...config, listen: text(config.listen), admin: config.admin && text(config.admin) }, [])
  return rows.map(([path, value]) => {
    const written = inFile(path)
    const own = valueAt(given, written)
    return { key: keyPath(written), shown: show(path, value, own), from: originOf(path, own, written) }
  })

  function originOf(path: Path, own: unknown, written: Path): string {
    const variable = variableOf(path)
    if (variable !== undefined) return variable
    if (own !== undefined) return positionOf(written) ?? file
    const [section, list] = path
    const isShipped = section === 'retrieval' && valueAt(given, ['retrieval', 'upstreams']) === undefined
    if (isShipped && (list === 'upstreams' || list === 'routers')) return `config/${list}.yaml`
    return 'default'
  }
}

const text = (address: Address): string => addressText(address)

/** The parsed configuration nests the options of a backend; the file has them next to its name. */
const inFile = (path: Path): Path => path.filter((part) => part !== 'options')

function leaves(value: unknown, path: Path): [Path, unknown][] {
  if (typeof value !== 'object' || value === null) return value === undefined ? [] : [[path, value]]
  const inner = Array.isArray(value) ? [...value.entries()] : Object.entries(value)
  if (inner.length === 0) return [[path, value]]
  return inner.flatMap(([key, one]) => leaves(one, [...path, key]))
}

/** Fields of a token that are not secret: its name, expiry and permissions. */
const isAboutToken = (path: Path): boolean =>
  /^upload\.auth\.tokens\[\d+\]\.(?:name|expires|mayDelete|quota\.\w+)$/.test(keyPath(path))

const masked = '***'
const textOf = (shown: unknown): string => (shown === masked ? masked : JSON.stringify(shown))

/** `${NAME}` or `${file:…}`, but not the escaped `$${`. */
const placeholder = /(?<!\$)\$\{[^}]*\}/
/** The auth scheme in front of a secret is not secret itself. */
const scheme = /^(?:Bearer|Basic) +$/i

/** Keeps the `${…}` placeholders and masks everything between them. */
const maskedAround = (own: string): string =>
  own
    .split(new RegExp(`(${placeholder.source})`))
    .map((part, index) => (index % 2 === 1 || part === '' || scheme.test(part) ? part : masked))
    .join('')

/** The URL without its user info and query. */
const stripped = (text: string, hide: (part: string) => string): string =>
  text
    .replace(/\/\/((?:\$\{[^}]*\}|(?!\$\{)[^/?#])*)@/, (_all, who: string) => `//${hide(who)}@`)
    .replace(/\?(.*)$/s, (_all, query: string) => `?${hide(query)}`)

/** A placeholder is shown as in the file, without its value. */
function show(path: Path, value: unknown, own: unknown): unknown {
  if (typeof own === 'string' && placeholder.test(own))
    return isSecret(path, '') ? maskedAround(own) : stripped(own, maskedAround)
  if (typeof value === 'object') return value
  const isWord = value === 'none' || value === 'open' || typeof value === 'boolean'
  if (!isWord && !isAboutToken(path) && isSecret(path, value)) return masked
  const written = variableOf(path) === undefined && typeof own === 'string' ? own : value
  return typeof written === 'string' ? stripped(written, () => masked) : written
}

export type SocketAddress = UnixAddress & { readonly key: 'listen' | 'admin' }

export const socketsOf = (config: Config): SocketAddress[] =>
  (['listen', 'admin'] as const).flatMap((key) => {
    const address = config[key]
    return address && isUnix(address) ? [{ key, ...address }] : []
  })

/** Undefined if a gateway of this user could listen there, or does. */
export function whyNoSocket({ path }: UnixAddress): string | undefined {
  const folder = dirname(path)
  try {
    if (!statSync(folder).isDirectory()) return `${folder} is no folder`
    accessSync(folder, constants.W_OK | constants.X_OK)
    const found = lstatSync(path, { throwIfNoEntry: false })
    return found && !found.isSocket() ? 'there is a file, and it is no socket; move it' : undefined
  } catch (error) {
    return `${folder} cannot be written to (${codeOf(error)}); create it, or check its owner and permissions`
  }
}

export const unusableSockets = (config: Config): string[] =>
  socketsOf(config).flatMap((address) => {
    const why = whyNoSocket(address)
    return why === undefined ? [] : [`${address.key}: the gateway could not listen there: ${why}`]
  })

/** Notes on a valid configuration that trusts no proxy on its unix socket. */
export function notesOnTrust({ listen, trustedProxies, limits }: Config): string[] {
  if (!isUnix(listen) || trustedProxies.includes('unix')) return []
  const counted = limits.perClient === 'none' ? '' : ', also for limits.perClient'
  return [
    `listen: what comes over this socket has no address, so all clients behind it are one${counted}; where a proxy in front sets X-Forwarded-For, add unix to trustedProxies`,
  ]
}
