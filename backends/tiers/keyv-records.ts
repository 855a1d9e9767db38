// Records in a Keyv store. Keyv has no call that compares and writes in one step, so a store that can do it brings its own.
import type Keyv from 'keyv'
import type { Call, Records, StoredRecord } from './contract.ts'
import { bytesOf } from './keyv-values.ts'

/** One step each, on an open store. */
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

type Run = <T>(
  kind: 'read' | 'write',
  signal: AbortSignal | undefined,
  told: Call | undefined,
  work: (keyv: Keyv, signal: AbortSignal) => Promise<T>,
) => Promise<T>

/** No block has a key that begins like this behind the prefix. */
const prefix = 'ipns/'

export function keyvRecords(steps: RecordSteps, blocks: { readonly prefix: string }, run: Run): Records {
  const keyOf = (key: string): string => `${blocks.prefix}${prefix}${key}`
  return {
    read: (key, signal, told) => run('read', signal, told, (keyv, own) => steps.read(keyv, keyOf(key), own)),
    replace: (key, bytes, how, signal, told) =>
      run('write', signal, told, (keyv, own) => steps.replace(keyv, keyOf(key), Buffer.from(bytes), how, own)),
  }
}

async function read(keyv: Keyv, key: string): Promise<StoredRecord | undefined> {
  const bytes = bytesOf(await keyv.getRaw(key))
  return bytes && { bytes }
}

/** For any Keyv store: looks first, then writes. */
export const looksFirst: RecordSteps = {
  read,
  async replace(keyv, key, bytes, { over, keepMs }, signal) {
    if (!isSame(await read(keyv, key), over)) return false
    signal.throwIfAborted()
    await keyv.set(key, bytes, keepMs)
    return true
  },
}

export const isSame = (one: StoredRecord | undefined, other: StoredRecord | undefined): boolean =>
  one === undefined || other === undefined ? one === other : Buffer.compare(one.bytes, other.bytes) === 0
