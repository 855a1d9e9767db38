// SQLite, as the store uses it: the only file that names the engine. One connection writes and
// makes every checkpoint, since SQLite before 3.51.3 can lose a commit when two connections do so
// in the same instant. All others are read-only, but for that of backup.ts, which only locks and
// rolls back.
import {
  closeSync,
  fsyncSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  type StatsFs,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { codeOf, remedyOf } from '../core/disk/files.ts'
import { Failure } from '../core/failure.ts'
import type { Row, Value } from './store.ts'

export interface Connection {
  all(sql: string, ...args: readonly Value[]): readonly Row[]
  get(sql: string, ...args: readonly Value[]): Row | undefined
  /** Returns the id of the row that was inserted last. */
  run(sql: string, ...args: readonly Value[]): number
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

/** For a copy whose schema is changed to reach pages that it no longer leads to. */
export function openForRepair(file: string): Connection {
  const options = { defensive: false } as object
  const first = 'pragma wal_checkpoint(truncate); pragma journal_mode = off; pragma synchronous = off'
  return opened(() => new (sqlite().DatabaseSync)(file, options), `${first}; pragma writable_schema = on`)
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
    run: (sql, ...args) => Number(prepared(sql).run(...(args as Value[])).lastInsertRowid),
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

type Trouble = 'taken' | 'full' | 'damaged' | 'read-only' | 'no-locks' | 'failing' | 'unopenable'

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
    return new Failure('disk-full', `disk full: no space to ${what}; free space on the disk of the data folder`, {
      source: 'ours',
      cause: error,
      facts: { class: 'quota' },
    })
  const code = codeOf(error)
  const isOutOfFiles = code === 'EMFILE' || code === 'ENFILE'
  const said = code === undefined || code === 'ERR_SQLITE_ERROR' ? (error as Error)?.message : code
  const why = (error instanceof Damaged && error.remedy) || (trouble && words[trouble]) || `${said}; ${remedyOf(error)}`
  return new Failure(isOutOfFiles ? 'overloaded' : 'disk-error', `cannot ${what} in the data folder: ${why}`, {
    source: 'ours',
    cause: error,
    ...(isOutOfFiles && { retryAfterMs: 1000 }),
  })
}

// Where a store keeps what in its folder.

export const placesIn = (folder: string) => ({
  file: join(folder, 'cidgate.sqlite'),
  /** A copy of the first page. */
  head: join(folder, 'cidgate.sqlite-head'),
  /** Made daily, without the bytes of blocks. */
  copy: join(folder, 'cidgate-ledger.sqlite'),
  /** Space for deletions on a full disk. */
  reserve: join(folder, 'cidgate.reserve'),
  /** A CAR file for each large request. */
  cars: join(folder, 'uploads'),
})

const mib = 1024 * 1024

/** So much of a disk is kept free for deletions: a hundredth, at most 32 MiB. */
export function spaceIn({ bavail, blocks, bsize }: StatsFs): { readonly free: number; readonly kept: number } {
  const kept = Math.min(32 * mib, Math.max(mib, Math.floor((blocks * bsize) / 100)))
  return { free: bavail * bsize, kept }
}

/** As a full disk says it. */
export const noSpace = { message: 'database or disk is full', code: 'ENOSPC' } as const

export type Places = ReturnType<typeof placesIn>

/**
 * Where a CAR file says by a byte, once an upload of it was accepted, that it was: right behind its
 * header.
 */
export const markAt = 51

// The tables. Rowids everywhere: a tree with hashes as its keys takes three times the space. The
// text stays below 3,900 bytes, so that the first page of the file describes the whole database: a
// copy of that page mends it.
//
// `car` null: the bytes of a block are in its row; without bytes: they are lost. `blocks` of an
// upload: the ids of its blocks, 6 bytes each; null: they are not here any more. `uses` counts the
// uploads that list a block. `loose`: blocks that count one use too many, of uploads that are
// accepted or deleted in several commits. The words in capitals are as SQLite keeps them.
const tables = `
CREATE TABLE car (id integer primary key autoincrement, name text not null unique, bytes int, at int);
CREATE TABLE upload (id integer primary key autoincrement, cid blob not null unique, name text, profile text, bytes int, car_bytes int, at int, car int, blocks blob);
CREATE INDEX upload_car on upload (car) where car is not null;
CREATE TABLE holder (upload int, name text, kind text, state text, tries int, not_before int, class text, why text, primary key (upload, name)) without rowid;
CREATE INDEX holder_due on holder (name, not_before) where state = 'pending';
CREATE TABLE block (id integer primary key autoincrement, key blob not null unique, bytes blob, car int, at int, length int, uses int);
CREATE INDEX block_car on block (car) where car is not null;
CREATE TABLE loose (id integer primary key autoincrement, car int, ids blob);
CREATE TABLE quota (day int, token text, uploads int, bytes int, primary key (day, token)) without rowid;
CREATE TABLE record (name text primary key, bytes blob, at int);
CREATE INDEX record_at on record (at);
CREATE TABLE announce_ad (seq integer primary key, cid text not null unique, bytes blob, context int);
CREATE TABLE announce_chunk (cid text not null, bytes blob, context int, unique (cid, context));
CREATE INDEX announce_chunk_context on announce_chunk (context);
CREATE TABLE announced (upload integer primary key, cid blob, context int);
CREATE INDEX announced_context on announced (context);
CREATE TABLE announce_gone (upload integer primary key);
CREATE TRIGGER announce_gone_here after delete on holder when old.kind = 'here' begin insert or ignore into announce_gone select upload from announced where upload = old.upload; end;
CREATE VIEW uploads as select u.id, hex(u.cid) cid, u.name, u.profile, u.bytes, datetime(u.at / 1000, 'unixepoch') at, c.name car, group_concat(h.name || ' ' || h.state, ', ') holders from upload u left join car c on c.id = u.car left join holder h on h.upload = u.id group by u.id;
CREATE VIEW waiting as select h.name holder, hex(u.cid) cid, u.bytes, h.tries, datetime(h.not_before / 1000, 'unixepoch') not_before, h.why from holder h join upload u on u.id = h.upload where h.state = 'pending';
CREATE VIEW cars as select c.name, c.bytes, count(b.id) blocks, sum(b.length) used from car c left join block b on b.car = c.id group by c.id;
`

export const pageBytes = 4096

const makeTables = (db: Connection): void => db.exec(`begin; ${tables} pragma user_version = 1; commit`)

const tablesIn = (db: Connection): string =>
  db
    .all("select sql from sqlite_schema where sql is not null and name not like 'sqlite_%' order by rowid")
    .map(({ sql }) => `${sql};\n`)
    .join('')

/**
 * Opens the database for writing; makes it where it is missing. `head` is a copy of its first page,
 * which takes the place of a damaged one: the free list is then forgotten, which costs the space of
 * its pages and nothing else.
 */
export function openDatabase(file: string, head: string): { readonly db: Connection; readonly isMended: boolean } {
  try {
    return { db: openWhole(file, head), isMended: false }
  } catch (error) {
    if (troubleOf(error) !== 'damaged' || !mendHead(file, head)) throw error
    return { db: openWhole(file, head), isMended: true }
  }
}

/** Is to the engine as a damaged page. `remedy`: for the client, where it is another one. */
export class Damaged extends Error {
  readonly errcode = 11
  readonly remedy: string | undefined

  constructor(message: string, remedy?: string) {
    super(message)
    this.remedy = remedy
  }
}

function openWhole(file: string, head: string): Connection {
  const db = openForWriting(file)
  try {
    if (db.get('select count(*) n from sqlite_schema')?.n === 0) makeTables(db)
    else if (`\n${tablesIn(db)}` !== tables) throw new Damaged('the tables of the database are not as they were made')
    keepHead(db, file, head)
    return db
  } catch (error) {
    db.close()
    throw error
  }
}

const fileOf = (path: string): Buffer | undefined => {
  try {
    return readFileSync(path)
  } catch {
    return undefined
  }
}

function keepHead(db: Connection, file: string, head: string): void {
  if (fileOf(head)?.byteLength === pageBytes) return
  db.exec('pragma wal_checkpoint(truncate)')
  const page = Buffer.alloc(pageBytes)
  const handle = openSync(file, 'r')
  try {
    readSync(handle, page, 0, pageBytes, 0)
    writeFileSync(head, page, { flush: true })
  } catch {
    // The disk may be full: the next start tries again.
  } finally {
    closeSync(handle)
  }
}

const sizeAt = 28
const freeListAt = 32
const counterAt = 24
const validForAt = 92

function mendHead(file: string, head: string): boolean {
  const page = fileOf(head)
  if (page?.byteLength !== pageBytes) return false
  // A size that is not valid for the counter is taken from the file itself.
  page.writeUInt32BE(0, sizeAt)
  page.writeUInt32BE((page.readUInt32BE(counterAt) + 1) >>> 0, validForAt)
  page.fill(0, freeListAt, freeListAt + 8)
  const handle = openSync(file, 'r+')
  try {
    writeSync(handle, page, 0, pageBytes, 0)
  } finally {
    closeSync(handle)
  }
  return true
}

/** Adds a row, unless there is one with its key. Returns its id. */
export function insert(db: Connection, table: string, row: Row): number {
  const columns = Object.keys(row)
  const marks = columns.map(() => '?')
  return db.run(`insert or ignore into ${table} (${columns}) values (${marks})`, ...Object.values(row))
}

export const ledgerTables = ['quota', 'record', 'announce_ad', 'announce_chunk', 'announced', 'announce_gone'] as const
const blockColumns = 'id, key, car, at, length, uses'

/**
 * A copy of the database without the bytes of blocks: what salvage has where the database itself is
 * beyond use.
 */
export function copyLedger(file: string, to: string): void {
  const part = `${to}.part`
  rmSync(part, { force: true })
  const copy = openForWriting(part)
  try {
    copy.exec('pragma journal_mode = off; pragma synchronous = off')
    makeTables(copy)
    copy.run('attach ? as old', `${pathToFileURL(file)}?mode=ro`)
    const rows = ['car', 'upload', 'holder', ...ledgerTables].map(
      (table) => `insert into ${table} select * from old.${table};`,
    )
    copy.exec(
      `begin; ${rows.join(' ')} insert into block (${blockColumns}) select ${blockColumns} from old.block; commit; detach old`,
    )
  } finally {
    copy.close()
  }
  const handle = openSync(part, 'r+')
  fsyncSync(handle)
  closeSync(handle)
  renameSync(part, to)
}

/** CAR files that no upload names. */
export const loneCarsSql = 'select id from car where not exists (select 1 from upload where upload.car = car.id)'

const idBytes = 6

export function packIds(ids: readonly number[]): Buffer {
  const packed = Buffer.allocUnsafe(ids.length * idBytes)
  for (const [index, id] of ids.entries()) packed.writeUIntBE(id, index * idBytes, idBytes)
  return packed
}

export function unpackIds(packed: Uint8Array): number[] {
  const view = Buffer.from(packed.buffer, packed.byteOffset, packed.byteLength)
  return Array.from({ length: Math.floor(view.byteLength / idBytes) }, (_, index) =>
    view.readUIntBE(index * idBytes, idBytes),
  )
}

/** Each key of packed blocks, without a copy. */
export function* keysIn(keys: Uint8Array): Generator<Uint8Array> {
  for (let at = 0; at < keys.byteLength; ) {
    const end = at + 1 + (keys[at] as number)
    yield keys.subarray(at + 1, end)
    at = end
  }
}

/**
 * Tells keys that no block has: a bit for each ending of a key, since hashes of every kind end in
 * random bytes.
 */
export class KeyFilter {
  readonly bits = new Uint32Array(2 ** 18)

  add(key: Uint8Array): void {
    const place = placeOf(key)
    ;(this.bits[place >> 5] as number) |= 1 << (place & 31)
  }

  addAll(bits: Uint32Array): void {
    for (let at = 0; at < bits.length; at++) (this.bits[at] as number) |= bits[at] as number
  }

  mayHave(key: Uint8Array): boolean {
    const place = placeOf(key)
    return ((this.bits[place >> 5] as number) & (1 << (place & 31))) !== 0
  }
}

const placeOf = (key: Uint8Array): number =>
  (((key.at(-3) ?? 0) << 16) | ((key.at(-2) ?? 0) << 8) | (key.at(-1) ?? 0)) & 0x7fffff

export function filterOf(db: Connection): KeyFilter {
  const filter = new KeyFilter()
  for (const { key } of db.iterate('select key from block')) filter.add(key as Uint8Array)
  return filter
}
