// The public surface in words that programs read (OpenAPI 3.1). The documents of the first users are the very schemas that
// POST /add?schema= checks with, so that what is published and what is checked cannot part.
import { builtIn } from '../upload/schemas/checks.ts'
import type { JsonSchema } from '../upload/schemas/documents.ts'
import { formats } from './negotiate.ts'
import {
  addStatuses,
  failures,
  type Json,
  problemResponses,
  problemSchema,
  readStatuses,
  ref,
  text,
} from './openapi-problems.ts'

/** Of the interface, not of the program: it changes when a client would have to. */
export const apiVersion = '1.0.0'

const aCid = 'bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4'

/** `EvidenceFile` and the name by which it is asked for, `evidence`. */
const documents = Object.entries(builtIn).map(([name, schema]) => ({ name, title: String(schema['title']), schema }))

const examplesOf = ({ title, schema }: { readonly title: string; readonly schema: JsonSchema }): [string, Json][] =>
  ((schema['examples'] ?? []) as unknown[]).map((value, index) => [
    index === 0 ? title : `${title}${index + 1}`,
    { value },
  ])

const contentHeaders = [
  'Accept-Ranges',
  'Access-Control-Allow-Origin',
  'Cache-Control',
  'Cache-Status',
  'ETag',
  'X-Content-Type-Options',
  'X-Ipfs-Path',
  'X-Ipfs-Roots',
]
const headersOf = (names: readonly string[]): Json =>
  Object.fromEntries(names.map((name) => [name, ref('headers', name)]))

const bytes = { schema: { type: 'string', format: 'binary' } }

function readAnswers(isHead: boolean): Json {
  const content = {
    'application/json': { schema: {}, examples: Object.fromEntries(documents.flatMap(examplesOf)) },
    'application/octet-stream': bytes,
    'application/vnd.ipld.raw': bytes,
    'application/vnd.ipld.car': bytes,
    'application/vnd.ipld.dag-json': { schema: {} },
    'application/vnd.ipld.dag-cbor': bytes,
    'application/cbor': bytes,
    'application/x-tar': bytes,
    'application/vnd.ipfs.ipns-record': bytes,
  }
  const part = ['Content-Range', ...contentHeaders]
  return {
    200: {
      description:
        'A file that is JSON as `application/json`, any other as `application/octet-stream`, both the stored bytes; a directory as a JSON listing; the form that `format` or `Accept` names.',
      headers: headersOf(contentHeaders),
      ...(!isHead && { content }),
    },
    206: {
      description: 'The part that was asked for.',
      headers: headersOf(part),
      ...(!isHead && { content: { '*/*': bytes } }),
    },
    301: { description: 'The same, by its right address.', headers: { Location: text('Where it is.') } },
    304: {
      description: 'The copy of the client is the one there is.',
      headers: headersOf(['Cache-Control', 'ETag', 'X-Ipfs-Path']),
    },
    ...failures(readStatuses),
  }
}

const cidParameter: Json = {
  name: 'cid',
  in: 'path',
  required: true,
  description: 'CID version 0 or 1, in any multibase.',
  schema: { type: 'string', minLength: 2 },
  example: aCid,
}
const pathParameter: Json = {
  name: 'path',
  in: 'path',
  required: true,
  description: 'A path below it; it may hold slashes.',
  schema: { type: 'string' },
  example: 'docs/readme.md',
}
const readParameters = ['format', 'filename', 'download', 'Range', 'If-None-Match'].map((name) =>
  ref('parameters', name),
)

const readsAt = (summary: string, id: string, own: readonly Json[]): Json => ({
  parameters: [...own, ...readParameters],
  get: { tags: ['content'], summary, operationId: `get${id}`, responses: readAnswers(false) },
  head: {
    tags: ['content'],
    summary: `${summary} (headers only)`,
    operationId: `head${id}`,
    responses: readAnswers(true),
  },
})

