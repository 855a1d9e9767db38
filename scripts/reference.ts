// Prints docs/configuration.md from the schema of the configuration (`npm run schema`).
import type { z } from 'zod'
import { jsonSchema } from './json-schema.ts'

type Part = z.core.JSONSchema.BaseSchema

const opening = `# Every option

Generated from the schema that \`cidgate check FILE\` uses (\`npm run schema\`). The guides say which options belong
together: [README](../README.md#documentation).

Durations: \`250ms\`, \`5s\`, \`1h\`, \`1d\`. Sizes: \`64KiB\`, \`100MiB\`, \`10GiB\`. \`\${NAME}\` takes a value from the environment,
\`\${file:/run/secrets/name}\` from a file.
`

export function reference(): string {
  const { properties = {} } = JSON.parse(jsonSchema()) as Part
  const simple = Object.entries(properties).filter(([, part]) => !isDeep(part as Part))
  const deep = Object.entries(properties).filter(([, part]) => isDeep(part as Part))
  const sections = [
    opening,
    table(simple.flatMap(([key, part]) => rows(key, part as Part))),
    ...deep.flatMap(([key, part]) => section(key, part as Part)),
  ]
  return `${sections.join('\n').trimEnd()}\n`
}

function section(key: string, part: Part): string[] {
  const lists = kindsBelow(key, part)
  const own = table(rows(key, part).slice(1))
  return [`## \`${key}\`\n\n${part.description ?? ''}\n`, own, ...lists.flatMap(([path, list]) => kinds(path, list))]
}

/** Lists of backends: each kind has options of its own. */
function kindsBelow(path: string, part: Part): [path: string, list: Part][] {
  if (oneOf(part)) return [[path, part]]
  return Object.entries(part.properties ?? {}).flatMap(([key, inner]) => kindsBelow(`${path}.${key}`, inner as Part))
}

function kinds(path: string, list: Part): string[] {
  return (oneOf(list) ?? []).map((kind) => {
    const { use, name: _, ...options } = (kind.properties ?? {}) as Record<string, Part>
    const isRequired = (key: string) => kind.required?.includes(key) === true
    const lines = Object.entries(options).map(([key, part]) => row(key, part, isRequired(key)))
    return `### \`${path}\`, \`use: ${use?.const}\`\n\n${table(lines) || 'No options.\n'}`
  })
}

function rows(path: string, part: Part): string[] {
  const required = new Set(part.required)
  const below = (inner: Part | undefined, at: string): string[] =>
    Object.entries(inner?.properties ?? {}).flatMap(([key, one]) =>
      rows(`${at}.${key}`, one as Part).with(0, row(`${at}.${key}`, one as Part, required.has(key))),
    )
  const items = oneOf(part) ? undefined : (part.items as Part | undefined)
  const named = part.additionalProperties as Part | undefined
  return [row(path, part), ...below(part, path), ...below(items, `${path}[]`), ...below(named, `${path}.<name>`)]
}

function row(path: string, part: Part, isRequired = false): string {
  const usual = JSON.stringify(part.default)
  const fallback = usual === undefined || usual === '{}' ? '' : `\`${usual.replaceAll('"', '')}\``
  const description = (part.description ?? '').replaceAll('<', '\\<')
  const cells = [`\`${path}\``, shape(part), isRequired ? 'required' : fallback, description]
  return `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`
}

function shape(part: Part): string {
  if (part.const !== undefined) return `\`${part.const}\``
  if (part.enum) return part.enum.map((one) => `\`${one}\``).join(', ')
  if (part.title) return part.title.replace(/^an? /, '')
  if (part.anyOf) return [...new Set(part.anyOf.map((one) => shape(one as Part)))].join(' or ')
  if (part.type === 'array')
    return oneOf(part) ? 'list, see below' : `list of ${part.items ? shape(part.items as Part) : 'any'}`
  if (part.type === 'object' && part.properties)
    return Object.keys(part.properties).length > 0 ? `\`{ ${Object.keys(part.properties).join(', ')} }\`` : 'mapping'
  return { boolean: 'boolean', integer: 'integer', number: 'number', object: 'mapping' }[String(part.type)] ?? 'string'
}

const oneOf = (part: Part): Part[] | undefined => (part.items as Part | undefined)?.oneOf as Part[] | undefined

const isDeep = (part: Part): boolean =>
  part.type === 'object' || (part.items as Part | undefined)?.properties !== undefined || oneOf(part) !== undefined

const table = (lines: readonly string[]): string =>
  lines.length === 0 ? '' : `| option | takes | by default | |\n|---|---|---|---|\n${lines.join('\n')}\n`

if (process.argv[1] === import.meta.filename) process.stdout.write(reference())
