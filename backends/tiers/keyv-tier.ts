// Any Keyv store as a tier. A bare Keyv answers `undefined` for a command that failed, and waits for as long as a server
// is away: here errors are thrown, and a clock of our own runs round every call. What fails is an outage, never a miss.
import { AsyncLocalStorage } from 'node:async_hooks'
import { randomUUID } from 'node:crypto'
import Keyv, { type KeyvStoreAdapter } from 'keyv'
import { blockKey } from '../../src/core/cid.ts'
import { type Clock, withDeadline } from '../../src/core/clock.ts'
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
   * The store, made when it is first needed, and again when that failed. A Keyv adapter takes no signal with a call;
   * one that wants to stop when its caller does asks `signalOf` during the call.
   */
  readonly open: (signalOf: () => AbortSignal | undefined) => Promise<KeyvStore>
  /** Frees what `open` made. By default the store's own `disconnect`. */
  readonly shut?: ((store: KeyvStore) => Promise<void>) | undefined
  /** The store carries bytes as they are. Otherwise they travel in Keyv's own JSON, as base64. */
  readonly binary: boolean
  readonly prefix: string
  readonly ttlMs?: number | undefined
  readonly timeoutMs: number
  readonly writeTimeoutMs: number
  /** Default: 256 reads and 64 writes. */
  readonly concurrency?: Tier['concurrency']
  /** A Failure of what the library threw: its types and codes stop here. */
  readonly explain: (error: unknown) => Failure
  readonly probe?: ((store: KeyvStore, signal: AbortSignal) => Promise<void>) | undefined
  /** How this store keeps records. By default as any Keyv store does. */
  readonly records?: RecordSteps | undefined
}

/** For loading the library and connecting, which takes a busy machine seconds. */
const openMs = 10_000
const shutMs = 2000

