// How content is read, in the words of OpenAPI: the addresses under /ipfs, what they take and what they answer.
import { failures, readStatuses } from './openapi-problems.ts'
import { examplesOf, type PublishedDocument } from './openapi-schemas.ts'
import { aCid, headersOf, type Json, ref, text } from './openapi-words.ts'

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
const bytes = { schema: { type: 'string', format: 'binary' } }

function readAnswers(documents: readonly PublishedDocument[], isHead: boolean): Json {
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

export function readPaths(documents: readonly PublishedDocument[]): Json {
  const readsAt = (summary: string, id: string, own: readonly Json[]): Json => ({
    parameters: [...own, ...readParameters],
    get: { tags: ['content'], summary, operationId: `get${id}`, responses: readAnswers(documents, false) },
    head: {
      tags: ['content'],
      summary: `${summary} (headers only)`,
      operationId: `head${id}`,
      responses: readAnswers(documents, true),
    },
  })
  return {
    '/ipfs/{cid}': readsAt('What a CID names', 'Content', [cidParameter]),
    '/ipfs/{cid}/{path}': readsAt('What a path below a CID leads to', 'ContentAt', [cidParameter, pathParameter]),
  }
}
