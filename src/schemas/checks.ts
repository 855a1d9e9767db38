// Documents are checked against a schema only where the client asks for it, and before anything is kept: what goes on-chain
// cannot be taken back.
import { Ajv2020, type ErrorObject } from 'ajv/dist/2020.js'
import { Failure } from '../core/failure.ts'
import { malformed } from '../upload/failures.ts'
import type { TextCheck } from '../upload/intake/document.ts'
import { hasMoreValues } from './count.ts'
import { disputeTemplate, evidence, formats, type JsonSchema, policy } from './documents.ts'

export interface SchemaChecks {
  readonly names: readonly string[]
  /** As they are checked with, by name. */
  readonly all: Readonly<Record<string, JsonSchema>>
  check(name: string): TextCheck
}

export type SchemaOptions = {
  /** The largest document that is looked at, if that is less than what is looked at in any case. */
  readonly maxBytes: number
  /** An operator's own, by name; one of the same name as a built-in one takes its place. */
  readonly own?: Readonly<Record<string, JsonSchema>>
}

export const builtIn: Readonly<Record<string, JsonSchema>> = { evidence, policy, 'dispute-template': disputeTemplate }

const idOf = (name: string): string => `urn:cidgate:schema:${name}`

const mostErrors = 50
const mostFieldChars = 200
// A check holds up everybody else while it runs. What it takes grows with the bytes and, for each wrong value an error, with
// the values: so many are checked in some milliseconds, and no document of this kind comes near.
const mostBytes = 1024 * 1024
const mostValues = 10_000

/** Throws where a schema of the operator's is none: at start, not at the first upload. */
export function createSchemaChecks({ maxBytes, own = {} }: SchemaOptions): SchemaChecks {
  // Formats that are not ours say nothing here, and Ajv would write a warning about each.
  const ajv = new Ajv2020({ allErrors: true, strict: false, logger: false })
  for (const [name, { validate }] of Object.entries(formats)) ajv.addFormat(name, validate)
  // An operator's own has an address, so that `#/$defs/…` in it means itself wherever it is published.
  const named = Object.entries(own).map(([name, schema]) => [name, { ...schema, $id: idOf(name) }] as const)
  const all: Record<string, JsonSchema> = { ...builtIn, ...Object.fromEntries(named) }
  // Those that are shipped are good: each is compiled when a client asks for it, which most gateways never see.
  for (const [name, schema] of Object.entries(builtIn))
    if (all[name] === schema) ajv.addSchema({ ...schema, $id: idOf(name) }, undefined, false)
  for (const [name, schema] of named)
    try {
      ajv.compile(schema)
    } catch (error) {
      throw new Failure('malformed', `the schema ${name} is not a JSON Schema (2020-12): ${messageOf(error)}`, {
        source: 'ours',
        cause: error,
      })
    }
  return {
    names: Object.keys(all),
    all,
    check: (name) => ({
      maxBytes: Math.min(maxBytes, mostBytes),
      check(text) {
        const validate = Object.hasOwn(all, name) ? ajv.getSchema(idOf(name)) : undefined
        if (!validate) throw malformed(`unknown schema ${JSON.stringify(name)}`)
        if (validate(parse(text))) return
        const errors = (validate.errors ?? []).slice(0, mostErrors).map(said)
        const list = errors.map(({ field, message }) => `${field} ${message}`).join('; ')
        throw new Failure('malformed', `the document does not match the schema ${name}: ${list}`, {
          source: 'client',
          facts: { errors },
        })
      },
    }),
  }
}

/** What is read back as JSON is checked as JSON: a byte order mark may stand before it (content/json.ts). */
function parse(whole: string): unknown {
  const text = whole.startsWith('\ufeff') ? whole.slice(1) : whole
  if (hasMoreValues(text, mostValues))
    throw malformed(`the document has more than ${mostValues} values, the most that is checked`)
  try {
    return JSON.parse(text)
  } catch (error) {
    throw malformed('the document is not JSON', error)
  }
}

/** The field by its path, `answers[0].id`; the document itself is `document`. */
function said({ instancePath, keyword, params, message }: ErrorObject): { field: string; message: string } {
  const path = instancePath
    .split('/')
    .slice(1)
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'))
  if (keyword === 'required')
    return { field: fieldOf([...path, String(params['missingProperty'])]), message: 'is missing' }
  if (keyword === 'additionalProperties')
    return { field: fieldOf([...path, String(params['additionalProperty'])]), message: 'is not allowed' }
  if (keyword === 'enum')
    return { field: fieldOf(path), message: `must be one of ${(params['allowedValues'] as unknown[]).join(', ')}` }
  const format = keyword === 'format' ? formats[String(params['format'])] : undefined
  if (format) return { field: fieldOf(path), message: format.message }
  return { field: fieldOf(path), message: message ?? 'is wrong' }
}

const fieldOf = (path: readonly string[]): string =>
  path
    .map((step, index) => (/^\d+$/.test(step) ? `[${step}]` : index === 0 ? step : `.${step}`))
    .join('')
    .slice(0, mostFieldChars) || 'document'

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : 'it cannot be compiled')
