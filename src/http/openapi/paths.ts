// The paths of the OpenAPI document: reads and uploads. Kubo's RPC has a reference of its own.
import {
  aCid,
  addStatuses,
  aName,
  examplesOf,
  failures,
  headersOf,
  type Json,
  type PublishedDocument,
  readStatuses,
  ref,
} from './components.ts'

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

function readAnswers(namespace: Namespace, documents: readonly PublishedDocument[], isHead: boolean): Json {
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
      ...(!isHead && { content }),
    },
    206: {
      description: 'The requested range.',
      headers: headersOf(['Content-Range', ...contentHeaders.filter((name) => name !== 'Content-Encoding')]),
      ...(!isHead && { content: { '*/*': bytes } }),
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

const roots: Readonly<Record<Namespace, Json>> = {
  ipfs: {
    name: 'hash',
    in: 'path',
    required: true,
    description: 'CID version 0 or 1, in any multibase.',
    schema: { type: 'string', minLength: 2 },
    example: aCid,
  },
  ipns: {
    name: 'name',
    in: 'path',
    required: true,
    description: 'A key, in any multibase or as a peer ID, or a domain with a DNSLink.',
    schema: { type: 'string', minLength: 2 },
    example: aName,
  },
}
const pathParameter: Json = {
  name: 'path',
  in: 'path',
  required: true,
  description: 'A path below it, with plain slashes: an encoded slash is refused.',
  schema: { type: 'string' },
  example: 'readme.md',
}
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
  'If-None-Match',
  'Cache-Control',
] as const

export function readPaths(documents: readonly PublishedDocument[]): Json {
  const readsAt = (namespace: Namespace, summary: string, id: string, own: readonly Json[]): Json => ({
    parameters: [
      ...own,
      ...[namespace === 'ipfs' ? 'format' : 'nameFormat', ...common].map((name) => ref('parameters', name)),
    ],
    get: { tags: ['content'], summary, operationId: `get${id}`, responses: readAnswers(namespace, documents, false) },
    head: {
      tags: ['content'],
      summary: `${summary} (headers only)`,
      operationId: `head${id}`,
      responses: readAnswers(namespace, documents, true),
    },
  })
  const { ipfs, ipns } = roots
  return {
    '/ipfs/{hash}': readsAt('ipfs', 'Read a file, directory or DAG by CID', 'IpfsContent', [ipfs]),
    '/ipfs/{hash}/{path}': readsAt('ipfs', 'Read a path below a CID', 'IpfsContentAt', [ipfs, pathParameter]),
    '/ipns/{name}': readsAt('ipns', 'Read what an IPNS or DNSLink name points at', 'IpnsContent', [ipns]),
    '/ipns/{name}/{path}': readsAt('ipns', 'Read a path below a name', 'IpnsContentAt', [ipns, pathParameter]),
    '/ipfs/': follows('Ipfs'),
    '/ipns/': follows('Ipns'),
  }
}

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

const data = {
  type: 'object',
  required: ['data'],
  properties: {
    data: {
      description:
        'The content: a file, or a text field whose value is the content in UTF-8. Several parts of this name give several CIDs. Other parts are ignored.',
      // Both spellings: client generators read the first, OpenAPI 3.1 defines the second.
      format: 'binary',
      contentMediaType: 'application/octet-stream',
      type: 'string',
    },
  },
} as const

export const addOperation = (documents: readonly PublishedDocument[], hasTokens: boolean): Json => ({
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
        'Held by as many providers as were wanted, and readable here: one CID for each `data`, in order, and with `wrap` that of the directory behind them; of CARs each root.',
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
