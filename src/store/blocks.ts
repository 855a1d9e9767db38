// A key to its bytes, wherever they lie. A filter in memory says what is not here; what was touched lately is read at once,
// everything else by the reader's thread.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../core/cid.ts'
import { type Connection, failureOf } from './engine.ts'
import { addKey, emptyFilter, type Filter, mayHave } from './filter.ts'
import { keysIn, type PackedBlocks } from './operations.ts'
import type { Reader } from './reader.ts'
import type { Blocks } from './store.ts'

export interface OwnBlocks extends Blocks {
  /** From now on the database can be read at once. */
  open(connection: Connection): void
  /** The filter has more keys than it is made for. */
  readonly isFilterDue: boolean
  /** Of what is there; takes a second or so per million blocks, off the loop. */
  makeFilter(): Promise<void>
  /** Before they are committed, since the reader may see them before this process hears that they are. Call the answer then. */
  adding(blocks: PackedBlocks): () => void
  /** Rows with bytes were written. */
  wrote(cids: readonly CID[]): void
  /** Blocks may be gone: nothing is taken for surely here. */
  removed(): void
  offer(key: string, read: () => Uint8Array | Promise<Uint8Array>): () => void
}

export type BlocksOptions = {
  readonly reader: Reader
  /** For what takes long. */
  readonly slow: Reader
  readonly ready: Promise<void>
  /** Another process writes: what it committed is asked for before a block is said to be missing. */
  readonly isFollower: boolean
  /** An error of the database or of a CAR file. */
  readonly onError: (error: unknown) => void
}

const mostRecent = 20_000
const mostRowBytes = 64 * 1024
const newsSql = 'select id, key from block where id > ? order by id limit 10000'

export function createBlocks({ reader, slow, ready, isFollower, onError }: BlocksOptions): OwnBlocks {
  const offered = new Map<string, Set<() => Uint8Array | Promise<Uint8Array>>>()
  /** Rows that were written or read lately, so that they lie in the page cache. */
  const recent = new Set<string>()
  let connection: Connection | undefined
  let filter: Filter | undefined
  /** Keys, packed, that came while the filter was made. */
  let pending: Uint8Array[] | undefined = []
  /** Keys, packed, of commits that are under way. */
  const coming = new Set<Uint8Array>()
  let last = 0

  function note(key: string): void {
    recent.delete(key)
    recent.add(key)
    if (recent.size <= mostRecent) return
    for (const oldest of recent) {
      recent.delete(oldest)
      break
    }
  }

  /** Throws where the database cannot be read. */
  function follow(db: Connection): void {
    for (let rows = db.all(newsSql, last); rows.length > 0; rows = db.all(newsSql, last)) {
      for (const { id, key } of rows) {
        if (filter) addKey(filter, key as Uint8Array)
        last = id as number
      }
    }
  }

  function lacks(cid: CID): boolean {
    if (!filter || offered.has(blockKey(cid))) return false
    const key = cid.multihash.bytes
    if (mayHave(filter, key)) return false
    if (!isFollower) return true
    try {
      if (connection) follow(connection)
      return connection !== undefined && !mayHave(filter, key)
    } catch (error) {
      onError(error)
      return false
    }
  }

  function atHand(cid: CID): Uint8Array | undefined {
    const key = blockKey(cid)
    if (!connection || !recent.has(key)) return undefined
    try {
      const bytes = connection.get('select bytes from block where key = ?', cid.multihash.bytes)?.bytes
      if (bytes instanceof Uint8Array) return bytes
    } catch (error) {
      onError(error)
    }
    recent.delete(key)
    return undefined
  }

  async function get(cid: CID): Promise<Uint8Array | undefined> {
    const key = blockKey(cid)
    for (const read of offered.get(key) ?? []) {
      const bytes = await Promise.resolve(read()).catch(() => undefined)
      if (bytes) return bytes
    }
    await ready
    if (lacks(cid)) return undefined
    const here = atHand(cid)
    if (here) return here
    try {
      const bytes = await reader.block(cid.multihash.bytes)
      if (bytes && bytes.byteLength <= mostRowBytes) note(key)
      return bytes
    } catch (error) {
      onError(error)
      throw failureOf(error, 'read an upload')
    }
  }

  return {
    get,
    async has(cid) {
      if (offered.has(blockKey(cid))) return true
      await ready
      if (lacks(cid)) return false
      try {
        return (
          (await reader.ask({ kind: 'sql', sql: 'select 1 from block where key = ?', args: [cid.multihash.bytes] }))
            .length > 0
        )
      } catch (error) {
        onError(error)
        throw failureOf(error, 'read an upload')
      }
    },
    lacks,
    holds: (cid) => recent.has(blockKey(cid)),
    atHand,
    open: (db) => {
      connection = db
    },
    get isFilterDue() {
      return pending === undefined && filter !== undefined && filter.count > filter.capacity
    },
    async makeFilter() {
      pending ??= [...coming]
      try {
        await ready
        const isEmpty = !filter && !connection?.get('select 1 from block limit 1')
        const made = isEmpty ? { filter: emptyFilter(0), last: 0 } : await slow.ask({ kind: 'filter' })
        for (const keys of pending) for (const key of keysIn(keys)) addKey(made.filter, key)
        filter = made.filter
        last = made.last
      } finally {
        pending = undefined
      }
    },
    adding({ keys }) {
      if (filter) for (const key of keysIn(keys)) addKey(filter, key)
      pending?.push(keys)
      coming.add(keys)
      return () => coming.delete(keys)
    },
    wrote(cids) {
      for (const cid of cids) note(blockKey(cid))
    },
    removed: () => recent.clear(),
    offer(key, read) {
      const reads = offered.get(key) ?? new Set()
      offered.set(key, reads.add(read))
      return () => {
        reads.delete(read)
        if (reads.size === 0) offered.delete(key)
      }
    },
  }
}
