// The OpenAPI 3.1 description of the public routes; Kubo's RPC has a reference of its own.
import { builtIn } from '../../schemas/checks.ts'
import type { JsonSchema } from '../../schemas/documents.ts'
import { formatNames } from '../content/negotiate.ts'
import type { Mode } from '../wire/problem.ts'

export type Json = Readonly<Record<string, unknown>>

const ref = (kind: string, name: string): Json => ({ $ref: `#/components/${kind}/${name}` })
const string: Json = { type: 'string' }
const integer: Json = { type: 'integer' }
const text = (description: string): Json => ({ description, schema: string })
const list = (items: Json, more?: Json): Json => ({ type: 'array', ...more, items })
/** Default: all properties are required. */
const object = (properties: Json, required: readonly string[] = Object.keys(properties)): Json => ({
  type: 'object',
  required,
  properties,
})
/** Every response also has an id. */
const headersOf = (names: readonly string[]): Json =>
  Object.fromEntries([...names, 'X-Request-Id'].map((name) => [name, ref('headers', name)]))

/** For examples: the CID of a file with `hello world`. */
export const aCid = 'bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4'
export const aName = 'k51qzi5uqu5dgutdk6i1ynyzgkqngpha5xpgia3a5qqp4jsh0u4csozksxel2r'

type PublishedDocument = { readonly title: string; readonly schema: JsonSchema }

/**
 * Built-in schemas under their titles, `EvidenceFile`; the operator's under their `?schema=` names.
 */
const documentsOf = (schemas: Readonly<Record<string, JsonSchema>>): PublishedDocument[] =>
  Object.entries(schemas).map(([name, schema]) => ({
    title: schema === builtIn[name] ? String(schema['title']) : name,
    schema,
  }))

const examplesOf = ({ title, schema }: PublishedDocument): [string, Json][] =>
  (Array.isArray(schema['examples']) ? schema['examples'] : []).map((value: unknown, index) => [
    index === 0 ? title : `${title}${index + 1}`,
    { value },
  ])

const schemasWith = (documents: readonly PublishedDocument[]): Json => ({
  Added: added,
  Problem: problemSchema,
  Listing: listing,
  ...Object.fromEntries(documents.map(({ title, schema }) => [title, schema])),
})

const added = object({ cids: list({ ...string, pattern: '^/ipfs/[0-9A-Za-z]+$' }, { minItems: 1 }) })

const listing: Json = {
  title: 'Listing',
  description: 'A directory.',
  ...object({
    cid: string,
    path: string,
    entries: list(object({ name: string, cid: string, size: { type: ['integer', 'null'] }, type: string })),
  }),
}

/** The meaning of each error status for the client. */
const meanings: Readonly<Record<number, string>> = {
  400: 'The request is malformed; `errors` names fields that do not match the schema.',
  401: 'A token is required: `Authorization: Bearer …`.',
  403: 'Uploads without a token are for clients on the same machine; pages of other origins are refused.',
  404: 'No upstream has the content, sent it in time or could be reached: retry after `Retry-After`. Or no such path.',
  405: 'Method not allowed; `Allow` lists the allowed ones.',
  406: 'The content is not available in this format.',
  408: 'The headers were late, or the upload stalled or was too slow.',
  410: 'A denylist of this gateway names it.',
  412: '`only-if-cached`, and no tier has it; or `If-Match` names another ETag.',
  413: 'More than `upload.maxBytes`, or a directory or document above the limits of this gateway.',
  416: 'The range begins after the end; `Content-Range` names the size.',
  417: 'The only `Expect` that is supported is `100-continue`.',
  422: 'The content matches its CID but is malformed.',
  429: 'Rate limit of the client, or quota of the token; `quota` has the remaining amount.',
  431: 'The request line and headers are too long.',
  451: 'As 410, for a legal reason.',
  500: 'Internal error of this gateway.',
  501: 'A path into a document that continues after a value.',
  502: 'Upstreams or providers failed; `attempts` or `outcomes` lists each. The upload was not accepted.',
  503: 'Overloaded; retry after `Retry-After`.',
  504: 'No upstream answered in time (`responses.types: web` only).',
  505: 'Not HTTP/1.',
  507: 'The disk is full.',
  508: 'A forwarding loop: the upload came back.',
}

