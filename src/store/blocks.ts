// A key to its bytes, wherever they lie. A filter in memory says what is not here, without a read.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../core/cid.ts'
import { failureOf } from './engine.ts'
import { addKey, emptyFilter, type Filter, mayHave } from './key-filter.ts'
import type { Blocks, Row, Value } from './store.ts'
import type { Question } from './threads.ts'

interface OwnBlocks extends Blocks {
  /** Of what is there; takes a second or so per million blocks, off the loop. */
  makeFilter(): Promise<void>
  /** Blocks are being committed, until the answer is called: what is there is read before one is said to be missing. */
  adding(): () => void
  offer(key: string, read: () => Uint8Array | Promise<Uint8Array>): () => void
}

type BlocksOptions = {
  readonly ready: Promise<void>
  readonly ask: (question: Question) => Promise<unknown>
  /** Reads at once. Throws where the database cannot be read now. */
  readonly readNow: (sql: string, ...args: readonly Value[]) => readonly Row[]
  /** So that reading all keys at once takes no time to speak of. */
  readonly isSmall: () => boolean
  /** Another process writes: what it committed is read before a block is said to be missing. */
  readonly isFollower: boolean
  readonly onError: (error: unknown) => void
}

const maxNews = 10_000
const newsSql = `select id, key from block where id > ? order by id limit ${maxNews}`

export function createBlocks({ ready, ask, readNow, isSmall, isFollower, onError }: BlocksOptions): OwnBlocks {
  const offered = new Map<string, Set<() => Uint8Array | Promise<Uint8Array>>>()
  let filter: Filter | undefined
  /** The highest id of a block that the filter has. */
  let last = 0
  /** Commits that are under way. */
  let coming = 0
  let isStale = true
  let isMaking = false

  /** Adds keys that came since. False: there are more, since many at once would hold up the loop. */
  function follow(into: Filter): boolean {
    const news = readNow(newsSql, last)
    for (const { id, key } of news) {
      addKey(into, key as Uint8Array)
      last = id as number
    }
    isStale = isFollower || coming > 0 || news.length === maxNews
    if (into.count > into.capacity && !isMaking) makeFilter().catch(onError)
    return news.length < maxNews
  }

  async function makeFilter(): Promise<void> {
    isMaking = true
    try {
      await ready
      const made = isSmall()
        ? { filter: emptyFilter(0), last: 0 }
        : ((await ask({ kind: 'filter' })) as { readonly filter: Filter; readonly last: number })
      filter = made.filter
      last = made.last
      isStale = true
    } finally {
      isMaking = false
    }
  }

  /** A row may be seen before this process hears of its commit. */
  function lacks(cid: CID): boolean {
    const key = cid.multihash.bytes
    if (!filter || offered.has(blockKey(cid)) || mayHave(filter, key)) return false
    if (!isStale) return true
    try {
      return follow(filter) && !mayHave(filter, key)
    } catch (error) {
      onError(error)
      return false
    }
  }

  async function asked<T>(cid: CID, otherwise: T, question: Question): Promise<T> {
    await ready
    if (lacks(cid)) return otherwise
    try {
      return (await ask(question)) as T
    } catch (error) {
      onError(error)
      throw failureOf(error, 'read an upload')
    }
  }

  return {
    async get(cid) {
      for (const read of offered.get(blockKey(cid)) ?? []) {
        const bytes = await Promise.resolve(read()).catch(() => undefined)
        if (bytes) return bytes
      }
      return asked<Uint8Array | undefined>(cid, undefined, { kind: 'block', key: cid.multihash.bytes })
    },
    async has(cid) {
      if (offered.has(blockKey(cid))) return true
      const sql = 'select 1 from block where key = ? and (bytes is not null or car is not null)'
      return (await asked<readonly Row[]>(cid, [], { kind: 'sql', sql, args: [cid.multihash.bytes] })).length > 0
    },
    lacks,
    makeFilter,
    adding() {
      coming++
      isStale = true
      return () => coming--
    },
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
