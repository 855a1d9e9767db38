// The reading half of a store, in every process: in a small database at once, in a larger one by a
// thread. Only the index of the blocks is read at once in a large one too: it says what is not here.
// The process that writes has a filter before it.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import { createAtOnce } from '../core/disk/at-once.ts'
import type { Log } from '../core/log.ts'
import { type Connection, failureOf, filterOf, KeyFilter, openForReading, placesIn, troubleOf } from './database.ts'
import { createLedger } from './ledger.ts'
import type { Row, StoreReader, Value } from './store.ts'
import { createThread, type ReaderQuery, type Thread } from './threads.ts'

export type ReadingOptions = {
  readonly clock: Clock
  readonly log: Log
  /** `isFixed`: the disk takes no writes. */
  readonly opening: Promise<{ readonly connection: Connection; readonly isFixed: boolean }>
  /** Every commit is of this process. */
  readonly isWriter?: boolean
}

type ReadBlock = () => Uint8Array | Promise<Uint8Array>

interface Reading extends StoreReader {
  /** Damage that was found. */
  note(what: string): void
  /** Keys of blocks that may be committed from now on. */
  readonly filter: KeyFilter
  /** For what takes long. */
  ask(question: ReaderQuery): Promise<unknown>
  /** Lets `blocks` serve this one, until the answer is called. */
  offer(key: string, read: ReadBlock): () => void
}

const idleMs = 60_000
/**
 * 2 MiB: it lies in the page cache, and is read at once. A thread costs 30 ms of processor time and
 * 10 MiB.
 */
const smallPages = 512
const busyMs = 100
const tryMs = 50
const maxTries = 200

export const openHere = (folder: string): Connection => openForReading(placesIn(folder).file, { timeout: busyMs })

