// Stores the last record of each key, so that names resolve after a restart while every upstream is
// down. Readers verify it again.
import type { CID } from 'multiformats/cid'
import type { Log } from '../core/log.ts'
import type { Statement, Store, StoreReader } from '../store/store.ts'
import { keyText } from './ipns-record.ts'

export interface RecordStore {
  /** Undefined if there is none. Rejects if the disk fails. */
  read(key: CID): Promise<Uint8Array | undefined>
  /** Queues the write; the last one of a key wins. */
  write(key: CID, bytes: Uint8Array): void
  remove(key: CID): void
  /** Resolves when everything is written. */
  close(): Promise<void>
}

/** Undefined `bytes` means removal. */
export type KeptRecord = { readonly name: string; readonly bytes: Uint8Array | undefined }

export type RecordStoreOptions = {
  readonly store: Pick<StoreReader, 'read'>
  readonly write: (records: readonly KeptRecord[]) => Promise<void>
  readonly log: Log
}

const maxWaiting = 1000

const putSql = `insert into record (name, bytes, at) values (?, ?, (select coalesce(max(at), 0) + 1 from record))
on conflict (name) do update set bytes = excluded.bytes, at = excluded.at`
const removeSql = 'delete from record where name = ?'
const trimSql = 'delete from record where at <= (select at from record order by at desc limit 1 offset ?)'

/** Keeps up to `max` records; deletes the least recently written. */
export function writeRecords(store: Pick<Store, 'write'>, max: number, records: readonly KeptRecord[]): Promise<void> {
  const statements = records.map(
    ({ name, bytes }): Statement => (bytes ? { sql: putSql, args: [name, bytes] } : { sql: removeSql, args: [name] }),
  )
  return store.write([...statements, { sql: trimSql, args: [max] }])
}

export function createRecordStore({ store, write, log }: RecordStoreOptions): RecordStore {
  let waiting = new Map<string, Uint8Array | undefined>()
  let inProgress: ReadonlyMap<string, Uint8Array | undefined> = new Map()
  let writer: Promise<void> | undefined
  let complained = false

  function complain(what: string, error: unknown): void {
    if (complained) return
    complained = true
    log('warn', 'names.store-failed', { what, error: error instanceof Error ? error.message : String(error) })
  }

  /** Records that arrive during a commit share the next one. */
  async function drain(): Promise<void> {
    while (waiting.size > 0) {
      const records = [...waiting].map(([name, bytes]) => ({ name, bytes }))
      inProgress = waiting
      waiting = new Map()
      await write(records).then(
        () => {
          complained = false
        },
        (error) => complain(`${records.length} records could not be kept`, error),
      )
    }
    inProgress = new Map()
    writer = undefined
  }

  function enqueue(key: CID, bytes: Uint8Array | undefined): void {
    const name = keyText(key)
    if (!waiting.has(name) && waiting.size >= maxWaiting) return
    waiting.set(name, bytes)
    writer ??= Promise.resolve().then(drain)
  }

  return {
    async read(key) {
      const name = keyText(key)
      for (const some of [waiting, inProgress]) if (some.has(name)) return some.get(name)
      try {
        const [row] = await store.read('select bytes from record where name = ?', [name])
        return row?.bytes as Uint8Array | undefined
      } catch (error) {
        complain(`the record of ${name} could not be read`, error)
        throw error
      }
    },
    write: (key, bytes) => enqueue(key, bytes),
    remove: (key) => enqueue(key, undefined),
    async close() {
      while (writer !== undefined) await writer
    },
  }
}
