// The options of POST /add. Parameters that are not known are ignored; a known one with a value that is not is refused,
// because the client would be told another CID than the one it wanted.
import { malformed } from '../../upload/failures.ts'
import type { UploadKind } from '../../upload/intake/incoming.ts'

export type AddQuery = {
  readonly kind: UploadKind
  /** The name of the schema that each file is checked against. */
  readonly schema: string | undefined
}

export function readAddQuery(
  query: URLSearchParams,
  known: { readonly schemas: readonly string[]; readonly kinds: readonly UploadKind[] },
): AddQuery {
  const kind: UploadKind = isOn(query, 'wrap') ? 'directory' : 'files'
  if (!known.kinds.includes(kind))
    throw malformed('wrap=true is not supported in thin mode: this gateway passes files on, one by one')
  const schema = query.get('schema') ?? undefined
  if (schema === undefined) return { kind, schema }
  if (!known.schemas.includes(schema))
    throw malformed(`unknown schema ${JSON.stringify(schema)}; known are ${known.schemas.join(', ')}`)
  if (kind !== 'files') throw malformed('a schema is for documents, and not for a directory: leave out wrap or schema')
  return { kind, schema }
}

function isOn(query: URLSearchParams, name: string): boolean {
  const values = new Set(query.getAll(name))
  if (values.size > 1) throw malformed(`${name} is given twice, with different values`)
  const [value = 'false'] = values
  if (['', 'true', '1'].includes(value)) return true
  if (['false', '0'].includes(value)) return false
  throw malformed(`${name}=${value} is not true or false`)
}
