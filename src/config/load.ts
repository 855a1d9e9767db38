// Builds one frozen Config from a YAML file, the environment and the defaults, or a ConfigError
// with every mistake. Reads only files; the availability of services and stores is checked later.
import { resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import {
  type Complaint,
  ConfigError,
  complaints,
  knownKeys,
  type Path,
  type PositionOf,
  valueAt,
} from './complaints.ts'
import { shipped } from './package.ts'
import { type Config, configSchema, configSchemaFor, type OwnProviders, openUploads } from './schema.ts'
import { type Environment, substitute } from './substitute.ts'
import { readYaml } from './yaml.ts'

export type { Config, ConfigInput, Parsed } from './schema.ts'

/**
 * Loads `file`, or `CIDGATE_CONFIG`, or the shipped default. Mistakes have their position in the
 * file.
 */
export const loadConfig = (file: string | undefined, environment: Environment = process.env): Config =>
  loadWithPositions(file, environment).config

/** The file that is loaded. */
export const configFile = (file: string | undefined, environment: Environment = process.env): string =>
  file ?? (environment.CIDGATE_CONFIG || fileURLToPath(shipped('config/default.yaml')))

/** A check of a configuration that the schema accepts. */
export type Rule = (config: Config) => readonly Complaint[]

/**
 * Also returns the content of the file and the positions of its values. `rules`: additional checks.
 */
export function loadWithPositions(
  file: string | undefined,
  environment: Environment = process.env,
  rules: readonly Rule[] = [],
): { readonly config: Config; readonly positionOf: PositionOf; readonly given: unknown } {
  const { tree: given, positionOf: inFile } = readYaml(configFile(file, environment))
  const positionOf: PositionOf = (path) => variableOf(path, environment) ?? inFile(path)
  const parsed = parse(configSchema, given, environment, [openUploads, ...rules])
  return { config: valid(parsed, positionOf), positionOf, given }
}

/** The environment variable that set a value. */
export const variableOf = (path: readonly PropertyKey[], environment: Environment = process.env): string | undefined =>
  fromOutside.find(({ key, name }) => environment[name] && key.every((part, at) => part === path[at]))?.name

/**
 * Parses a configuration object with the content of the YAML file, including `5s` and `10MiB`. It
 * may contain sections of another Config: `{ ...config, listen: ':80' }`.
 */
export const parseConfig = (given: unknown, environment: Environment = {}): Config =>
  parseWith(configSchema, given, environment)

/** For a program with providers of its own. */
export const parseConfigFor = (beside: OwnProviders, given: unknown): Config =>
  beside.providers === 0 ? parseConfig(given) : parseWith(configSchemaFor(beside), given, {})

const parseWith = (schema: typeof configSchema, given: unknown, environment: Environment): Config =>
  valid(parse(schema, given, environment))

/** `config` is undefined if the schema refuses it. */
type Parse = { readonly config?: Config; readonly mistakes: readonly Complaint[] }

function valid({ config, mistakes }: Parse, positionOf?: PositionOf): Config {
  if (!config || mistakes.length > 0) throw new ConfigError(mistakes, positionOf)
  return config
}

/**
 * A missing secret is one mistake: a placeholder takes its place, and mistakes caused by the
 * placeholder are dropped.
 */
function parse(
  schema: typeof configSchema,
  given: unknown,
  environment: Environment,
  rules: readonly Rule[] = [],
): Parse {
  const { tree: own, parsed } = withoutParsed(given ?? {})
  const endless = tooMuch(own)
  if (endless) return { mistakes: [endless] }
  const tree = withPublicUpstreams(withEnvironment(own, environment), parsed)
  const { tree: filled, missing } = substitute(tree, environment)
  const withSections = (value: unknown) => (isMapping(value) ? { ...value, ...parsed } : value)
  const { config, mistakes } = checked(schema, withSections(filled), withSections(tree))
  const found = config ? rules.flatMap((rule) => rule(config)) : mistakes
  const others = found.filter((mistake) => !missing.some(({ path }) => isAbout(mistake, path)))
  return { ...(config && { config }), mistakes: [...missing, ...others] }
}

/** True for this path, an ancestor or a descendant. */
const isAbout = (mistake: Complaint, place: Path): boolean =>
  typeof mistake === 'object' &&
  'path' in mistake &&
  mistake.path.every((part, at) => at >= place.length || part === place[at])

/** `said`: the input before secrets were substituted, for error messages. */
function checked(schema: typeof configSchema, input: unknown, given: unknown): Parse {
  const result = schema.safeParse(input, { error: knownKeys, reportInput: false })
  if (!result.success) return { mistakes: complaints(result.error.issues, given) }
  const config = { ...result.data, data: resolve(result.data.data) } as Config
  return { config: freeze(madeFrom(config, input)), mistakes: [] }
}

/** The input of a configuration with everything substituted, for `configOf` in another process. */
export const inputOf = (config: Config): unknown => Reflect.get(config, source)

/** Recreates the configuration from `inputOf` of another process. */
export const configOf = (input: unknown): Config => valid(checked(configSchema, input, input))

/** True for a result of parseConfig, false for a copy. */
export const isConfig = (value: object): value is Config => Object.hasOwn(value, source)

/** The key of the hidden input of a configuration or section, which is not copied with it. */
const source = Symbol('source')

function madeFrom<Made extends object>(config: Made, input: unknown): Made {
  const sections = Object.entries(config).map(([key, section]) => {
    if (typeof section !== 'object' || section === null) return [key, section]
    // Copied, because a default may be the same object in every configuration.
    const own = Array.isArray(section) ? [...section] : { ...section }
    return [key, hide(own, isMapping(input) ? input[key] : undefined)]
  })
  return hide(Object.fromEntries(sections) as Made, input)
}

const hide = <T extends object>(value: T, made: unknown): T => Object.defineProperty(value, source, { value: made })

/** Replaces parsed sections by their input, which is not substituted again. */
function withoutParsed(given: unknown): { readonly tree: unknown; readonly parsed: Readonly<Record<string, unknown>> } {
  if (!isMapping(given)) return { tree: given, parsed: {} }
  const tree: Record<string, unknown> = {}
  const parsed: Record<string, unknown> = {}
  for (const [key, value] of Object.entries(given)) {
    const isParsed = typeof value === 'object' && value !== null && Object.hasOwn(value, source)
    if (!isParsed) tree[key] = value
    else if (Reflect.get(value, source) !== undefined) parsed[key] = Reflect.get(value, source)
  }
  return { tree, parsed }
}

const isMapping = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

const fromOutside = [
  { key: ['listen'], name: 'CIDGATE_LISTEN', read: (text: string) => text },
  { key: ['admin'], name: 'CIDGATE_ADMIN', read: (text: string) => (text === 'false' ? false : text) },
  { key: ['data'], name: 'CIDGATE_DATA', read: (text: string) => text },
  {
    key: ['upload', 'auth'],
    name: 'CIDGATE_UPLOAD_AUTH',
    read: (text: string) => (text === 'none' || text === 'open' ? text : { tokens: text.split(',') }),
  },
] as const

/** Environment variables override the file. */
function withEnvironment(tree: unknown, environment: Environment): unknown {
  return fromOutside.reduce((found, { key, name, read }) => {
    const value = environment[name]
    return value ? placed(found, key, read(value)) : found
  }, tree)
}

function placed(tree: unknown, [key, ...below]: readonly string[], value: unknown): unknown {
  if (key === undefined) return value
  if (tree !== undefined && !isMapping(tree)) return tree
  return { ...tree, [key]: placed(tree?.[key], below, value) }
}

/** Public gateways change, so they are data in a file, not part of the program. */
function withPublicUpstreams(tree: unknown, parsed: Readonly<Record<string, unknown>>): unknown {
  if (!isMapping(tree) || parsed.retrieval !== undefined) return tree
  const retrieval = tree.retrieval === undefined ? {} : tree.retrieval
  if (!isMapping(retrieval) || retrieval.upstreams !== undefined) return tree
  const { upstreams, routers } = publicList()
  return { ...tree, retrieval: { routers, ...retrieval, upstreams } }
}

type PublicList = { readonly reviewed: string; readonly upstreams: unknown; readonly routers: unknown }

const publicList = (): PublicList => readYaml(shipped('config/upstreams.yaml')).tree as PublicList

const maxReviewDays = 90

/** Notes if the configuration uses the default upstreams and their review is old. */
export function notesOnPublicList(file: string | undefined, now: number): string[] {
  if (valueAt(readYaml(configFile(file)).tree, ['retrieval', 'upstreams']) !== undefined) return []
  const { reviewed } = publicList()
  const days = Math.floor((now - Date.parse(reviewed)) / 86_400_000)
  if (days <= maxReviewDays) return []
  return [
    `the public upstreams of config/upstreams.yaml were reviewed ${days} days ago (${reviewed}); update cidgate, or name your own in retrieval.upstreams`,
  ]
}

function freeze<T>(value: T): T {
  if (!Array.isArray(value) && !isPlain(value)) return value
  for (const inner of Object.values(value)) freeze(inner)
  return Object.freeze(value)
}

const isPlain = (value: unknown): value is object =>
  isMapping(value) && Object.getPrototypeOf(value) === Object.prototype

const maxLevels = 64
const maxValues = 100_000

/**
 * The first key whose subtree is too large. A mapping may contain itself, and thirty lists of a few
 * aliases of the previous list expand to more values than there is time for.
 */
function tooMuch(tree: unknown): Complaint | undefined {
  if (typeof tree !== 'object' || tree === null) return undefined
  let left = maxValues

  function isTooDeep(value: unknown, levels: number): boolean {
    if (--left < 0 || typeof value !== 'object' || value === null) return false
    return levels === 0 || Object.values(value).some((inner) => isTooDeep(inner, levels - 1))
  }

  for (const [key, value] of Object.entries(tree)) {
    const path = [Array.isArray(tree) ? Number(key) : key]
    if (isTooDeep(value, maxLevels))
      return { path, what: `is nested too deeply (expected at most ${maxLevels} levels)` }
    if (left < 0) return { path, what: `has too many values (expected at most ${maxValues} in all)` }
  }
  return undefined
}
