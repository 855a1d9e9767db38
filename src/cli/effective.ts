// `cidgate check --effective`: every value that is in force, one a line, and where it comes from. Secrets are masked.
import { isSecret, keyPath, valueAt } from '../config/complaints.ts'
import { loadWithPositions, variableOf } from '../config/load.ts'
import { type Address, addressText } from '../config/values/address.ts'

type Path = readonly (string | number)[]

export function effective(file: string): string {
  const { config, positionOf, said } = loadWithPositions(file)
  const rows = leaves({ ...config, listen: text(config.listen), admin: config.admin && text(config.admin) }, [])
  const lines = rows.map(([path, value]) => {
    const written = inFile(path)
    const own = valueAt(said, written)
    const shown = show(path, value, own)
    return { shown: `${keyPath(written)} = ${shown}`, from: originOf(path, own, written) }
  })
  const width = Math.min(60, Math.max(...lines.map(({ shown }) => shown.length)))
  const head = '# Durations are in milliseconds and sizes in bytes, but where the file says them otherwise.\n'
  return `${head}${lines.map(({ shown, from }) => `${shown.padEnd(width)}  # ${from}\n`).join('')}`

  function originOf(path: Path, own: unknown, written: Path): string {
    const variable = variableOf(path)
    if (variable !== undefined) return variable
    if (own !== undefined) return positionOf(written) ?? file
    if (path[0] === 'retrieval' && path[1] === 'upstreams' && valueAt(said, ['retrieval', 'upstreams']) === undefined)
      return 'config/upstreams.yaml'
    return 'default'
  }
}

const text = (address: Address): string => addressText(address)

/** The configuration has the options of a backend apart; the file has them beside its name. */
const inFile = (path: Path): Path => path.filter((part) => part !== 'options')

function leaves(value: unknown, path: Path): [Path, unknown][] {
  if (typeof value !== 'object' || value === null) return value === undefined ? [] : [[path, value]]
  const inner = Array.isArray(value) ? [...value.entries()] : Object.entries(value)
  if (inner.length === 0) return [[path, value]]
  return inner.flatMap(([key, one]) => leaves(one, [...path, key]))
}

/** What a token is called, when it ends and what it may: the operator wants to see it, and it opens nothing. */
const isAboutToken = (path: Path): boolean =>
  /^upload\.auth\.tokens\[\d+\]\.(?:name|expires|mayDelete|quota\.\w+)$/.test(keyPath(path))

/** What the file takes from elsewhere is shown as the file has it. */
function show(path: Path, value: unknown, own: unknown): string {
  if (typeof own === 'string' && own.includes('${')) return JSON.stringify(own)
  if (typeof value === 'object') return JSON.stringify(value)
  const isWord = value === 'none' || value === 'open' || typeof value === 'boolean'
  if (!isWord && !isAboutToken(path) && isSecret(path, value)) return '***'
  const written = variableOf(path) === undefined && typeof own === 'string' ? own : value
  const bare =
    typeof written === 'string' ? written.replace(/\/\/[^/?#@]*@/, '//***@').replace(/\?.*$/, '?***') : written
  return JSON.stringify(bare)
}