const failures = (statuses: readonly number[]): Json =>
  Object.fromEntries(statuses.map((status) => [String(status), ref('responses', `Problem${status}`)]))

/** Statuses that any route may send. */
export const anyStatuses = [400, 405, 408, 413, 417, 429, 431, 500, 503, 505] as const
export const readStatuses = [...anyStatuses, 404, 406, 410, 412, 416, 422, 451, 501, 502, 504] as const
export const addStatuses = [...anyStatuses, 401, 403, 410, 451, 502, 507, 508] as const

const retried: ReadonlySet<number> = new Set([404, 429, 502, 503, 504])

/** In `web` mode a client gets a page or text, depending on Accept. */
const asText: Json = { 'text/html': { schema: string }, 'text/plain': { schema: string } }

function problemResponse(status: number, mode: Mode): Json {
  const headers = {
    'Access-Control-Allow-Origin': ref('headers', 'Access-Control-Allow-Origin'),
    'Cache-Control': ref('headers', 'Cache-Control'),
    'X-Request-Id': ref('headers', 'X-Request-Id'),
    ...(retried.has(status) && { 'Retry-After': ref('headers', 'Retry-After') }),
    ...(status === 401 && { 'WWW-Authenticate': text('`Bearer`.') }),
    ...(status === 405 && { Allow: text('The allowed methods.') }),
    ...(status === 416 && { 'Content-Range': ref('headers', 'Content-Range') }),
  }
  return {
    description: meanings[status],
    headers,
    content: {
      'application/problem+json': { schema: ref('schemas', 'Problem') },
      ...(mode === 'web' && asText),
    },
  }
}

const problemResponses = (mode: Mode): Json =>
  Object.fromEntries(Object.keys(meanings).map((status) => [`Problem${status}`, problemResponse(Number(status), mode)]))

const rest = object({ limit: integer, remaining: integer })

const outcome = (who: string): Json => {
  const properties = {
    [who]: string,
    outcome: string,
    detail: string,
    ms: { type: 'number', minimum: 0 },
    bytes: { ...integer, minimum: 1 },
  }
  return list(object(properties, [who, 'outcome']))
}

const problemSchema: Json = {
  title: 'Problem',
  description: 'What went wrong (RFC 9457).',
  ...object(
    {
      type: { ...string, pattern: '^urn:problem-type:cidgate:' },
      title: string,
      status: { ...integer, minimum: 400, maximum: 599 },
      detail: string,
      message: { ...string, description: 'The same text as `detail`.' },
      requestId: { ...string, description: 'The value of `X-Request-Id`, also in the log.' },
      traceId: {
        ...string,
        description:
          'Trace id of the `traceparent` of the client (W3C Trace Context), or of a trace that the gateway records.',
      },
      attempts: {
        ...outcome('upstream'),
        description: 'The upstreams that were asked for the content, and what each answered.',
      },
      outcomes: {
        ...outcome('provider'),
        description: 'The providers that were asked to keep the upload, and what each answered.',
      },
      quota: {
        description: 'The daily quota of the token (UTC), and what remains.',
        ...object({ token: string, uploads: rest, bytes: rest }, ['token']),
      },
      errors: {
        description: 'The fields that do not match the schema.',
        ...list(object({ field: string, message: string })),
      },
    },
    ['type', 'title', 'status', 'detail', 'message'],
  ),
}

const parameter = (at: 'path' | 'query' | 'header', name: string, description: string, schema = string): Json => ({
  name,
  in: at,
  description,
  schema,
})
const query = (name: string, description: string, schema?: Json): Json => parameter('query', name, description, schema)
const header = (name: string, description: string): Json => parameter('header', name, description)
const oneOf = (...values: readonly string[]): Json => ({ type: 'string', enum: values })
const flag: Json = { type: 'boolean', default: false }
const format = (...values: readonly string[]): Json =>
  query('format', 'The response format; overrides `Accept`.', oneOf(...values))

