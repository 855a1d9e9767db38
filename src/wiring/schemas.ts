// The schemas for uploads: built-in ones, and the operator's.
import { ConfigError } from '../config/complaints.ts'
import type { Config } from '../config/load.ts'
import { createSchemaChecks, type SchemaChecks } from '../schemas/checks.ts'

/** Throws a ConfigError if one of the operator's is not a valid schema. */
export function schemasOf({ upload, responses }: Config): SchemaChecks {
  try {
    return createSchemaChecks({ maxBytes: responses.json.maxBytes, own: upload.schemas })
  } catch (error) {
    const what = `${error instanceof Error ? error.message : error} (expected JSON Schemas)`
    throw new ConfigError([{ path: ['upload', 'schemas'], what }])
  }
}