export function createKeyvTier(options: KeyvTierOptions): Tier {
  const { name, clock, log, binary, prefix, ttlMs, timeoutMs, writeTimeoutMs, explain } = options
  const calls = new AsyncLocalStorage<AbortSignal>()
  let opening: Promise<Keyv> | undefined
  let current: Keyv | undefined
  let isClosed = false

  async function open(): Promise<Keyv> {
    const store = await options.open(() => calls.getStore())
    const keyv = new Keyv(store, {
      namespace: undefined,
      useKeyPrefix: false,
      throwOnErrors: true,
      ...(binary ? { serialize: ({ value }: { value: unknown }) => value } : {}),
      deserialize: readText as never,
    } as object)
    // Without a listener some adapters end the process; each call reports its own failure anyway.
    keyv.on('error', (error: unknown) => log('debug', 'tier.adapter-failed', { tier: name, error: nameOf(error) }))
    current = keyv
    return keyv
  }

  function opened(): Promise<Keyv> {
    opening ??= open().catch((error: unknown) => {
      opening = undefined // a start that failed is not remembered
      throw error
    })
    return opening
  }

  /** The work that this process does with other answers is no time of the store's, and neither is opening. */
  async function call<T>(
    ms: number,
    signal: AbortSignal | undefined,
    work: (keyv: Keyv, own: AbortSignal) => Promise<T>,
  ): Promise<T> {
    if (isClosed) throw new Failure('unavailable', `tier ${name} is closed`, { source: 'tier' })
    const late = (limit: number) => ({ ms: limit, clock, signal, late: () => silent(name, limit) })
    try {
      const keyv = current ?? (await withDeadline(late(openMs), opened))
      return await withDeadline({ ...late(ms), onlyIdle: true }, (own) => calls.run(own, work, keyv, own))
    } catch (error) {
      if (error instanceof Failure || signal?.aborted) throw error
      throw explain(error)
    }
  }

  const keyOf = (cid: Parameters<Tier['get']>[0]): string => prefix + blockKey(cid)
  // No block has a key that begins like this behind the prefix.
  const recordKeyOf = (key: string): string => `${prefix}ipns/${key}`
  const records = options.records ?? looksFirst

  return {
    name,
    traits: options.traits,
    deadlineMs: timeoutMs,
    concurrency: options.concurrency ?? { reads: 256, writes: 64 },
    open: () =>
      current
        ? undefined
        : withDeadline({ ms: openMs, clock, late: () => silent(name, openMs) }, opened).then(() => {}),
    ...(options.traits.shared && {
      records: {
        read: (key, signal) => call(timeoutMs, signal, (keyv, own) => records.read(keyv, recordKeyOf(key), own)),
        replace: (key, bytes, how, signal) =>
          call(writeTimeoutMs, signal, (keyv, own) =>
            records.replace(keyv, recordKeyOf(key), Buffer.from(bytes), how, own),
          ),
      },
    }),
    get: (cid, signal) => call(timeoutMs, signal, async (keyv) => bytesOf(await keyv.getRaw(keyOf(cid)))),
    async put(cid, bytes, signal) {
      await call(writeTimeoutMs, signal, async (keyv) => {
        // A Map keeps what it is given; a server has it on the wire when the call is over.
        const value =
          keyv.store instanceof Map ? Buffer.from(bytes) : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
        const kept = await keyv.set(keyOf(cid), value, ttlMs)
        if (!kept) throw new Failure('upstream-error', `tier ${name} did not keep a block`, { source: 'tier' })
      })
    },
    has: (cid, signal) =>
      call(timeoutMs, signal, async (keyv) => {
        const knows = !(keyv.store instanceof Map) && typeof keyv.store.has === 'function'
        return knows ? keyv.has(keyOf(cid)) : bytesOf(await keyv.getRaw(keyOf(cid))) !== undefined
      }),
    async delete(cid, signal) {
      await call(writeTimeoutMs, signal, (keyv) => keyv.delete(keyOf(cid)))
    },
    async probe(signal) {
      await call(writeTimeoutMs, signal, async (keyv) => {
        if (options.probe) return options.probe(keyv.store, calls.getStore() ?? AbortSignal.abort())
        // Of its own: instances that look at once would delete each other's.
        const key = `${prefix}probe-${randomUUID()}`
        await keyv.set(key, Buffer.from([1]), 60_000)
        const held = bytesOf(await keyv.getRaw(key))
        await keyv.delete(key)
        if (held?.[0] !== 1) {
          throw new Failure('upstream-error', `tier ${name} lost a value that was just written to it`, {
            source: 'tier',
          })
        }
      })
    },
    async close() {
      if (isClosed) return
      isClosed = true
      const keyv = await opening?.catch(() => undefined)
      if (!keyv) return
      const shut = options.shut ? () => options.shut?.(keyv.store) : () => keyv.disconnect()
      const end = { ms: shutMs, clock, late: () => silent(name, shutMs) }
      await withDeadline(end, async () => shut()).catch(() => {}) // it goes away with the process, at the latest
    },
  }
}

/** Records of a store, one step each. Keyv cannot compare and write in one step: a store that can brings its own. */
export interface RecordSteps {
  read(keyv: Keyv, key: string, signal: AbortSignal): Promise<StoredRecord | undefined>
  replace(
    keyv: Keyv,
    key: string,
    bytes: Buffer,
    how: { readonly over: StoredRecord | undefined; readonly keepMs: number },
    signal: AbortSignal,
  ): Promise<boolean>
}

/** For any Keyv store: reads first, then writes. */
export const looksFirst: RecordSteps = {
  async read(keyv, key) {
    const bytes = bytesOf(await keyv.getRaw(key))
    return bytes && { bytes }
  },
  async replace(keyv, key, bytes, { over, keepMs }, signal) {
    if (!isSame(await looksFirst.read(keyv, key, signal), over)) return false
    signal.throwIfAborted()
    await keyv.set(key, bytes, keepMs)
    return true
  },
}

export const isSame = (one: StoredRecord | undefined, other: StoredRecord | undefined): boolean =>
  one === undefined || other === undefined ? one === other : Buffer.compare(one.bytes, other.bytes) === 0

type Stored = { readonly value: Uint8Array; readonly expires?: number }

/** Text that Keyv did not write becomes bytes that prove nothing, so that it is dropped like any corrupt block. */
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

const nameOf = (error: unknown): string => (error instanceof Error ? error.name : typeof error)

const silent = (name: string, ms: number): Failure =>
  new Failure('timeout', `tier ${name} did not answer within ${ms} ms`, { source: 'tier' })
