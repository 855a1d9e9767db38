// Validates documents against a schema on request, before anything is stored: an address written
// on-chain cannot be corrected.

import { createRequire } from 'node:module'
import type { Ajv2020, ErrorObject } from 'ajv/dist/2020.js'
import { Failure, malformed } from '../core/failure.ts'
import type { TextCheck } from '../upload/ingest.ts'
import { disputeTemplate, evidence, formats, type JsonSchema, policy } from './documents.ts'

export interface SchemaChecks {
  readonly names: readonly string[]
  /** The schemas by name. */
  readonly all: Readonly<Record<string, JsonSchema>>
  check(name: string): TextCheck
}

type SchemaOptions = {
  /** The largest document to validate, if below the fixed limit. */
  readonly maxBytes: number
  /** The operator's schemas by name; one with a built-in name replaces it. */
  readonly own?: Readonly<Record<string, JsonSchema>>
}

export const builtIn: Readonly<Record<string, JsonSchema>> = { evidence, policy, 'dispute-template': disputeTemplate }

const idOf = (name: string): string => `urn:cidgate:schema:${name}`

const maxErrors = 50
const maxFieldChars = 200
// Validation blocks all other requests. Its time grows with the bytes and, since each wrong value
// is an error, with the values: within these limits it takes a few milliseconds.
const maxCheckedBytes = 1024 * 1024
const maxValues = 10_000

/** Compiles schemas; knows the built-in ones of `all`. */
function compilerOf(all: Readonly<Record<string, JsonSchema>>): Ajv2020 {
  const { Ajv2020 } = loadAjv()
  // Unknown formats are ignored; Ajv would log a warning for each.
  const ajv = new Ajv2020({ allErrors: true, strict: false, logger: false })
  for (const [name, { validate }] of Object.entries(formats)) ajv.addFormat(name, validate)
  // Each built-in schema is compiled on first use, and not validated against the meta-schema (the
  // last argument), which would take longer than the rest of the startup.
  for (const [name, schema] of Object.entries(builtIn))
    if (all[name] === schema) ajv.addSchema({ ...schema, $id: idOf(name) }, undefined, undefined, false)
  return ajv
}

/** Throws for an invalid schema of the operator: at start, not at the first upload. */
export function createSchemaChecks({ maxBytes, own = {} }: SchemaOptions): SchemaChecks {
  // The operator's schemas get an `$id`, so that `#/$defs/…` refers to the schema itself wherever
  // it is published.
  const named = Object.entries(own).map(([name, schema]) => [name, { ...schema, $id: idOf(name) }] as const)
  const all: Record<string, JsonSchema> = { ...builtIn, ...Object.fromEntries(named) }
  let compiler: Ajv2020 | undefined
  const compiled = () => (compiler ??= compilerOf(all))
  for (const [name, schema] of named)
    try {
      compiled().compile(schema)
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
      maxBytes: Math.min(maxBytes, maxCheckedBytes),
      check(text) {
        const validate = Object.hasOwn(all, name) ? compiled().getSchema(idOf(name)) : undefined
        if (!validate) throw malformed(`unknown schema ${JSON.stringify(name)}`)
        if (validate(parse(text))) return
        const errors = (validate.errors ?? []).slice(0, maxErrors).map(said)
        const list = errors.map(({ field, message }) => `${field} ${message}`).join('; ')
        throw new Failure('malformed', `the document does not match the schema ${name}: ${list}`, {
          source: 'client',
          facts: { errors },
        })
      },
    }),
  }
}

/** A byte order mark is accepted, as in files that are read as JSON (content/json.ts). */
function parse(bytes: string): unknown {
  const text = bytes.startsWith('\ufeff') ? bytes.slice(1) : bytes
  if (hasMoreValues(text, maxValues))
    throw malformed(`the document has more than ${maxValues} values, the most that is checked`)
  try {
    return JSON.parse(text)
  } catch (error) {
    throw malformed('the document is not JSON', error)
  }
}

/** The path of the wrong field, `answers[0].id`; `document` for the root. */
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
    .slice(0, maxFieldChars) || 'document'

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : 'it cannot be compiled')

/**
 * Loaded on first use, since most gateways validate nothing. Uses `require`, because a
 * configuration is read synchronously.
 */
const loadAjv = () => createRequire(import.meta.url)('ajv/dist/2020.js') as typeof import('ajv/dist/2020.js')

const quote = '"'.charCodeAt(0)
const backslash = '\\'.charCodeAt(0)
const comma = ','.charCodeAt(0)
const openings: ReadonlySet<number> = new Set(['[', '{'].map((char) => char.charCodeAt(0)))
const closings: ReadonlySet<number> = new Set([']', '}'].map((char) => char.charCodeAt(0)))

/**
 * Counts values without parsing, which would create an object for each: the first one, one per
 * comma, and the first in each list or object.
 */
function hasMoreValues(text: string, max: number): boolean {
  let count = 1
  let isText = false
  let isOpened = false
  for (let at = 0; at < text.length && count <= max; at++) {
    const code = text.charCodeAt(at)
    if (isText) {
      if (code === backslash) at++
      else if (code === quote) isText = false
      continue
    }
    if (code <= 0x20) continue
    if (code === comma || (isOpened && !closings.has(code))) count++
    isOpened = openings.has(code)
    isText = code === quote
  }
  return count > max
}