export function openApiDocument(options: {
  /** Names for `?schema=`, those of the operator included. */
  readonly schemas: readonly string[]
  readonly hasTokens: boolean
}): Json {
  const data = {
    type: 'object',
    required: ['data'],
    properties: {
      data: {
        description:
          'The content: a file, or a text field whose value is the content in UTF-8. Several parts of this name give several CIDs. Other parts are ignored.',
        type: 'string',
      },
    },
  }
  return {
    openapi: '3.1.0',
    jsonSchemaDialect: 'https://json-schema.org/draft/2020-12/schema',
    info: {
      title: 'cidgate',
      version: apiVersion,
      summary: 'Content-addressed files: proved when read, confirmed when added.',
      license: { name: 'Apache-2.0 OR MIT', identifier: 'Apache-2.0 OR MIT' },
    },
    servers: [{ url: '/' }],
    tags: [
      { name: 'content', description: 'Reading. Every byte is proved against its CID before it is sent.' },
      { name: 'uploads', description: 'Adding.' },
      { name: 'meta', description: 'This description.' },
    ],
    paths: {
      '/add': {
        post: {
          tags: ['uploads'],
          summary: 'Adds files and answers their CIDs once enough providers hold them',
          operationId: 'add',
          ...(options.hasTokens && { security: [{ bearer: [] }, { token: [] }] }),
          parameters: [ref('parameters', 'schema')],
          requestBody: {
            required: true,
            content: {
              'multipart/form-data': {
                schema: data,
                examples: Object.fromEntries(
                  documents
                    .flatMap(examplesOf)
                    .map(([name, { value }]) => [name, { value: { data: JSON.stringify(value) } }]),
                ),
              },
            },
          },
          responses: {
            200: {
              description:
                'Held by as many providers as were wanted, and readable here: one CID for each `data`, in order.',
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
        },
      },
      '/ipfs/{cid}': readsAt('What a CID names', 'Content', [cidParameter]),
      '/ipfs/{cid}/{path}': readsAt('What a path below a CID leads to', 'ContentAt', [cidParameter, pathParameter]),
      '/openapi.json': {
        get: {
          tags: ['meta'],
          summary: 'This description',
          operationId: 'getDescription',
          responses: {
            200: {
              description: 'OpenAPI 3.1.',
              headers: headersOf(['ETag', 'Cache-Control']),
              content: { 'application/json': { schema: { type: 'object' } } },
            },
            304: {
              description: 'The copy of the client is the one there is.',
              headers: headersOf(['ETag', 'Cache-Control']),
            },
          },
        },
      },
    },
    components: {
      schemas: {
        Added: {
          type: 'object',
          required: ['cids'],
          properties: {
            cids: { type: 'array', minItems: 1, items: { type: 'string', pattern: '^/ipfs/[0-9A-Za-z]+$' } },
          },
        },
        Problem: problemSchema,
        Listing: listingSchema,
        ...Object.fromEntries(documents.map(({ title, schema }) => [title, schema])),
      },
      responses: problemResponses,
      parameters: {
        schema: {
          name: 'schema',
          in: 'query',
          description:
            'Checks the content against this schema first: 400 names each wrong field, and nothing is kept. Without it nothing is checked.',
          schema: { type: 'string', enum: options.schemas },
        },
        format: {
          name: 'format',
          in: 'query',
          description: 'The form of the answer; wins over `Accept`.',
          schema: { type: 'string', enum: [...formats] },
        },
        filename: { name: 'filename', in: 'query', ...text('The name it is saved under.') },
        download: {
          name: 'download',
          in: 'query',
          description: 'To be saved, not shown.',
          schema: { type: 'boolean' },
        },
        Range: { name: 'Range', in: 'header', ...text('A part: `bytes=0-99`, `bytes=100-`, `bytes=-100`.') },
        'If-None-Match': { name: 'If-None-Match', in: 'header', ...text('The ETag of a copy that the client has.') },
      },
      headers: {
        'Accept-Ranges': text('`bytes`, or `none` where it is made as it is sent.'),
        'Access-Control-Allow-Origin': text('`*`: on every answer, errors included.'),
        'Cache-Control': text('`immutable` where a CID names it; `no-store` or as long as it is remembered on errors.'),
        'Cache-Status': text('Where it came from (RFC 9211): `cidgate; hit; detail=memory`.'),
        'Content-Range': text('Which part of how much.'),
        ETag: text('`"<cid>"`, another one for each form.'),
        'Retry-After': { description: 'Seconds.', schema: { type: 'integer', minimum: 1 } },
        'X-Content-Type-Options': text('`nosniff`.'),
        'X-Ipfs-Path': text('What was asked for.'),
        'X-Ipfs-Roots': text('The CIDs along the path.'),
      },
      securitySchemes: {
        bearer: { type: 'http', scheme: 'bearer' },
        token: { type: 'apiKey', in: 'header', name: 'X-Auth-Token' },
      },
    },
  }
}

const listingSchema: Json = {
  title: 'Listing',
  description: 'A directory.',
  type: 'object',
  required: ['cid', 'path', 'entries'],
  properties: {
    cid: { type: 'string' },
    path: { type: 'string' },
    entries: {
      type: 'array',
      items: {
        type: 'object',
        required: ['name', 'cid', 'size', 'type'],
        properties: {
          name: { type: 'string' },
          cid: { type: 'string' },
          size: { type: ['integer', 'null'] },
          type: { type: 'string' },
        },
      },
    },
  },
}
