// Prints config/schema.json, for editors, from the schema of the configuration (`npm run schema`).
import { z } from 'zod'
import { configSchema } from '../src/config/schema.ts'

export function jsonSchema(): string {
  const schema = z.toJSONSchema(configSchema, {
    io: 'input',
    target: 'draft-7',
    unrepresentable: 'any',
    override: plain,
  })
  return `${JSON.stringify({ title: 'cidgate configuration', ...schema }, null, 2)}\n`
}

/**
 * Omits the bounds of whole numbers, and the default of `userAgent`, which changes with each
 * version.
 */
function plain({ jsonSchema: part }: { jsonSchema: z.core.JSONSchema.BaseSchema }): void {
  if (part.maximum === Number.MAX_SAFE_INTEGER) delete part.maximum
  if (typeof part.default === 'string' && part.default.startsWith('cidgate/')) delete part.default
}

if (process.argv[1] === import.meta.filename) process.stdout.write(jsonSchema())
