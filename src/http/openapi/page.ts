// The description as an HTML page: the representation of /openapi.json for browsers. Made from the
// same document, so that both agree.

import { LRUCache } from 'lru-cache'
import { hashTag } from '../../core/wire/http.ts'
import type { JsonSchema } from '../../schemas/documents.ts'
import { escaped, pageEnd, pagePolicy, pageTop } from '../../web/page.ts'
import { matches, qualityOf } from '../content/negotiate.ts'
import { type Route, readRoute } from '../route.ts'
import type { Mode, Respond } from '../wire/problem.ts'
import { baseOf, type RequestContext } from '../wire/request.ts'
import type { Document } from '../wire/write.ts'
import { aCid, aName, type Json, openApiDocument } from './document.ts'

type Part = { readonly [name: string]: unknown }

/** In the order of the document. HEAD is listed once. */
const methods = ['get', 'post', 'put', 'delete'] as const

function openApiPage(document: Json): string {
  const info = partOf(document['info'])
  const [server] = listOf(document['servers']).map(partOf)
  const base = wordOf(server?.['url']).replace(/\/$/, '')
  const operations = Object.entries(partOf(document['paths'])).flatMap(([path, item]) =>
    methods.flatMap((method) => {
      const operation = partOf(item)[method]
      return operation === undefined ? [] : [{ path, method, operation: partOf(operation), item: partOf(item) }]
    }),
  )
  return [
    pageTop(`${wordOf(info['title'])}: the API`),
    `<h1>The API of this gateway</h1>
<p>${words(info['summary'])} Every path answers HEAD where it answers GET. The examples are for a shell in which <code>GATEWAY</code> is the address of this gateway, such as <code>http://127.0.0.1:8080</code>.</p>
<p class="dim"><a href="?format=json">View as JSON (OpenAPI ${escaped(wordOf(document['openapi']))})</a></p>
`,
    ...operations.map((one) => section({ ...one, path: base + one.path, document })),
    `<footer>Version ${escaped(wordOf(info['version']))} of the interface</footer>\n`,
    pageEnd,
  ].join('')
}

type Described = {
  readonly path: string
  readonly method: string
  readonly operation: Part
  readonly item: Part
  readonly document: Json
}

function section({ path, method, operation, item, document }: Described): string {
  const resolved = (one: unknown): Part => target(document, one)
  const parameters = [...listOf(item['parameters']), ...listOf(operation['parameters'])].map(resolved)
  const sent = partOf(partOf(resolved(operation['requestBody'])['content'])['multipart/form-data'])
  const fields = Object.entries(partOf(resolved(sent['schema'])['properties']))
  const answers = Object.entries(partOf(operation['responses']))
  const isOpen = operation['security'] === undefined
  // A link to a folded section opens it.
  return `<details class="fold"><summary><h2><span class="method ${method}">${method.toUpperCase()}</span><code>${escaped(path)}</code> <span>${words(operation['summary'])}</span></h2></summary>
<pre id="${anchorOf(`${method} ${path}`)}">${escaped(exampleOf({ method, path, parameters, isUpload: fields.length > 0, needsToken: !isOpen }))}</pre>
${isOpen ? '' : '<p>Needs a token: <code>Authorization: Bearer …</code> or <code>X-Auth-Token</code>.</p>\n'}${definitions(
  'It takes',
  [
    ...parameters.map((one) => [`${wordOf(one['name'])} (${wordOf(one['in'])})`, described(one)] as const),
    ...fields.map(([field, one]) => [`${field} (a part of the form)`, described(partOf(one))] as const),
  ],
)}${definitions(
  'It answers',
  answers.map(([status, one]) => [status, described(resolved(one))] as const),
)}</details>
`
}

type Example = {
  readonly method: string
  readonly path: string
  readonly parameters: readonly Part[]
  readonly isUpload: boolean
  readonly needsToken: boolean
}

/** Sample values of path parameters and required parameters. */
const samples: Readonly<Record<string, string>> = {
  hash: aCid,
  path: 'readme.txt',
  name: aName,
  uri: `ipfs://${aCid}`,
}

/** A command to paste into a shell. */
function exampleOf({ method, path, parameters, isUpload, needsToken }: Example): string {
  const filled = path.replaceAll(/\{(\w+)\}/g, (_all, name: string) => samples[name] ?? name)
  const wanted = parameters.filter((one) => one['in'] === 'query' && one['required'] === true)
  const query = wanted.map((one) => `${wordOf(one['name'])}=${samples[wordOf(one['name'])] ?? '…'}`).join('&')
  return [
    'curl',
    ...(method === 'get' || isUpload ? [] : ['-X', method.toUpperCase()]),
    ...(needsToken ? ['-H "Authorization: Bearer $TOKEN"'] : []),
    ...(isUpload ? ['-F data=@file.json'] : []),
    `"$GATEWAY${filled}${query === '' ? '' : `?${query}`}"`,
  ].join(' ')
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

export function createOpenApiRoute(options: {
  readonly schemas: Readonly<Record<string, JsonSchema>>
  readonly hasTokens: boolean
  readonly mode: Mode
  readonly respond: Respond
}): Route {
  const made = new LRUCache<string, Made>({ max: maxMade })
  const madeFor = (base: string): Made => {
    const known = made.get(base) ?? make(openApiDocument({ ...options, base }))
    made.set(base, known)
    return known
  }
  const read = ({ request, target }: RequestContext): Document => {
    const { accept, 'if-none-match': ifNoneMatch } = request.headers
    const asPage =
      target.query.get('format') !== 'json' && qualityOf(accept, 'text/html') > qualityOf(accept, 'application/json')
    const { body, etag, type } = madeFor(baseOf(request))[asPage ? 'page' : 'json']
    const headers = { Vary: 'Accept', 'Cache-Control': 'public, max-age=3600', ETag: etag }
    if (matches(ifNoneMatch, etag)) return { status: 304, headers }
    const policy = asPage ? { 'Content-Security-Policy': pagePolicy } : {}
    return { body, headers: { ...headers, ...policy, 'Content-Type': type } }
  }
  return readRoute({ name: 'openapi', at: /^\/openapi\.json$/, read, respond: options.respond })
}

type MadeDescription = { readonly body: Buffer; readonly etag: string; readonly type: string }
type Made = { readonly json: MadeDescription; readonly page: MadeDescription }

// An application that mounts the router with a pattern has as many mount paths as clients try.
const maxMade = 8

const make = (document: Json): Made => ({
  json: describedBy(`${JSON.stringify(document)}\n`, 'application/json'),
  page: describedBy(openApiPage(document), 'text/html; charset=utf-8'),
})

function describedBy(text: string, type: string): MadeDescription {
  const body = Buffer.from(text)
  return { body, type, etag: hashTag(body) }
}
