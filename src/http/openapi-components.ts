// What several operations share, for `components`: parameters, headers, and how a client shows who it is.
import { formats } from './negotiate.ts'
import { type Json, text } from './openapi-words.ts'

/** `schemas`: the names for `?schema=`. */
export const parametersWith = (schemas: readonly string[]): Json => ({
  schema: {
    name: 'schema',
    in: 'query',
    description:
      'Checks the content against this schema first: 400 names each wrong field, and nothing is kept. Without it nothing is checked.',
    schema: { type: 'string', enum: schemas },
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
})

export const headers: Json = {
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
}

export const securitySchemes: Json = {
  bearer: { type: 'http', scheme: 'bearer' },
  token: { type: 'apiKey', in: 'header', name: 'X-Auth-Token' },
}
