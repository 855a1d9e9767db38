// From a YAML file, the environment and the defaults to one frozen Config, or to a ConfigError that says everything that
// is wrong. Nothing is touched but the files named in it; whether addresses and stores answer is found out later.
import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { LineCounter, parseDocument } from 'yaml'
import { ConfigError, complaints, knownKeys } from './complaints.ts'
import { shipped } from './package.ts'
import { type Config, configSchema } from './schema.ts'
import { codeOf, type Environment, substitute } from './substitute.ts'

export type { Config } from './schema.ts'

/** Without a file: `CIDGATE_CONFIG`, or else the default that is shipped. */
export function loadConfig(file: string | undefined, environment: Environment = process.env): Config {
  const named = file ?? (environment.CIDGATE_CONFIG || undefined)
  return parseConfig(readYaml(named ?? shipped('config/default.yaml')), environment)
}

/** For those who have the configuration as an object: what the YAML file would say, `5s` and `10MiB` included. */
export function parseConfig(said: unknown, environment: Environment = {}): Config {
  const tree = withPublicUpstreams(withEnvironment(said ?? {}, environment))
  const filled = substitute(tree, environment)
  if (filled.complaints.length > 0) throw new ConfigError(filled.complaints)
  const result = configSchema.safeParse(filled.tree, { error: knownKeys, reportInput: false })
  if (!result.success) throw new ConfigError(complaints(result.error.issues, tree))
  return freeze({ ...result.data, data: resolve(result.data.data) })
}

export function readYaml(file: string | URL): unknown {
  const lines = new LineCounter()
  const document = parseDocument(readText(file), { lineCounter: lines, prettyErrors: false })
  const wrong = [...document.errors, ...document.warnings].map(({ message, pos: [at] }) => ({
    message,
    ...lines.linePos(at),
  }))
  // One mistake often leaves several complaints on its line: the first is the one to mend.
  const firsts = wrong.filter(({ line }, index) => wrong.findIndex((other) => other.line === line) === index)
  if (firsts.length > 0) {
    throw new ConfigError(
      firsts.map(
        ({ line, col, message }) => `line ${line}, column ${col}: ${message.replaceAll('\n', ' ')} (expected YAML)`,
      ),
    )
  }
  try {
    const tree: unknown = document.toJS()
    // A mapping that holds itself by an alias could be walked for ever.
    JSON.stringify(tree)
    return tree
  } catch (error) {
    throw new ConfigError([
      `the file: ${error instanceof Error ? error.message.split('\n')[0] : 'unknown reason'} (expected plain YAML)`,
    ])
  }
}

function readText(file: string | URL): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    throw new ConfigError([`${file}: cannot be read: ${codeOf(error)} (expected a file)`])
  }
}

const isMapping = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** What a container sets from outside wins over the file. */
function withEnvironment(tree: unknown, environment: Environment): unknown {
  const { CIDGATE_LISTEN: listen, CIDGATE_ADMIN: admin, CIDGATE_DATA: data } = environment
  const outside = {
    ...(listen && { listen }),
    ...(admin && { admin: admin === 'false' ? false : admin }),
    ...(data && { data }),
  }
  return isMapping(tree) ? { ...tree, ...outside } : tree
}

/** Public gateways come and go: they are data, in a file of their own, and not part of the program. */
function withPublicUpstreams(tree: unknown): unknown {
  if (!isMapping(tree)) return tree
  const retrieval = tree.retrieval === undefined ? {} : tree.retrieval
  if (!isMapping(retrieval) || retrieval.upstreams !== undefined) return tree
  return { ...tree, retrieval: { ...retrieval, upstreams: readYaml(shipped('config/upstreams.yaml')) } }
}

function freeze<T>(value: T): T {
  if (!Array.isArray(value) && !isPlain(value)) return value
  for (const inner of Object.values(value)) freeze(inner)
  return Object.freeze(value)
}

const isPlain = (value: unknown): value is object =>
  isMapping(value) && Object.getPrototypeOf(value) === Object.prototype
