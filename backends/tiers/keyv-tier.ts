// Any Keyv store as a tier. A bare Keyv answers `undefined` for a command that failed: here errors
// are thrown, so that an outage is never a miss. The guard of the tier ends calls that take too
// long.
import { AsyncLocalStorage } from 'node:async_hooks'
import { randomUUID } from 'node:crypto'
import Keyv, { type KeyvStoreAdapter } from 'keyv'
import { blockKey } from '../../src/core/cid.ts'
import { type Clock, orAborted, withDeadline } from '../../src/core/clock.ts'
import { Failure } from '../../src/core/failure.ts'
import type { Log } from '../../src/core/log.ts'
import type { StoredRecord, Tier, TierTraits } from './contract.ts'

export type KeyvStore = KeyvStoreAdapter | Map<string, unknown>

export type KeyvTierOptions = {
  readonly name: string
  readonly traits: TierTraits
  readonly clock: Clock
  readonly log: Log
  /**
   * Makes the store when it is first needed, and again when that failed. A Keyv adapter takes no
   * signal with a call; one that stops when its caller leaves asks `signalOf` during the call.
   */
  readonly open: (signalOf: () => AbortSignal | undefined) => Promise<KeyvStore>
  /** The store carries bytes as they are. Otherwise they travel in Keyv's own JSON, as base64. */
  readonly binary: boolean
  readonly prefix: string
  readonly ttlMs?: number | undefined
  /** The timeout of a read. */
  readonly timeoutMs: number
  /** Default: 256 reads and 64 writes. */
  readonly concurrency?: Tier['concurrency']
  /** A Failure of what the library threw: its types and codes stop here. */
  readonly explain: (error: unknown) => Failure
  readonly probe?: ((store: KeyvStore, signal: AbortSignal | undefined) => Promise<void>) | undefined
  /** Reads and writes records in this store. Default: as in any Keyv store. */
  readonly records?: RecordSteps | undefined
}

/** For loading the library and connecting, which takes a busy machine seconds. */
const openMs = 10_000
const shutMs = 2000

export function createKeyvTier(options: KeyvTierOptions): Tier {
  const { name, clock, log, binary, prefix, ttlMs, explain, records = readsFirst } = options
  const calls = new AsyncLocalStorage<AbortSignal | undefined>()
  let opening: Promise<Keyv> | undefined
  let current: Keyv | undefined
  let isClosed = false
  const failure = (kind: 'timeout' | 'unavailable' | 'upstream-error', what: string) =>
    new Failure(kind, `tier ${name} ${what}`, { source: 'tier' })

  async function make(): Promise<Keyv> {
    const store = await options.open(() => calls.getStore())
    const keyv = new Keyv(store, {
      namespace: undefined,
      useKeyPrefix: false,
      throwOnErrors: true,
      ...(binary ? { serialize: ({ value }: { value: unknown }) => value } : {}),
      deserialize: readText as never,
    } as object)
    // Without a listener some adapters end the process; each call reports its own failure anyway.
    keyv.on('error', (error: unknown) =>
      log('debug', 'tier.adapter-failed', { tier: name, error: error instanceof Error ? error.name : typeof error }),
    )
    return (current = keyv)
  }

  function open(): Promise<Keyv> {
    const late = () => failure('timeout', `did not open within ${openMs} ms`)
    const started = (opening ??= make().catch((error: unknown) => {
      opening = undefined // a start that failed is not remembered
      throw error
    }))
    return withDeadline({ ms: openMs, clock, late }, () => started)
  }

  async function call<T>(signal: AbortSignal | undefined, work: (keyv: Keyv) => Promise<T>): Promise<T> {
    signal?.throwIfAborted()
    if (isClosed) throw failure('unavailable', 'is closed')
    try {
      const keyv = current ?? (await orAborted(signal, open()))
      return await orAborted(signal, calls.run(signal, work, keyv))
    } catch (error) {
      if (error instanceof Failure || signal?.aborted) throw error
      throw explain(error)
    }
  }

  const keyOf = (cid: Parameters<Tier['get']>[0]): string => prefix + blockKey(cid)
  // No block has a key that begins like this behind the prefix.
  const recordKeyOf = (key: string): string => `${prefix}ipns/${key}`

  return {
    name,
    traits: options.traits,
    timeoutMs: options.timeoutMs,
    concurrency: options.concurrency ?? { reads: 256, writes: 64 },
    open: () => (current ? undefined : open().then(() => {})),
    ...(options.traits.shared && {
      records: {
        read: (key, signal) => call(signal, (keyv) => records.read(keyv, recordKeyOf(key), signal)),
        replace: (key, bytes, how, signal) =>
          call(signal, (keyv) => records.replace(keyv, recordKeyOf(key), Buffer.from(bytes), how, signal)),
      },
    }),
    get: (cid, signal) => call(signal, async (keyv) => bytesOf(await keyv.getRaw(keyOf(cid)))),
    put: (cid, bytes, signal) =>
      call(signal, async (keyv) => {
        // A Map keeps what it is given; a server has it on the wire when the call is over.
        const value =
          keyv.store instanceof Map ? Buffer.from(bytes) : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
        if (!(await keyv.set(keyOf(cid), value, ttlMs))) throw failure('upstream-error', 'did not keep a block')
      }),
    has: (cid, signal) =>
      call(signal, async (keyv) => {
        const knows = !(keyv.store instanceof Map) && typeof keyv.store.has === 'function'
        return knows ? keyv.has(keyOf(cid)) : bytesOf(await keyv.getRaw(keyOf(cid))) !== undefined
      }),
    delete: (cid, signal) => call(signal, async (keyv) => void (await keyv.delete(keyOf(cid)))),
    probe: (signal) =>
      call(signal, async (keyv) => {
        if (options.probe) return options.probe(keyv.store, signal)
        // A key of its own: instances that probe at the same time would delete each other's.
        const key = `${prefix}probe-${randomUUID()}`
        await keyv.set(key, Buffer.from([1]), 60_000)
        const held = bytesOf(await keyv.getRaw(key))
        await keyv.delete(key)
        if (held?.[0] !== 1) throw failure('upstream-error', 'lost a value that was just written to it')
      }),
    async close() {
      if (isClosed) return
      isClosed = true
      const shut = async () => {
        const { store } = (await opening) ?? {}
        // By force: Redis would first wait for its server.
        await (store as { disconnect?(force: boolean): Promise<void> } | undefined)?.disconnect?.(true)
      }
      const late = () => failure('timeout', 'did not close')
      // It goes away with the process, at the latest.
      await withDeadline({ ms: shutMs, clock, late }, shut).catch(() => {})
    },
  }
}

