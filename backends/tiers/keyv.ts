// Any Keyv storage adapter as a tier. Bytes go through as they are where the store can carry them, as base64 where it
// cannot. An adapter may hang while its server is away, or answer a failed command with "not there": every call has a
// deadline of its own, and adapters are told to throw.
import { EventEmitter } from 'node:events'
import { z } from 'zod'
import { blockKey, maxBlockBytes } from '../../src/block.ts'
import { duration } from '../../src/config/units.ts'
import { Failure } from '../../src/failure.ts'
import type { Tier, TierContext, TierKind, TierTraits } from './contract.ts'

/** What we use of a Keyv storage adapter. */
export interface KeyvAdapter {
  get(key: string): unknown
  set(key: string, value: unknown, ttl?: number): unknown
  delete(key: string): unknown
  has?(key: string): unknown
  disconnect?(): unknown
}

export type AdapterTierOptions = {
  /** Called when the tier is first used, and again after a failure to make one. */
  readonly adapter: () => Promise<KeyvAdapter> | KeyvAdapter
  readonly prefix: string
  readonly ttlMs?: number | undefined
  readonly timeoutMs: number
  readonly writeTimeoutMs?: number
  /** The store takes and gives back bytes. */
  readonly binary: boolean
  readonly traits: TierTraits
  readonly probe?: (adapter: KeyvAdapter) => Promise<void>
}

export function createAdapterTier(options: AdapterTierOptions, { name, log, clock }: TierContext): Tier {
  const { prefix, ttlMs, timeoutMs, binary, traits } = options
  const writeMs = options.writeTimeoutMs ?? timeoutMs * 4
  let making: Promise<KeyvAdapter> | undefined

  function adapter(): Promise<KeyvAdapter> {
    if (!making) {
      making = Promise.resolve(options.adapter()).then((made) => {
        if (made instanceof EventEmitter) made.on('error', (error) => log('debug', 'tier.error', { tier: name, error: String(error) }))
        return made
      })
      making.catch(() => {
        making = undefined
      })
    }
    return making
  }

  async function call<T>(what: string, ms: number, signal: AbortSignal | undefined, work: (adapter: KeyvAdapter) => T | Promise<T>): Promise<T> {
    signal?.throwIfAborted()
    const left = Promise.withResolvers<never>()
    const leave = () => left.reject(signal?.reason)
    signal?.addEventListener('abort', leave, { once: true })
    const stop = clock.after(ms, () => {
      left.reject(new Failure('timeout', `tier ${name}: no answer to ${what} within ${ms} ms`, { source: 'tier' }))
    })
    try {
      return await Promise.race([adapter().then(work), left.promise])
    } catch (error) {
      if (signal?.aborted || error instanceof Failure) throw error
      throw new Failure('broken', `tier ${name}: ${what} failed: ${reasonOf(error)}`, { source: 'tier', cause: error })
    } finally {
      stop()
      signal?.removeEventListener('abort', leave)
    }
  }

  const keyOf = (cid: Parameters<typeof blockKey>[0]): string => prefix + blockKey(cid)

  return {
    name,
    traits,
    get: (cid, signal) => call('get', timeoutMs, signal, async (store) => bytesOf(name, await store.get(keyOf(cid)), binary)),
    put: (cid, bytes, signal) => {
      const value = binary ? Buffer.from(bytes) : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('base64')
      return call('set', writeMs, signal, async (store) => void (await store.set(keyOf(cid), value, ttlMs)))
    },
    has: (cid, signal) =>
      call('has', timeoutMs, signal, async (store) =>
        store.has ? Boolean(await store.has(keyOf(cid))) : (await store.get(keyOf(cid))) !== undefined,
      ),
    delete: (cid, signal) => call('delete', timeoutMs, signal, async (store) => void (await store.delete(keyOf(cid)))),
    async probe(signal) {
      await call('probe', Math.max(writeMs, 5000), signal, async (store) => {
        if (options.probe) return options.probe(store)
        await store.get(`${prefix}probe`)
      })
    },
    async close() {
      const made = await making?.catch(() => undefined)
      making = undefined
      await call('disconnect', timeoutMs, undefined, async () => void (await made?.disconnect?.())).catch(() => {})
    },
  }
}

function bytesOf(name: string, value: unknown, binary: boolean): Uint8Array | undefined {
  if (value === undefined || value === null) return undefined
  if (!binary && typeof value === 'string') {
    return value.length > maxBlockBytes * 2 ? undefined : Buffer.from(value, 'base64')
  }
  if (value instanceof Uint8Array) return value
  throw new Failure('broken', `tier ${name}: the store gave back something that is no block`, { source: 'tier' })
}

/** The code of an error and not its message: messages of clients may hold addresses with passwords. */
function reasonOf(error: unknown): string {
  const { code, name } = (error ?? {}) as { code?: unknown; name?: unknown }
  return typeof code === 'string' ? code : typeof name === 'string' ? name : 'unknown reason'
}

const options = z.strictObject({
  module: z.string().min(1).describe('The npm package of a Keyv storage adapter, installed by the operator, such as @keyv/postgres.'),
  uri: z.string().describe('Where the store is, as the adapter wants it.'),
  options: z.record(z.string(), z.unknown()).default({}).describe('Further options of the adapter.'),
  prefix: z.string().default('cidgate:').describe('Put before every key.'),
  ttl: duration().optional().describe('How long a block is kept; without it, until the store lets it go.'),
  timeout: duration().prefault('500ms').describe('A read that takes longer counts as a failure.'),
  shared: z.boolean().default(true).describe('Whether other instances use the same store.'),
})

export const keyv: TierKind<typeof options> = {
  use: 'keyv',
  options,
  create: ({ module, uri, options: more, prefix, ttl, timeout, shared }, context) =>
    createAdapterTier(
      {
        prefix,
        ttlMs: ttl,
        timeoutMs: timeout,
        binary: false,
        traits: { persistent: true, shared, trusted: false },
        async adapter() {
          const loaded = (await import(module)) as { default: new (uri: string, options: object) => KeyvAdapter }
          return new loaded.default(uri, { ...more, throwOnErrors: true })
        },
      },
      context,
    ),
}
