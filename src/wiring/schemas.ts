// What uploads are checked with, from the configuration: the documents that are shipped, and the operator's own.
import { ConfigError } from '../config/complaints.ts'
import type { Config } from '../config/load.ts'
import { createSchemaChecks, type SchemaChecks } from '../schemas/checks.ts'

/** Throws a ConfigError where one of the operator's own is no schema. */
export function schemasOf({ upload, responses }: Config): SchemaChecks {
  try {
    return createSchemaChecks({ maxBytes: responses.json.maxBytes, own: upload.schemas })
  } catch (error) {
    const what = `${error instanceof Error ? error.message : error} (expected JSON Schemas)`
    throw new ConfigError([{ path: ['upload', 'schemas'], what }])
  }
}