/**
 * Records of a store, one step each. Keyv cannot compare and write in one step: a store that can
 * brings its own.
 */
export interface RecordSteps {
  read(keyv: Keyv, key: string, signal: AbortSignal | undefined): Promise<StoredRecord | undefined>
  replace(
    keyv: Keyv,
    key: string,
    bytes: Buffer,
    how: { readonly expected: StoredRecord | undefined; readonly keepMs: number },
    signal: AbortSignal | undefined,
  ): Promise<boolean>
}

/** For any Keyv store: reads first, then writes. */
export const readsFirst: RecordSteps = {
  async read(keyv, key) {
    const bytes = bytesOf(await keyv.getRaw(key))
    return bytes && { bytes }
  },
  async replace(keyv, key, bytes, { expected, keepMs }, signal) {
    if (!isSame(await readsFirst.read(keyv, key, signal), expected)) return false
    signal?.throwIfAborted()
    await keyv.set(key, bytes, keepMs)
    return true
  },
}

export const isSame = (one: StoredRecord | undefined, other: StoredRecord | undefined): boolean =>
  one === undefined || other === undefined ? one === other : Buffer.compare(one.bytes, other.bytes) === 0

type Stored = { readonly value: Uint8Array; readonly expires?: number }

/**
 * Text that Keyv did not write becomes bytes that prove nothing, so that it is dropped like any
 * corrupt block.
 */
function readText(text: string): Stored {
  try {
    const stored: { value?: unknown; expires?: unknown } = JSON.parse(text)
    if (typeof stored.value === 'string' && stored.value.startsWith(':base64:')) {
      const value = Buffer.from(stored.value.slice(':base64:'.length), 'base64')
      return typeof stored.expires === 'number' ? { value, expires: stored.expires } : { value }
    }
  } catch {
    // Not JSON: falls through.
  }
  return { value: Buffer.from(text) }
}

/** Bytes as a binary store returns them, or wrapped as Keyv keeps them. */
function bytesOf(stored: unknown): Uint8Array | undefined {
  if (stored === undefined || stored === null) return undefined
  if (stored instanceof Uint8Array) return stored
  const value = typeof stored === 'object' && 'value' in stored ? stored.value : undefined
  return value instanceof Uint8Array ? value : Buffer.from(String(value))
}
