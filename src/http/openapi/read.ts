// The OpenAPI description of reading content: the paths under /ipfs and /ipns, their parameters and
// responses.
import { failures, readStatuses } from './problems.ts'
import { examplesOf, type PublishedDocument } from './schemas.ts'
import { aCid, aName, headersOf, type Json, ref } from './words.ts'

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
      description: 'The part that was asked for.',
      headers: headersOf(['Content-Range', ...contentHeaders.filter((name) => name !== 'Content-Encoding')]),
      ...(!isHead && { content: { '*/*': bytes } }),
    },
    301: moved('The same, by its right address.'),
    ...(namespace === 'ipns' && { 302: moved('The same name in another spelling (`responses.types: web` only).') }),
    304: {
      description: 'The copy of the client is the one there is.',
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
  description:
    'A path below it. Its slashes are sent as they are: an encoded one would be part of a name, and is refused.',
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
    '/ipfs/{hash}': readsAt('ipfs', 'What a CID names', 'IpfsContent', [ipfs]),
    '/ipfs/{hash}/{path}': readsAt('ipfs', 'What a path below a CID leads to', 'IpfsContentAt', [ipfs, pathParameter]),
    '/ipns/{name}': readsAt('ipns', 'What a name points at now', 'IpnsContent', [ipns]),
    '/ipns/{name}/{path}': readsAt('ipns', 'What a path below a name leads to', 'IpnsContentAt', [ipns, pathParameter]),
    '/ipfs/': follows('Ipfs'),
    '/ipns/': follows('Ipns'),
  }
}

/** The path to which a browser sends `ipfs:` links if this gateway is registered for them. */
const follows = (id: string): Json => ({
  get: {
    tags: ['content'],
    summary: 'Leads from a link to its address here',
    operationId: `follow${id}Uri`,
    parameters: [ref('parameters', 'uri')],
    responses: { 301: moved('The address of what the link names.'), ...failures(readStatuses) },
  },
})
