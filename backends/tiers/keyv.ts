// Any store that has a Keyv adapter: the operator installs the adapter's package and names it here.
// It is made as the Keyv documentation does, `new Adapter(uri, options)`.
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { z } from 'zod'
import { Failure } from '../../src/core/failure.ts'
import { isNotFound, notInstalled } from '../../src/core/packages.ts'
import { duration, lifetime } from '../../src/core/units.ts'
import type { TierKind } from './contract.ts'
import { createKeyvTier, type KeyvStore } from './keyv-tier.ts'

const options = z.strictObject({
  module: z
    .string()
    .min(1)
    .describe('The package of the adapter, installed by you: `@keyv/postgres`, `@keyv/valkey` …'),
  uri: z.string().min(1).optional().describe('First argument of the adapter.'),
  options: z.record(z.string(), z.unknown()).optional().describe('Options of the adapter, as its own page says.'),
  prefix: z.string().default('cidgate:block:').describe('Prefix of every key.'),
  ttl: lifetime().optional().describe('How long a block stays. By default for good, or as the store decides.'),
  timeout: duration().prefault('250ms').describe('Timeout of a read. A write may take ten times that.'),
  binary: z.boolean().default(false).describe('The adapter carries raw bytes. Otherwise blocks travel as base64.'),
  shared: z.boolean().default(true).describe('Other instances use the same store.'),
  persistent: z.boolean().default(true).describe('Blocks survive a restart of this process.'),
})

export const keyv: TierKind<typeof options> = {
  use: 'keyv',
  options,
  create: ({ module, uri, options: own, prefix, ttl, timeout, binary, shared, persistent }, { name, log, clock }) =>
    createKeyvTier({
      name,
      traits: { persistent, shared, trusted: false },
      clock,
      log,
      open: () => load(name, module, uri, own),
      binary,
      prefix,
      ttlMs: ttl,
      timeoutMs: timeout,
      explain: (cause) =>
        new Failure('upstream-error', `tier ${name}: ${module} failed; check its server`, { source: 'tier', cause }),
    }),
}

async function load(name: string, module: string, uri: unknown, own: unknown): Promise<KeyvStore> {
  const loaded: Record<string, unknown> = await importOf(name, module)
  const Adapter = loaded['default']
  if (typeof Adapter !== 'function') throw unusable(name, `${module} has no default export to make a store with`)
  const given = [uri, own].filter((argument) => argument !== undefined)
  const store = Reflect.construct(Adapter, given) as KeyvStore & { throwOnErrors?: boolean }
  // Without it some adapters say undefined for what failed on the way, and an outage would be a
  // miss.
  if ('throwOnErrors' in store) store.throwOnErrors = true
  return store
}

/**
 * From beside this package, or from the folder it was started in: where the operator installed the
 * adapter.
 */
async function importOf(name: string, module: string): Promise<Record<string, unknown>> {
  try {
    return await import(module)
  } catch (cause) {
    if (!isNotFound(cause)) throw cause
    try {
      const path = createRequire(join(process.cwd(), 'package.json')).resolve(module)
      return await import(pathToFileURL(path).href)
    } catch (second) {
      if (!isNotFound(second)) throw second
      throw unusable(name, notInstalled(module), cause)
    }
  }
}

const unusable = (name: string, what: string, cause?: unknown): Failure =>
  new Failure('unsupported', `tier ${name}: ${what}`, { source: 'tier', cause })