/** `schemas`: the valid values of `?schema=`. */
const parametersWith = (schemas: readonly string[]): Json => ({
  schema: query(
    'schema',
    'Validate the content first; 400 names each wrong field, and nothing is stored.',
    oneOf(...schemas),
  ),
  name: query('name', 'The name of the pins, here and at the providers; at most 255 bytes of UTF-8.', {
    ...string,
    maxLength: 255,
  }),
  wrap: query(
    'wrap',
    'File names are relative paths, and all files become one directory, whose CID is the last. Without it file names are ignored.',
    flag,
  ),
  onlyHash: query(
    'only-hash',
    'Compute the CIDs only: nothing is stored, no provider is asked, no quota is used.',
    flag,
  ),
  addFormat: query(
    'format',
    '`car`: each `data` is a CAR (version 1), whose blocks are stored unchanged. Roots must be complete: 400 names missing blocks. Unreachable blocks are dropped.',
    oneOf('car'),
  ),
  format: format(...[...formatNames].filter((name) => name !== 'ipns-record')),
  nameFormat: format(...formatNames),
  'dag-scope': query(
    'dag-scope',
    'Extent of a CAR: the last block of the path, the file or directory itself, or everything below it.',
    oneOf('block', 'entity', 'all'),
  ),
  'entity-bytes': query('entity-bytes', 'Byte range of the file in a CAR: `0:1048575`, `-1024:*`.'),
  'car-version': query('car-version', 'The version of the CAR.', oneOf('1')),
  'car-order': query('car-order', 'The order of the blocks of a CAR.', oneOf('dfs', 'unk')),
  'car-dups': query('car-dups', 'Whether a CAR repeats blocks that occur twice.', oneOf('y', 'n')),
  filename: query('filename', 'File name in `Content-Disposition`.'),
  download: query('download', '`Content-Disposition: attachment`.', { type: 'boolean' }),
  Range: header('Range', '`bytes=0-99`, `bytes=100-`, `bytes=-100`.'),
  'If-Match': header('If-Match', '412 unless the content has one of these ETags.'),
  'If-None-Match': header('If-None-Match', 'ETags of the copies that the client has.'),
  'If-Range': header('If-Range', 'Serve the range only if this is the ETag; otherwise everything.'),
  'Cache-Control': header(
    'Cache-Control',
    '`only-if-cached`: 412 for content that is not here. `no-cache`: skip the negative cache.',
  ),
  uri: { ...query('uri', '`ipfs://<cid>[/<path>]` or `ipns://<name>[/<path>]`.'), required: true },
})

const headers: Json = {
  'Accept-Ranges': text('`bytes`, or `none` for generated responses.'),
  'Access-Control-Allow-Origin': text('`*`, also on errors.'),
  'Cache-Control': text('`immutable` for CIDs; on errors `no-store`, or the time for which they are cached.'),
  'Cache-Status': text('The source of the response (RFC 9211): `cidgate; hit; detail=memory`.'),
  'Content-Encoding': text('`br`, `zstd` or `gzip`, if compressed.'),
  'Content-Range': text('The range served, and the size.'),
  ETag: text('`"<cid>"`, with a suffix for each format and coding.'),
  Location: text('The target of the redirect.'),
  'Retry-After': { description: 'Seconds to wait.', schema: { ...integer, minimum: 1 } },
  Vary: text('The request headers that select the response.'),
  'X-Content-Type-Options': text('`nosniff`.'),
  'X-Ipfs-Path': text('The requested path.'),
  'X-Ipfs-Roots': text('The CIDs along the path.'),
  'X-Request-Id': text('The id of this request, also in the log.'),
}

const securitySchemes: Json = {
  bearer: { type: 'http', scheme: 'bearer' },
  token: { type: 'apiKey', in: 'header', name: 'X-Auth-Token' },
}

const contentHeaders: readonly string[] = [
  'Accept-Ranges',
  'Access-Control-Allow-Origin',
  'Cache-Control',
  'Cache-Status',
  'Content-Encoding',
  'ETag',
  'Vary',
  'X-Content-Type-Options',
  'X-Ipfs-Path',
  'X-Ipfs-Roots',
]
const bytes = { schema: { type: 'string', format: 'binary' } } as const

