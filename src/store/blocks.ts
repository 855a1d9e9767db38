// A key to its bytes, wherever they lie. A filter in memory says what is not here; what was touched lately is read at once,
// everything else by the reader's thread.

import type { Worker } from 'node:worker_threads'
import type { CID } from 'multiformats/cid'
import { blockKey } from '../core/cid.ts'
import { asError, type Connection, failureOf, startThread } from './engine.ts'
import { addKey, emptyFilter, type Filter, mayHave } from './key-filter.ts'
import type { BlockAnswer, FromReader, Question, ReaderData, Replies } from './reader-thread.ts'
import type { Blocks } from './store.ts'
import { keysIn, type PackedBlocks } from './writer.ts'

interface OwnBlocks extends Blocks {
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
  released(): void
  offer(key: string, read: () => Uint8Array | Promise<Uint8Array>): () => void
}

type BlocksOptions = {
  readonly reader: Reader
  /** For what takes long. */
  readonly slow: Pick<Reader, 'ask'>
  readonly ready: Promise<void>
  /** Another process writes: what it committed is asked for before a block is said to be missing. */
  readonly isFollower: boolean
  /** An error of the database or of a CAR file. */
  readonly onError: (error: unknown) => void
}

const maxRecent = 20_000
const maxRowBytes = 64 * 1024
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
    if (recent.size <= maxRecent) return
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
      if (bytes && bytes.byteLength <= maxRowBytes) note(key)
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
    released: () => recent.clear(),
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

// Reads off the event loop, by a thread that starts with the first of them: many keys with one message.

export interface Reader {
  block(key: Uint8Array): Promise<Uint8Array | undefined>
  ask<Kind extends Question['kind']>(question: Question & { readonly kind: Kind }): Promise<Replies[Kind]>
  close(): Promise<void>
}

type Asked = { readonly resolve: (reply: never) => void; readonly reject: (error: unknown) => void }
type Wanted = {
  readonly key: Uint8Array
  readonly resolve: (bytes: Uint8Array | undefined) => void
  readonly reject: (error: unknown) => void
}

const maxKeys = 256

/** `idleMs`: the thread ends when it was not asked for so long; by default never. */
export function createReader(data: ReaderData, name: string, idleMs?: number): Reader {
  const asked = new Map<number, Asked>()
  const wanted: Wanted[] = []
  let isFetching = false
  let isClosed = false
  let nextId = 0
  let thread: Worker | undefined
  let idle: NodeJS.Timeout | undefined

  function started(): Worker {
    if (thread) return thread
    const made = startThread('reader', name, data)
    made.on('message', heard)
    made.on('error', (error) => failAll(error))
    made.on('exit', () => {
      if (thread === made) thread = undefined
      failAll(new Error('the thread that reads the database ended'))
    })
    thread = made
    return made
  }

  function failAll(error: unknown): void {
    const all = [...asked.values()]
    asked.clear()
    for (const { reject } of all) reject(error)
  }

  function heard({ id, reply, error }: FromReader): void {
    const one = asked.get(id)
    asked.delete(id)
    if (error) one?.reject(asError(error))
    else one?.resolve(reply as never)
    if (asked.size > 0) return
    thread?.unref()
    if (idleMs !== undefined) idle = setTimeout(end, idleMs).unref()
  }

  function end(): void {
    void thread?.terminate()
    thread = undefined
  }

  const ask: Reader['ask'] = (question) => {
    if (isClosed) return Promise.reject(new Error('the store is closed'))
    clearTimeout(idle)
    return new Promise((resolve, reject) => {
      const id = nextId++
      asked.set(id, { resolve, reject })
      const to = started()
      to.ref()
      to.postMessage({ id, question })
    })
  }

  /** Keys that come while the thread reads go along with the next message. */
  async function fetch(): Promise<void> {
    isFetching = true
    await undefined
    while (wanted.length > 0) {
      const some = wanted.splice(0, maxKeys)
      try {
        const replies = await ask({ kind: 'blocks', keys: some.map(({ key }) => key) })
        for (const [index, { resolve, reject }] of some.entries()) {
          const one = replies[index] as BlockAnswer
          if (one === undefined || one instanceof Uint8Array) resolve(one)
          else reject(asError(one.error))
        }
      } catch (error) {
        for (const { reject } of some) reject(error)
      }
    }
    isFetching = false
  }

  return {
    ask,
    block: (key) =>
      new Promise((resolve, reject) => {
        wanted.push({ key, resolve, reject })
        if (!isFetching) void fetch()
      }),
    async close() {
      isClosed = true
      clearTimeout(idle)
      await thread?.terminate()
      thread = undefined
    },
  }
}
