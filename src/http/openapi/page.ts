// The description as an HTML page: the representation of /openapi.json for browsers. Made from the
// same document, so that both agree.
import { escaped, pageEnd, pageTop } from '../../web/page.ts'
import type { Json } from './words.ts'

type Part = { readonly [name: string]: unknown }

/** In the order of the document. HEAD is listed once. */
const methods = ['get', 'post', 'put', 'delete'] as const

export function openApiPage(document: Json): string {
  const info = partOf(document['info'])
  const [server] = listOf(document['servers']).map(partOf)
  const base = wordOf(server?.['url']).replace(/\/$/, '')
  const operations = Object.entries(partOf(document['paths'])).flatMap(([path, item]) =>
    methods.flatMap((method) => {
      const operation = partOf(item)[method]
      return operation === undefined ? [] : [{ path, method, operation: partOf(operation), item: partOf(item) }]
    }),
  )
  const names = operations.map(({ method, path }) => `${method.toUpperCase()} ${path}`)
  return [
    pageTop(`${wordOf(info['title'])}: the API`),
    `<h1>The API of this gateway</h1>
<p>${words(info['summary'])} Every path answers HEAD where it answers GET.</p>
<p class="dim"><a href="?format=json">View as JSON (OpenAPI ${escaped(wordOf(document['openapi']))})</a></p>
<ul>${names.map((name) => `<li><a href="#${anchorOf(name)}"><code>${escaped(name)}</code></a></li>`).join('')}</ul>
`,
    ...operations.map(({ path, method, operation, item }, at) =>
      section({ name: names[at] ?? '', path: base + path, method, operation, item, document }),
    ),
    `<footer>Version ${escaped(wordOf(info['version']))} of the interface</footer>\n`,
    pageEnd,
  ].join('')
}

type Described = {
  readonly name: string
  readonly path: string
  readonly method: string
  readonly operation: Part
  readonly item: Part
  readonly document: Json
}

function section({ name, path, method, operation, item, document }: Described): string {
  const resolved = (one: unknown): Part => target(document, one)
  const parameters = [...listOf(item['parameters']), ...listOf(operation['parameters'])].map(resolved)
  const sent = partOf(partOf(resolved(operation['requestBody'])['content'])['multipart/form-data'])
  const fields = Object.entries(partOf(resolved(sent['schema'])['properties']))
  const answers = Object.entries(partOf(operation['responses']))
  const isOpen = operation['security'] === undefined
  return `<h2 id="${anchorOf(name)}"><code>${escaped(method.toUpperCase())} ${escaped(path)}</code></h2>
<p>${words(operation['summary'])}.${isOpen ? '' : ' Needs a token: <code>Authorization: Bearer …</code> or <code>X-Auth-Token</code>.'}</p>
${definitions('It takes', [
  ...parameters.map((one) => [`${wordOf(one['name'])} (${wordOf(one['in'])})`, described(one)] as const),
  ...fields.map(([field, one]) => [`${field} (a part of the form)`, described(partOf(one))] as const),
])}${definitions(
  'It answers',
  answers.map(([status, one]) => [status, described(resolved(one))] as const),
)}`
}

/** Appends the allowed values to the description. */
function described(one: Part): string {
  const allowed = listOf(partOf(one['schema'])['enum']).map((word) => `<code>${escaped(wordOf(word))}</code>`)
  return words(one['description']) + (allowed.length > 0 ? ` One of ${allowed.join(', ')}.` : '')
}

const definitions = (title: string, rows: readonly (readonly [what: string, markup: string])[]): string =>
  rows.length === 0
    ? ''
    : `<p>${title}</p>\n<dl>${rows.map(([what, markup]) => `<dt><code>${escaped(what)}</code></dt><dd>${markup}</dd>`).join('\n')}</dl>\n`

/** Renders text between backticks as code. */
const words = (text: unknown): string => escaped(wordOf(text)).replaceAll(/`([^`]+)`/g, '<code>$1</code>')

const anchorOf = (name: string): string => encodeURIComponent(name.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-'))

function target(document: Json, one: unknown): Part {
  const { $ref } = partOf(one)
  if (typeof $ref !== 'string') return partOf(one)
  return $ref
    .slice('#/'.length)
    .split('/')
    .reduce<Part>((part, step) => partOf(part[step]), document)
}

const partOf = (value: unknown): Part => (typeof value === 'object' && value !== null ? (value as Part) : {})
const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : [])
const wordOf = (value: unknown): string => (typeof value === 'string' || typeof value === 'number' ? `${value}` : '')