type Namespace = 'ipfs' | 'ipns'

const moved = (description: string): Json => ({
  description,
  headers: headersOf(['Location', 'Access-Control-Allow-Origin']),
})

function readAnswers(namespace: Namespace, documents: readonly PublishedDocument[]): Json {
  const content = {
    'application/json': { schema: {}, examples: Object.fromEntries(documents.flatMap(examplesOf)) },
    'application/octet-stream': bytes,
    'application/vnd.ipld.raw': bytes,
    'application/vnd.ipld.car': bytes,
    'application/vnd.ipld.dag-json': { schema: {} },
    'application/vnd.ipld.dag-cbor': bytes,
    'application/cbor': bytes,
    'application/x-tar': bytes,
    ...(namespace === 'ipns' && { 'application/vnd.ipfs.ipns-record': bytes }),
  }
  return {
    200: {
      description:
        'A file that is JSON as `application/json`, any other as `application/octet-stream`, both the stored bytes; a directory as a JSON listing; the form that `format` or `Accept` names.',
      headers: headersOf(contentHeaders),
      content,
    },
    206: {
      description: 'The requested range.',
      headers: headersOf(['Content-Range', ...contentHeaders.filter((name) => name !== 'Content-Encoding')]),
      content: { '*/*': bytes },
    },
    301: moved('Redirect to the canonical address.'),
    ...(namespace === 'ipns' && { 302: moved('The same name in another spelling (`responses.types: web` only).') }),
    304: {
      description: 'The copy of the client is current.',
      headers: headersOf(['Cache-Control', 'ETag', 'Vary', 'X-Ipfs-Path']),
    },
    ...failures(readStatuses),
  }
}

const pathParameter = (name: string, description: string, example: string, schema?: Json): Json => ({
  ...parameter('path', name, description, schema),
  required: true,
  example,
})
const root: Json = { ...string, minLength: 2 }
const roots: Readonly<Record<Namespace, Json>> = {
  ipfs: pathParameter('hash', 'CID version 0 or 1, in any multibase.', aCid, root),
  ipns: pathParameter('name', 'A key, in any multibase or as a peer ID, or a domain with a DNSLink.', aName, root),
}
const below = pathParameter('path', 'A path below it, with plain slashes: an encoded slash is refused.', 'readme.md')
const common = [
  'filename',
  'download',
  'dag-scope',
  'entity-bytes',
  'car-version',
  'car-order',
  'car-dups',
  'Range',
  'If-Range',
  'If-Match',
  'If-None-Match',
  'Cache-Control',
] as const

function readPaths(documents: readonly PublishedDocument[]): Json {
  const readsAt = (namespace: Namespace, summary: string, id: string, own: readonly Json[]): Json => ({
    parameters: [
      ...own,
      ...[namespace === 'ipfs' ? 'format' : 'nameFormat', ...common].map((name) => ref('parameters', name)),
    ],
    ...reads('content', summary, id, readAnswers(namespace, documents)),
  })
  const { ipfs, ipns } = roots
  return {
    '/ipfs/{hash}': readsAt('ipfs', 'Read a file, directory or DAG by CID', 'IpfsContent', [ipfs]),
    '/ipfs/{hash}/{path}': readsAt('ipfs', 'Read a path below a CID', 'IpfsContentAt', [ipfs, below]),
    '/ipns/{name}': readsAt('ipns', 'Read what an IPNS or DNSLink name points at', 'IpnsContent', [ipns]),
    '/ipns/{name}/{path}': readsAt('ipns', 'Read a path below a name', 'IpnsContentAt', [ipns, below]),
    '/ipfs/': follows('Ipfs'),
    '/ipns/': follows('Ipns'),
  }
}

/** GET and HEAD of a path. */
const reads = (tag: string, summary: string, id: string, responses: Json): Json => ({
  get: { tags: [tag], summary, operationId: `get${id}`, responses },
  head: {
    ...{ tags: [tag], summary: `${summary} (headers only)`, operationId: `head${id}` },
    responses: Object.fromEntries(Object.entries(responses).map(([status, one]) => [status, withoutContent(one)])),
  },
})

