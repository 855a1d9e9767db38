// The paths of the OpenAPI document: reads, uploads and Kubo's RPC.
import {
  aCid,
  addStatuses,
  aName,
  anyStatuses,
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

type KuboCommand = {
  readonly summary: string
  /** The description of `arg`; undefined if the command takes none. */
  readonly arg?: string
  readonly options?: readonly (readonly [name: string, type: 'boolean' | 'integer' | 'string', description: string])[]
  readonly takesFiles?: boolean
  readonly type: string
  readonly schema: Json
}

const binaryBody: Json = { type: 'string', format: 'binary' }
const path = 'A CID or `/ipfs/<cid>[/<path>]`.'
const cid = 'A CID.'

const commands: Readonly<Record<string, KuboCommand>> = {
  add: {
    summary: 'Adds files; each part of the body is one',
    options: [
      ['cid-version', 'integer', '0 or 1.'],
      ['raw-leaves', 'boolean', 'By default with version 1.'],
      ['chunker', 'string', '`size-N`.'],
      ['max-file-links', 'integer', 'Links of a node.'],
      ['only-hash', 'boolean', 'Tells the CID and keeps nothing.'],
      ['pin-name', 'string', 'How the pins are called in lists.'],
    ],
    takesFiles: true,
    type: 'application/json',
    schema: {
      description: 'One line for each file.',
      type: 'object',
      required: ['Name', 'Hash', 'Size'],
      properties: { Name: { type: 'string' }, Hash: { type: 'string' }, Size: { type: 'string' } },
    },
  },
  cat: {
    summary: 'The bytes of a file',
    arg: path,
    options: [
      ['offset', 'integer', 'From this byte on.'],
      ['length', 'integer', 'So many bytes.'],
    ],
    type: 'text/plain',
    schema: binaryBody,
  },
  'block/put': {
    summary: 'Keeps blocks; each part of the body is one',
    options: [
      ['cid-codec', 'string', '`raw`, `dag-pb`, `dag-cbor`, `dag-json`, `cbor` or `json`.'],
      ['mhtype', 'string', '`sha2-256`, `sha2-512`, `blake2b-256` or `blake3`.'],
    ],
    takesFiles: true,
    type: 'application/json',
    schema: {
      description: 'One line for each block.',
      type: 'object',
      required: ['Key', 'Size'],
      properties: { Key: { type: 'string' }, Size: { type: 'integer' } },
    },
  },
  'dag/import': {
    summary: 'Keeps the roots of CARs; each part of the body is a CAR',
    options: [
      ['pin-roots', 'boolean', 'By default on: says each root. All are kept in any case.'],
      ['stats', 'boolean', 'Says how many blocks there were.'],
    ],
    takesFiles: true,
    type: 'application/json',
    schema: { description: 'One line for each root, and one for `stats`.', type: 'object' },
  },
  get: {
    summary: 'A file or a directory, as a tar',
    arg: path,
    options: [
      ['archive', 'boolean', 'A tar in any case: matters with `compress`.'],
      ['compress', 'boolean', 'With gzip; without `archive` a file alone.'],
      ['compression-level', 'integer', '1 to 9.'],
    ],
    type: 'application/x-tar',
    schema: binaryBody,
  },
  ls: {
    summary: 'The links of directories and files',
    arg: path,
    options: [
      ['resolve-type', 'boolean', 'By default on, as `size`: looks at what each link leads to.'],
      ['size', 'boolean', 'By default on.'],
      ['stream', 'boolean', 'A line for each link, and not one object.'],
    ],
    type: 'application/json',
    schema: { type: 'object', properties: { Objects: { type: 'array', items: { type: 'object' } } } },
  },
  'block/get': { summary: 'A block', arg: cid, type: 'application/vnd.ipld.raw', schema: binaryBody },
  'dag/export': { summary: 'A DAG as a CAR', arg: cid, type: 'application/vnd.ipld.car', schema: binaryBody },
  'pin/add': {
    summary: 'Finds a DAG and gives it to the providers',
    arg: cid,
    options: [['name', 'string', 'How the pin is called in lists.']],
    type: 'application/json',
    schema: { type: 'object', properties: { Pins: { type: 'array', items: { type: 'string' } } } },
  },
  'pin/ls': {
    summary: 'What was uploaded or pinned; of one CID, with `arg`',
    options: [
      ['arg', 'string', cid],
      ['type', 'string', '`all`, `recursive`, `direct` or `indirect`.'],
      ['name', 'string', 'Those whose name has this in it.'],
      ['names', 'boolean', 'Says the name of each.'],
      ['stream', 'boolean', 'A line for each, and not one object.'],
    ],
    type: 'application/json',
    schema: { type: 'object' },
  },
  'pin/rm': {
    summary: 'Deletes a pin at every provider; for a token that may delete',
    arg: cid,
    type: 'application/json',
    schema: { type: 'object', properties: { Pins: { type: 'array', items: { type: 'string' } } } },
  },
  version: { summary: 'The version of this gateway', type: 'application/json', schema: { type: 'object' } },
}

const problem = { 'application/json': { schema: ref('schemas', 'KuboError') } } as const
const refused = { 'text/plain': { schema: { type: 'string' } } } as const

const statuses: Json = {
  ...failures(anyStatuses),
  400: { description: 'A malformed request, or an option that is not supported.', content: problem },
  403: {
    description:
      'No token, where tokens are wanted, or none that may delete; or a page in a browser (`Origin`, `Referer`).',
    content: refused,
  },
  404: { description: 'No such command.', content: refused },
  405: { description: 'Commands are sent with POST.', content: refused },
  410: { description: 'A denylist of this gateway names it.', content: problem },
  413: { description: 'More bytes than `upload.maxBytes`.', content: problem },
  451: { description: 'As 410, for a legal reason.', content: problem },
  500: { description: 'It failed: not found, not held by enough providers, or upstreams failed.', content: problem },
  503: { description: 'Overloaded; retry later.', content: problem },
}

const operation = (name: string, command: KuboCommand, hasTokens: boolean): Json => ({
  tags: ['kubo'],
  summary: command.summary,
  operationId: `kubo${name.replaceAll(/(?:^|\/)(.)/g, (_all, first: string) => first.toUpperCase())}`,
  ...(hasTokens && { security: [{ bearer: [] }, { token: [] }] }),
  parameters: [
    ...(command.arg === undefined
      ? []
      : [
          {
            name: 'arg',
            in: 'query',
            required: true,
            description: command.arg,
            schema: { type: 'string' },
            example: aCid,
          },
        ]),
    ...(command.options ?? []).map(([option, type, description]) => ({
      name: option,
      in: 'query',
      description,
      schema: { type },
    })),
  ],
  ...(command.takesFiles && {
    requestBody: {
      required: true,
      content: { 'multipart/form-data': { schema: { type: 'object', properties: { file: binaryBody } } } },
    },
  }),
  responses: {
    200: { description: 'As Kubo answers it.', content: { [command.type]: { schema: command.schema } } },
    ...statuses,
  },
})

export const kuboPaths = (hasTokens: boolean): Json =>
  Object.fromEntries(
    Object.entries(commands).map(([name, command]) => [
      `/api/v0/${name}`,
      { post: operation(name, command, hasTokens) },
    ]),
  )

export const kuboComponents: Json = {
  KuboError: {
    type: 'object',
    required: ['Message', 'Code', 'Type'],
    properties: { Message: { type: 'string' }, Code: { type: 'integer' }, Type: { const: 'error' } },
  },
}
