// The OpenAPI 3.1 description of the public routes.
import type { JsonSchema } from '../../schemas/documents.ts'
import type { Mode } from '../wire/problem.ts'
import {
  anyStatuses,
  documentsOf,
  failures,
  headers,
  headersOf,
  type Json,
  parametersWith,
  problemResponses,
  schemasWith,
  securitySchemes,
} from './components.ts'
import { addOperation, readPaths } from './paths.ts'

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
      '/openapi.json': { get: description(false), head: description(true) },
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

const description = (isHead: boolean): Json => ({
  tags: ['meta'],
  summary: `This description${isHead ? ' (headers only)' : ''}`,
  operationId: isHead ? 'headDescription' : 'getDescription',
  responses: {
    200: {
      description: 'OpenAPI 3.1.',
      headers: headersOf(['ETag', 'Cache-Control']),
      ...(!isHead && { content: { 'application/json': { schema: { type: 'object' } } } }),
    },
    304: { description: 'The copy of the client is current.', headers: headersOf(['ETag', 'Cache-Control']) },
    ...failures(anyStatuses),
  },
})
