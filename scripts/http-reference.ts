// Prints docs/http.md from the OpenAPI description (`npm run schema`).
import { openApiDocument } from '../src/http/openapi/document.ts'
import { builtIn } from '../src/schemas/checks.ts'

type Named = {
  readonly name: string
  readonly in: string
  readonly description?: string
  readonly schema?: { readonly enum?: readonly string[] }
}
type Ref = { readonly $ref: string }
type Operation = {
  readonly summary: string
  readonly parameters?: readonly (Named | Ref)[]
  readonly responses: object
}
type Path = { readonly parameters?: readonly (Named | Ref)[] } & { readonly [method: string]: Operation }
type Described = Readonly<Record<string, { readonly description: string }>>
type Document = {
  readonly paths: Readonly<Record<string, Path>>
  readonly components: {
    readonly parameters: Readonly<Record<string, Named>>
    readonly responses: Described
    readonly headers: Described
  }
}

const methods = ['get', 'head', 'post'] as const

export function httpReference(): string {
  const document = openApiDocument({ schemas: builtIn, hasTokens: true, mode: 'api', base: '' })
  const { paths, components } = document as unknown as Document
  const routes = Object.entries(paths).flatMap(([path, item]) => {
    const names = methods.filter((method) => item[method])
    const { summary } = item[names[0] as string] as Operation
    return row(
      `\`${names.join(', ').toUpperCase()} ${path}\``,
      summary,
      parametersOf(item, names, components.parameters).join(' '),
    )
  })
  // `ipns` has one more format.
  const { format: _, ...shown } = components.parameters
  const parameters = Object.values(shown).map((one) =>
    row(`\`${one.name}\``, one.in, `${one.description ?? ''}${valuesOf(one)}`),
  )
  const headers = Object.entries(components.headers).map(([name, { description }]) => row(`\`${name}\``, description))
  const statuses = Object.entries(components.responses).map(([name, { description }]) =>
    row(name.replace('Problem', ''), description),
  )
  return [
    opening,
    table(['route', 'does', 'parameters'], routes),
    '## Parameters and request headers\n',
    table(['name', 'in', 'means'], parameters),
    '## Response headers\n',
    table(['header', 'value'], headers),
    '## Errors\n',
    errors,
    table(['status', 'means'], statuses),
  ].join('\n')
}

const opening = `# HTTP API

Generated from the description at \`/openapi.json\`, which browsers see as a page (\`npm run schema\`).
The guides: [uploads](uploads.md), [websites](websites.md), [Kubo's RPC](uploads.md#kubos-rpc), [admin address](monitoring.md).
`

const errors = `An error is \`application/problem+json\` (RFC 9457) with \`title\`, \`detail\`, \`requestId\`, and \`attempts\` (upstreams), \`outcomes\`
(providers), \`errors\` (schema) or \`quota\` where they apply. With \`types: api\` unreachable and late upstreams are 404 as well.
`

function parametersOf(
  item: Path,
  names: readonly string[],
  parameters: Document['components']['parameters'],
): string[] {
  const all = [...(item.parameters ?? []), ...names.flatMap((name) => item[name]?.parameters ?? [])]
  const words = all.flatMap((one) => ('$ref' in one ? [one.$ref.split('/').at(-1) as string] : []))
  return [...new Set(words)].map((word) => `\`${parameters[word]?.name}\``)
}

const valuesOf = ({ schema }: Named): string =>
  schema?.enum ? ` ${schema.enum.map((value) => `\`${value}\``).join(', ')}.` : ''
const row = (...cells: readonly string[]): string =>
  `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`
const table = (titles: readonly string[], rows: readonly string[]): string =>
  `${[row(...titles), `|${'---|'.repeat(titles.length)}`, ...rows].join('\n')}\n`

if (import.meta.main) process.stdout.write(httpReference())
