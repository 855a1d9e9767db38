// The options of POST /add. Unknown parameters are ignored; an invalid value of a known one is
// refused, because the client would get another CID than it wanted.
import { malformed } from '../../upload/failures.ts'
import type { UploadKind } from '../../upload/intake/incoming.ts'

export type AddQuery = {
  readonly kind: UploadKind
  /** The name of the schema that each file is validated against. */
  readonly schema: string | undefined
  /** Computes the CIDs without storing anything. */
  readonly isOnlyHashed: boolean
  /** Of the pins. */
  readonly name: string | undefined
}

/** As long as the Pinning Service API takes it. */
const maxNameChars = 255

/** The name of a pin; throws for one that no list can show. */
export function pinName(given: string | null | undefined): string | undefined {
  const name = given ?? ''
  if (name.length > maxNameChars) throw malformed(`name is longer than ${maxNameChars} characters`)
  if (/\p{Cc}/u.test(name) || !name.isWellFormed()) throw malformed('name has characters that cannot be shown')
  return name === '' ? undefined : name
}

export function readAddQuery(
  query: URLSearchParams,
  known: { readonly schemas: readonly string[]; readonly kinds: readonly UploadKind[] },
): AddQuery {
  const kind = kindOf(query)
  if (!known.kinds.includes(kind))
    throw malformed(
      'format=car is not supported in thin mode: this gateway passes on files and folders; bring the CAR to the service itself',
    )
  const schema = query.get('schema') ?? undefined
  const isOnlyHashed = isOn(query, 'only-hash')
  const name = pinName(query.get('name'))
  if (schema === undefined) return { kind, schema, isOnlyHashed, name }
  if (!known.schemas.includes(schema))
    throw malformed(`unknown schema ${JSON.stringify(schema)}; known are ${known.schemas.join(', ')}`)
  if (kind !== 'files') throw malformed('a schema is for documents: leave out schema, or wrap and format')
  return { kind, schema, isOnlyHashed, name }
}

function kindOf(query: URLSearchParams): UploadKind {
  const isWrapped = isOn(query, 'wrap')
  const [format, ...more] = query.getAll('format')
  if (format === undefined) return isWrapped ? 'directory' : 'files'
  if (more.length > 0) throw malformed('format is given twice')
  if (format !== 'car') throw malformed(`format=${format} is not supported: it is car, or left out for files`)
  if (isWrapped) throw malformed('wrap is for files, and a CAR has its directories in itself: leave out wrap or format')
  return 'cars'
}

function isOn(query: URLSearchParams, name: string): boolean {
  const values = new Set(query.getAll(name))
  if (values.size > 1) throw malformed(`${name} is given twice, with different values`)
  const [value = 'false'] = values
  if (['', 'true', '1'].includes(value)) return true
  if (['false', '0'].includes(value)) return false
  throw malformed(`${name}=${value} is not true or false`)
}
