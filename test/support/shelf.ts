// A tier's records in memory, which compare and write in one step, with everything that a store can do wrong on command.
import type { Records, StoredRecord } from '../../backends/tiers/contract.ts'
import { Failure } from '../../src/core/failure.ts'
import type { Shelf } from '../../src/names/shared-records.ts'

export type TestShelf = Shelf & {
  readonly held: Map<string, Uint8Array>
  readonly calls: string[]
  readonly kept: number[]
  /** Before each call: to fail, to wait, or to change what is there in the meantime. */
  before: (call: 'read' | 'replace') => unknown
}

export function createShelf(name = 'shared'): TestShelf {
  const held = new Map<string, Uint8Array>()
  const isSame = (one: Uint8Array | undefined, other: StoredRecord | undefined) =>
    Buffer.compare(one ?? Buffer.of(), other?.bytes ?? Buffer.of()) === 0
  async function call<T>(what: 'read' | 'replace', signal: AbortSignal | undefined, work: () => T): Promise<T> {
    shelf.calls.push(what)
    const left = new Promise<never>((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason)))
    left.catch(() => {})
    await Promise.race([shelf.before(what), left])
    signal?.throwIfAborted()
    return work()
  }
  const records: Records = {
    read: (key, signal) =>
      call('read', signal, () => {
        const bytes = held.get(key)
        return bytes && { bytes }
      }),
    replace: (key, bytes, { expected, keepMs }, signal) =>
      call('replace', signal, () => {
        if (!isSame(held.get(key), expected)) return false
        shelf.kept.push(keepMs)
        held.set(key, bytes)
        return true
      }),
  }
  const shelf: TestShelf = { name, records, held, calls: [], kept: [], before: () => undefined }
  return shelf
}

export const isOut = (): never => {
  throw new Failure('upstream-error', 'the store is out; bring it back', { source: 'tier' })
}
