// The configuration's schema for editors, made from the one the gateway checks with. `npm run schema` writes it to
// config/schema.json; a test fails when the two differ.
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

/** The bound of every whole number says nothing to an operator. The default of `userAgent` changes with each version. */
function plain({ jsonSchema: part }: { jsonSchema: z.core.JSONSchema.BaseSchema }): void {
  if (part.maximum === Number.MAX_SAFE_INTEGER) delete part.maximum
  if (typeof part.default === 'string' && part.default.startsWith('cidgate/')) delete part.default
}

if (process.argv[1] === import.meta.filename) process.stdout.write(jsonSchema())
