// `cidgate check --effective`: prints every value in force, one per line, with its source. Secrets
// are masked.
import { isSecret, keyPath, valueAt } from '../config/complaints.ts'
import { loadWithPositions, variableOf } from '../config/load.ts'
import { type Address, addressText } from '../config/values.ts'

type Path = readonly (string | number)[]

export type EffectiveValue = { readonly key: string; readonly shown: unknown; readonly from: string }

export function effective(file: string): string {
  const lines = effectiveValues(file).map(({ key, shown, from }) => ({ shown: `${key} = ${textOf(shown)}`, from }))
  const width = Math.min(60, Math.max(...lines.map(({ shown }) => shown.length)))
  const head = '# Durations are in milliseconds and sizes in bytes, but where the file says them otherwise.\n'
  return `${head}${lines.map(({ shown, from }) => `${shown.padEnd(width)}  # ${from}\n`).join('')}`
}

export function effectiveValues(file: string): EffectiveValue[] {
  const { config, positionOf, said } = loadWithPositions(file)
  const rows = leaves({ ...config, listen: text(config.listen), admin: config.admin && text(config.admin) }, [])
  return rows.map(([path, value]) => {
    const written = inFile(path)
    const own = valueAt(said, written)
    return { key: keyPath(written), shown: show(path, value, own), from: originOf(path, own, written) }
  })

  function originOf(path: Path, own: unknown, written: Path): string {
    const variable = variableOf(path)
    if (variable !== undefined) return variable
    if (own !== undefined) return positionOf(written) ?? file
    const [section, list] = path
    const isShipped = section === 'retrieval' && valueAt(said, ['retrieval', 'upstreams']) === undefined
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
const taken = /(?<!\$)\$\{[^}]*\}/
/** The auth scheme in front of a secret is not secret itself. */
const scheme = /^(?:Bearer|Basic) +$/i

/** Keeps the `${…}` placeholders and masks everything between them. */
const onlyTaken = (own: string): string =>
  own
    .split(new RegExp(`(${taken.source})`))
    .map((part, index) => (index % 2 === 1 || part === '' || scheme.test(part) ? part : masked))
    .join('')

/** The URL without its user info and query. */
const bare = (text: string, hide: (part: string) => string): string =>
  text
    .replace(/\/\/((?:\$\{[^}]*\}|(?!\$\{)[^/?#])*)@/, (_all, who: string) => `//${hide(who)}@`)
    .replace(/\?(.*)$/s, (_all, query: string) => `?${hide(query)}`)

/** A placeholder is shown as in the file, without its value. */
function show(path: Path, value: unknown, own: unknown): unknown {
  if (typeof own === 'string' && taken.test(own)) return isSecret(path, '') ? onlyTaken(own) : bare(own, onlyTaken)
  if (typeof value === 'object') return value
  const isWord = value === 'none' || value === 'open' || typeof value === 'boolean'
  if (!isWord && !isAboutToken(path) && isSecret(path, value)) return masked
  const written = variableOf(path) === undefined && typeof own === 'string' ? own : value
  return typeof written === 'string' ? bare(written, () => masked) : written
}
