// Reads a YAML file as plain values with their positions.
import { readFileSync } from 'node:fs'
import {
  type Document,
  isCollection,
  isMap,
  isNode,
  isPair,
  isScalar,
  LineCounter,
  parseDocument,
  type YAMLError,
} from 'yaml'
import { codeOf } from '../core/disk/files.ts'
import { plainValues } from '../core/plain-yaml.ts'
import { ConfigError, type Path, type PositionOf } from './complaints.ts'

export type Read = { readonly tree: unknown; readonly positionOf: PositionOf }

/** Throws a ConfigError for a missing file or invalid YAML. */
export function readYaml(file: string | URL): Read {
  const lines = new LineCounter()
  const document = parseDocument(readText(file), { lineCounter: lines, prettyErrors: false })
  const wrong = [...document.errors, ...document.warnings].map((error) => ({
    message: wordsOf(error),
    ...lines.linePos(error.pos[0]),
  }))
  // One mistake often causes several errors on its line: only the first is shown.
  const firsts = wrong.filter(({ line }, index) => wrong.findIndex((other) => other.line === line) === index)
  if (firsts.length > 0) {
    throw new ConfigError(
      firsts.map(({ line, col, message }) => ({
        position: `${file}:${line}:${col}`,
        what: `line ${line}, column ${col}: ${message} (expected YAML)`,
      })),
    )
  }
  const positionOf: PositionOf = (path) => {
    const at = offsetOf(document, path)
    if (at === undefined) return undefined
    const { line, col } = lines.linePos(at)
    return `${file}:${line}:${col}`
  }
  return { tree: plain(document), positionOf }
}

/** Omits the content of the file, which may be an unquoted secret. */
function wordsOf({ code, message }: YAMLError): string {
  if (code === 'BAD_ALIAS' || code === 'TAG_RESOLVE_FAILED') return 'a text that begins with * or ! must be quoted'
  return message.replaceAll('\n', ' ').replace(/: .*$/, '')
}

function plain(document: Document): unknown {
  try {
    return plainValues(document)
  } catch (error) {
    throw new ConfigError([
      `the file: ${error instanceof Error ? error.message.split(/\n|: /)[0] : 'unknown reason'} (expected plain YAML)`,
    ])
  }
}

/** The offset of the key or item, or of its nearest ancestor in the file. */
function offsetOf({ contents }: Document, path: Path): number | undefined {
  let node: unknown = contents
  let at: number | undefined
  for (const step of path) {
    if (!isCollection(node)) return at
    const item: unknown = isMap(node)
      ? node.items.find(({ key }) => (isScalar(key) ? key.value : key) === step)
      : node.items[Number(step)]
    if (item === undefined) return at
    const [own, inner] = isPair(item) ? [item.key, item.value] : [item, item]
    at = isNode(own) ? (own.range?.[0] ?? at) : at
    node = inner
  }
  return at
}

function readText(file: string | URL): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    throw new ConfigError([`${file}: cannot be read: ${codeOf(error)} (expected a file)`])
  }
}
