// SQLite, as the store uses it: the only file that names the engine. One connection writes and makes every checkpoint, since
// SQLite before 3.51.3 can lose a commit when two connections do so in the same instant; all others are read-only.

import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { codeOf, remedyOf } from '../core/disk/files.ts'
import { Failure } from '../core/failure.ts'
import type { Row, Value } from './store.ts'

export interface Connection {
  all(sql: string, ...args: readonly Value[]): readonly Row[]
  get(sql: string, ...args: readonly Value[]): Row | undefined
  run(sql: string, ...args: readonly Value[]): { readonly changes: number; readonly id: number }
  iterate(sql: string, ...args: readonly Value[]): Iterable<Row>
  /** Several statements without arguments. */
  exec(sql: string): void
  readonly isInTransaction: boolean
  close(): void
}

type Database = InstanceType<typeof import('node:sqlite').DatabaseSync>

const cachedStatements = 200
const writing = `pragma journal_mode = wal; pragma synchronous = full; pragma fullfsync = on;
pragma journal_size_limit = 67108864; pragma cache_size = -8192; pragma cell_size_check = on; pragma trusted_schema = off`

/** Makes the file where it is missing. A commit is on the platter when it returns. */
export function openForWriting(file: string): Connection {
  return opened(() => new (sqlite().DatabaseSync)(file, { timeout: 10_000 }), writing)
}

/** `isFixed`: nobody writes, and the disk may be read-only. */
export function openForReading(file: string, { isFixed = false, timeout = 5000 } = {}): Connection {
  const url = pathToFileURL(file)
  if (isFixed) url.searchParams.set('immutable', '1')
  return opened(() => new (sqlite().DatabaseSync)(url, { readOnly: true, timeout }), 'pragma cell_size_check = on')
}

/** Locks an empty file for this process, as long as the connection is open. Never waits. */
export function openLock(file: string): Connection {
  return opened(() => new (sqlite().DatabaseSync)(file), 'pragma journal_mode = memory; begin exclusive')
}

function opened(open: () => Database, first: string): Connection {
  const database = open()
  try {
    database.exec(first)
  } catch (error) {
    database.close()
    throw error
  }
  const statements = new Map<string, ReturnType<Database['prepare']>>()
  const prepared = (sql: string) => {
    const known = statements.get(sql)
    if (known) return known
    if (statements.size >= cachedStatements) statements.clear()
    const made = database.prepare(sql)
    statements.set(sql, made)
    return made
  }
  return {
    all: (sql, ...args) => prepared(sql).all(...(args as Value[])) as Row[],
    get: (sql, ...args) => prepared(sql).get(...(args as Value[])) as Row | undefined,
    run(sql, ...args) {
      const { changes, lastInsertRowid } = prepared(sql).run(...(args as Value[]))
      return { changes: Number(changes), id: Number(lastInsertRowid) }
    },
    iterate: (sql, ...args) => database.prepare(sql).iterate(...(args as Value[])) as Iterable<Row>,
    exec: (sql) => database.exec(sql),
    get isInTransaction() {
      return database.isTransaction
    },
    close: () => database.close(),
  }
}

/** Suppresses Node's warning that node:sqlite is experimental: operators cannot act on it. */
function sqlite(): typeof import('node:sqlite') {
  const { emitWarning } = process
  process.emitWarning = () => {}
  try {
    const found = process.getBuiltinModule('node:sqlite')
    if (!found) throw new Error('this Node was built without node:sqlite')
    return found
  } finally {
    process.emitWarning = emitWarning
  }
}

export type Trouble = 'taken' | 'full' | 'damaged' | 'read-only' | 'no-locks' | 'failing' | 'unopenable'

// Primary result codes of SQLite.
const troubles: Readonly<Record<number, Trouble>> = {
  5: 'taken',
  6: 'taken',
  8: 'read-only',
  10: 'failing',
  11: 'damaged',
  13: 'full',
  14: 'unopenable',
  22: 'no-locks',
  26: 'damaged',
}

/** Undefined for an error that is not the engine's or not about the disk. */
export function troubleOf(error: unknown): Trouble | undefined {
  if (!(error instanceof Error)) return undefined
  if (['ENOSPC', 'EDQUOT'].includes(codeOf(error) ?? '')) return 'full'
  return 'errcode' in error ? troubles[Number(error.errcode) & 0xff] : undefined
}

const words: Readonly<Partial<Record<Trouble, string>>> = {
  'read-only': 'the disk of the data folder is read-only; mount it writable',
  damaged: 'the database of the data folder is damaged; restore a backup, or run `cidgate doctor --salvage`',
}

/** For the client: what could not be done, and the next step for the operator. */
export function failureOf(error: unknown, what: string): Failure {
  if (error instanceof Failure) return error
  const trouble = troubleOf(error)
  if (trouble === 'full')
    return new Failure('disk-full', `disk full: no room to ${what}; free space on the disk of the data folder`, {
      source: 'ours',
      cause: error,
      facts: { class: 'quota' },
    })
  const code = codeOf(error)
  const isOutOfFiles = code === 'EMFILE' || code === 'ENFILE'
  const said = code === undefined || code === 'ERR_SQLITE_ERROR' ? (error as Error)?.message : code
  const why = (trouble && words[trouble]) ?? `${said}; ${remedyOf(error)}`
  return new Failure(isOutOfFiles ? 'overloaded' : 'disk-error', `cannot ${what} in the data folder: ${why}`, {
    source: 'ours',
    cause: error,
    ...(isOutOfFiles && { retryAfterMs: 1000 }),
  })
}

// Where a store keeps what in its folder.

export const placesIn = (folder: string) => ({
  file: join(folder, 'cidgate.sqlite'),
  /** Of the first page. */
  head: join(folder, 'cidgate.sqlite-head'),
  /** Made daily, without the bytes of blocks. */
  copy: join(folder, 'cidgate-ledger.sqlite'),
  /** Space for deletions on a full disk. */
  reserve: join(folder, 'cidgate.reserve'),
  /** A CAR file for each large request. */
  cars: join(folder, 'uploads'),
})

export type Places = ReturnType<typeof placesIn>

/** Where a CAR file says by a byte, once an upload of it was accepted, that it was: right behind its header. */
export const markAt = 51