export function createReading(folder: string, { clock, log, opening, isWriter = false }: ReadingOptions): Reading {
  let connection: Connection | undefined
  let isFixed = false
  let isClosed = false
  const found = new Set<string>()
  const data = () => ({ ...placesIn(folder), isFixed })
  const reader = createThread<ReaderQuery>({ script: 'reader', name: 'store reader', data, idleMs })
  /** A thread for checks and counts, which would delay other reads of a large database. */
  const thorough = createThread<ReaderQuery>({ script: 'reader', name: 'store check', data, idleMs })
  const offered = new Map<string, Set<ReadBlock>>()
  const atOnce = createAtOnce(folder, clock)
  const filter = new KeyFilter()
  let isFilterWhole = false

  const ready = opening.then((opened) => {
    connection = opened.connection
    isFixed = opened.isFixed
  })
  // Every page of the index is read, so that `lacks` finds them in the memory of the system.
  ready
    .then(async () => {
      if (!isWriter) return void (await readBy(thorough)('select count(*) from block'))
      filter.addAll((await ask(thorough, { kind: 'filter' }, 'read the database')) as Uint32Array)
      isFilterWhole = true
    })
    .catch(() => {})

  function note(what: string): void {
    if (found.has(what)) return
    found.add(what)
    log('error', 'store.damaged', { folder, what })
  }

  function onError(error: unknown): void {
    const { message } = error as Error
    if (troubleOf(error) === 'damaged') note(message)
    else if (!isClosed) log('warn', 'store.read-failed', { folder, error: message })
  }

  function readNow(sql: string, ...args: readonly Value[]): readonly Row[] {
    if (!connection) throw new Error('the store is not open')
    return connection.all(sql, ...args)
  }

  const isSmall = (): boolean => Number(readNow('pragma page_count')[0]?.page_count) <= smallPages

  /** Undefined: a thread has to read. */
  function replyNow(question: ReaderQuery): { readonly reply: unknown } | undefined {
    try {
      if (!isSmall()) return undefined
      // Rows as a message brings them, with the prototype of objects.
      if (question.kind === 'sql') return { reply: readNow(question.sql, ...question.args).map((row) => ({ ...row })) }
      if (question.kind === 'filter') return { reply: filterOf(connection as Connection).bits }
      if (question.kind !== 'block') return undefined
      const [row] = readNow('select bytes from block where key = ?', question.key)
      return row?.bytes === null ? undefined : { reply: row?.bytes }
    } catch {
      return undefined
    }
  }

  async function ask(thread: Thread<ReaderQuery>, question: ReaderQuery, what: string): Promise<unknown> {
    await ready
    try {
      const now = replyNow(question)
      return now ? now.reply : await thread.ask(question)
    } catch (error) {
      onError(error)
      throw failureOf(error, what)
    }
  }

  const readBy =
    (thread: Thread<ReaderQuery>): StoreReader['read'] =>
    async (sql, args = []) =>
      (await ask(thread, { kind: 'sql', sql, args }, 'read the list of uploads')) as readonly Row[]

  // Blocks.

  /** False where the index cannot be read, or its disk is slow. */
  function lacks(cid: CID): boolean {
    if (!connection || offered.has(blockKey(cid))) return false
    if (isFilterWhole && !filter.mayHave(cid.multihash.bytes)) return true
    const db = connection
    const began = clock.monotonic()
    try {
      if (!atOnce.may(began) && !isSmall()) return false
      return atOnce.run(began, () => db.get(indexSql, cid.multihash.bytes) === undefined)
    } catch (error) {
      onError(error)
      return false
    }
  }

  async function get(cid: CID): Promise<Uint8Array | undefined> {
    for (const read of offered.get(blockKey(cid)) ?? []) {
      const bytes = await Promise.resolve(read()).catch(() => undefined)
      if (bytes) return bytes
    }
    await ready
    if (lacks(cid)) return undefined
    return (await ask(reader, { kind: 'block', key: cid.multihash.bytes }, 'read an upload')) as Uint8Array | undefined
  }

  async function has(cid: CID): Promise<boolean> {
    if (offered.has(blockKey(cid))) return true
    await ready
    return !lacks(cid) && (await read(hasSql, [cid.multihash.bytes])).length > 0
  }

  const read = readBy(reader)
  return {
    ...{ ready, read, note, filter },
    blocks: { get, has, lacks },
    ledger: createLedger(read, readBy(thorough)),
    check: async () => (await ask(thorough, { kind: 'check' }, 'read the database')) as readonly string[],
    ask: (question) => ask(thorough, question, 'read the database'),
    offer(key, block) {
      const blocks = offered.get(key) ?? new Set()
      offered.set(key, blocks.add(block))
      return () => {
        blocks.delete(block)
        if (blocks.size === 0) offered.delete(key)
      }
    },
    damage() {
      if (found.size === 0) return undefined
      const [first] = found
      return `the store in ${folder} is damaged: ${first}${found.size > 1 ? `, and ${found.size - 1} more` : ''}; what can be read is served. Restore a backup, or stop cidgate and run \`cidgate doctor --salvage\``
    },
    async close() {
      isClosed = true
      await Promise.all([reader.close(), thorough.close()])
      await ready.catch(() => {})
      connection?.close()
      connection = undefined
    },
  }
}

const indexSql = 'select 1 from block where key = ?'
/** A row without bytes and without a file is of a block that is lost. */
const hasSql = 'select 1 from block where key = ? and (bytes is not null or car is not null)'

/** For a process that only reads: another one writes, and may just be making the database. */
export function createStoreReader(folder: string, options: { readonly clock: Clock; readonly log: Log }): StoreReader {
  let isClosed = false

  async function openSoon(): Promise<Connection> {
    for (let left = maxTries; ; left--) {
      try {
        return openHere(folder)
      } catch (error) {
        if (left <= 0 || isClosed) throw error
      }
      await options.clock.sleep(tryMs)
    }
  }

  const opening = openSoon().then((connection) => ({ connection, isFixed: false }))
  const { close, ...reading } = createReading(folder, { ...options, opening })
  return {
    ...reading,
    close() {
      isClosed = true
      return close()
    },
  }
}
