// The public surface in words that programs read (OpenAPI 3.1), put together.
import type { JsonSchema } from '../upload/schemas/documents.ts'
import { addOperation } from './openapi-add.ts'
import { headers, parametersWith, securitySchemes } from './openapi-components.ts'
import { problemResponses } from './openapi-problems.ts'
import { readPaths } from './openapi-read.ts'
import { documentsOf, schemasWith } from './openapi-schemas.ts'
import { headersOf, type Json } from './openapi-words.ts'

/** Of the interface, not of the program: it changes when a client would have to. */
export const apiVersion = '1.0.0'

export function openApiDocument(options: {
  /** What uploads can be checked as, by the name for `?schema=`, those of the operator included. */
  readonly schemas: Readonly<Record<string, JsonSchema>>
  readonly hasTokens: boolean
}): Json {
  const documents = documentsOf(options.schemas)
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
      '/add': { post: addOperation(documents, options.hasTokens) },
      ...readPaths(documents),
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
      schemas: schemasWith(documents),
      responses: problemResponses,
      parameters: parametersWith(Object.keys(options.schemas)),
      headers,
      securitySchemes,
    },
  }
}
