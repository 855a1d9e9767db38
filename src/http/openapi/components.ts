// Shared `components`: parameters, headers and security schemes.
import { formats } from '../content/negotiate.ts'
import { type Json, text } from './words.ts'

/** `schemas`: the valid values of `?schema=`. */
export const parametersWith = (schemas: readonly string[]): Json => ({
  schema: {
    name: 'schema',
    in: 'query',
    description:
      'Checks the content against this schema first: 400 names each wrong field, and nothing is kept. Without it nothing is checked.',
    schema: { type: 'string', enum: schemas },
  },
  name: {
    name: 'name',
    in: 'query',
    description: 'How the uploads are called in lists of pins.',
    schema: { type: 'string', maxLength: 255 },
  },
  wrap: {
    name: 'wrap',
    in: 'query',
    description:
      'The file names are relative paths, and all files become one directory: its CID is the last. Without it file names mean nothing.',
    schema: { type: 'boolean', default: false },
  },
  onlyHash: {
    name: 'only-hash',
    in: 'query',
    description: 'Answers the CIDs alone: nothing is kept, no provider is asked, and no quota is used up.',
    schema: { type: 'boolean', default: false },
  },
  addFormat: {
    name: 'format',
    in: 'query',
    description:
      'With `car` each `data` is a CAR (version 1), whose blocks are kept as they are. Each of its roots has to be whole: 400 names what is missing. Blocks that no root leads to are dropped.',
    schema: { type: 'string', enum: ['car'] },
  },
  format: { ...format, schema: { type: 'string', enum: [...formats].filter((name) => name !== 'ipns-record') } },
  nameFormat: { ...format, schema: { type: 'string', enum: [...formats] } },
  'dag-scope': {
    name: 'dag-scope',
    in: 'query',
    description: 'How much goes into a CAR: the last block of the path, the file or listing it is, or all below it.',
    schema: { type: 'string', enum: ['block', 'entity', 'all'] },
  },
  'entity-bytes': {
    name: 'entity-bytes',
    in: 'query',
    ...text('Which bytes of a file go into a CAR: `0:1048575`, `-1024:*`.'),
  },
  'car-version': {
    name: 'car-version',
    in: 'query',
    description: 'The version of the CAR.',
    schema: { type: 'string', enum: ['1'] },
  },
  'car-order': {
    name: 'car-order',
    in: 'query',
    description: 'The order of the blocks of a CAR.',
    schema: { type: 'string', enum: ['dfs', 'unk'] },
  },
  'car-dups': {
    name: 'car-dups',
    in: 'query',
    description: 'Whether a block that occurs twice in a CAR is sent twice.',
    schema: { type: 'string', enum: ['y', 'n'] },
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
  'If-Range': {
    name: 'If-Range',
    in: 'header',
    ...text('A part only if this is still the ETag; otherwise the whole.'),
  },
  'Cache-Control': {
    name: 'Cache-Control',
    in: 'header',
    ...text(
      '`only-if-cached`: 412 for what is not here. `no-cache`: looked for, though it was not found a moment ago.',
    ),
  },
  uri: { name: 'uri', in: 'query', required: true, ...text('`ipfs://<cid>[/<path>]` or `ipns://<name>[/<path>]`.') },
})

const format: Json = { name: 'format', in: 'query', description: 'The form of the answer; wins over `Accept`.' }

export const headers: Json = {
  'Accept-Ranges': text('`bytes`, or `none` where it is made as it is sent.'),
  'Access-Control-Allow-Origin': text('`*`: on every answer, errors included.'),
  'Cache-Control': text('`immutable` where a CID names it; `no-store` or as long as it is remembered on errors.'),
  'Cache-Status': text('Where it came from (RFC 9211): `cidgate; hit; detail=memory`.'),
  'Content-Encoding': text('`br`, `zstd` or `gzip`, where it is compressed.'),
  'Content-Range': text('Which part of how much.'),
  ETag: text('`"<cid>"`, another one for each form and coding.'),
  Location: text('Where it is.'),
  'Retry-After': { description: 'Seconds.', schema: { type: 'integer', minimum: 1 } },
  Vary: text('The headers that may bring another answer from this address.'),
  'X-Content-Type-Options': text('`nosniff`.'),
  'X-Ipfs-Path': text('What was asked for.'),
  'X-Ipfs-Roots': text('The CIDs along the path.'),
  'X-Request-Id': text('Of this request; the log has it, too.'),
}

export const securitySchemes: Json = {
  bearer: { type: 'http', scheme: 'bearer' },
  token: { type: 'apiKey', in: 'header', name: 'X-Auth-Token' },
}
