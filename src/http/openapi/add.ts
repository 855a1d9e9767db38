// The OpenAPI description of adding files.
import { addStatuses, failures } from './problems.ts'
import { examplesOf, type PublishedDocument } from './schemas.ts'
import { aCid, headersOf, type Json, ref } from './words.ts'

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
  summary: 'Adds files and answers their CIDs once enough providers hold them',
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