const withoutContent = (response: unknown): Json =>
  Object.fromEntries(Object.entries(response as Json).filter(([name]) => name !== 'content'))

/** The path to which a browser sends `ipfs:` links if this gateway is registered for them. */
const follows = (id: string): Json => ({
  get: {
    tags: ['content'],
    summary: 'Redirect an ipfs:// or ipns:// link to its path',
    operationId: `follow${id}Uri`,
    parameters: [ref('parameters', 'uri')],
    responses: { 301: moved('The address of what the link names.'), ...failures(readStatuses) },
  },
})

const data = object({
  data: {
    description:
      'The content: a file, or a text field whose value is the content in UTF-8. Each part of this name gets a CID. Other parts are ignored.',
    // Both spellings: client generators read the first, OpenAPI 3.1 defines the second.
    format: 'binary',
    contentMediaType: 'application/octet-stream',
    ...string,
  },
})

const addOperation = (documents: readonly PublishedDocument[], hasTokens: boolean): Json => ({
  tags: ['uploads'],
  summary: 'Upload files; responds with their CIDs once enough providers hold them',
  operationId: 'uploadToIpfs',
  ...(hasTokens && { security: [{ bearer: [] }, { token: [] }] }),
  parameters: ['name', 'wrap', 'addFormat', 'schema', 'onlyHash'].map((name) => ref('parameters', name)),
  requestBody: {
    required: true,
    content: {
      'multipart/form-data': {
        schema: data,
        examples: Object.fromEntries(
          documents.flatMap(examplesOf).map(([name, { value }]) => [name, { value: { data: JSON.stringify(value) } }]),
        ),
      },
    },
  },
  responses: {
    200: {
      description:
        'Held by `minConfirmations` providers and readable here: one CID for each `data`, in order, then with `wrap` that of the directory; for CARs each root.',
      headers: headersOf(['Access-Control-Allow-Origin', 'Cache-Control', 'X-Content-Type-Options']),
      content: {
        'application/json': {
          schema: ref('schemas', 'Added'),
          examples: { one: { value: { cids: [`/ipfs/${aCid}`] } } },
        },
      },
    },
    ...failures(addStatuses),
  },
})

/** The version of the interface, not of the program: it changes when clients have to. */
export const apiVersion = '1.0.0'

export function openApiDocument(options: {
  /** Schemas for uploads by their `?schema=` name, including the operator's. */
  readonly schemas: Readonly<Record<string, JsonSchema>>
  readonly hasTokens: boolean
  readonly mode: Mode
  /** The mount path. */
  readonly base: string
}): Json {
  const documents = documentsOf(options.schemas)
  return {
    openapi: '3.1.0',
    jsonSchemaDialect: 'https://json-schema.org/draft/2020-12/schema',
    info: {
      title: 'cidgate',
      version: apiVersion,
      summary: 'An IPFS gateway: verified reads, confirmed uploads.',
      license: { name: 'Apache-2.0 OR MIT', identifier: 'Apache-2.0 OR MIT' },
    },
    servers: [{ url: options.base === '' ? '/' : options.base }],
    tags: [
      { name: 'content', description: 'Reading. Every byte is verified against its CID before it is sent.' },
      { name: 'uploads', description: 'Uploading.' },
      { name: 'meta', description: 'This description.' },
    ],
    paths: {
      '/add': { post: addOperation(documents, options.hasTokens) },
      ...readPaths(documents),
      '/openapi.json': reads('meta', 'This description', 'Description', descriptionAnswers),
    },
    components: {
      schemas: schemasWith(documents),
      responses: problemResponses(options.mode),
      parameters: parametersWith(Object.keys(options.schemas)),
      headers,
      securitySchemes,
    },
  }
}

const descriptionAnswers: Json = {
  200: {
    description: 'OpenAPI 3.1.',
    headers: headersOf(['ETag', 'Cache-Control']),
    content: { 'application/json': { schema: { type: 'object' } } },
  },
  304: { description: 'The copy of the client is current.', headers: headersOf(['ETag', 'Cache-Control']) },
  ...failures(anyStatuses),
}
