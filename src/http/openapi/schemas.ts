// Named schemas for `components`. Documents of uploads are the schemas that POST /add?schema=
// validates with, including the operator's, so that the description always matches the validation.
import { builtIn } from '../../schemas/checks.ts'
import type { JsonSchema } from '../../schemas/documents.ts'
import { problemSchema } from './problems.ts'
import type { Json } from './words.ts'

export type PublishedDocument = { readonly title: string; readonly schema: JsonSchema }

/**
 * Built-in schemas under their titles, `EvidenceFile`; the operator's under their `?schema=` names.
 */
export const documentsOf = (schemas: Readonly<Record<string, JsonSchema>>): PublishedDocument[] =>
  Object.entries(schemas).map(([name, schema]) => ({
    title: schema === builtIn[name] ? String(schema['title']) : name,
    schema,
  }))

export const examplesOf = ({ title, schema }: PublishedDocument): [string, Json][] =>
  (Array.isArray(schema['examples']) ? schema['examples'] : []).map((value: unknown, index) => [
    index === 0 ? title : `${title}${index + 1}`,
    { value },
  ])

export const schemasWith = (documents: readonly PublishedDocument[]): Json => ({
  Added: added,
  Problem: problemSchema,
  Listing: listing,
  ...Object.fromEntries(documents.map(({ title, schema }) => [title, schema])),
})

const added: Json = {
  type: 'object',
  required: ['cids'],
  properties: {
    cids: { type: 'array', minItems: 1, items: { type: 'string', pattern: '^/ipfs/[0-9A-Za-z]+$' } },
  },
}

const listing: Json = {
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
