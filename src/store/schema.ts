// The tables of the store. Rowids everywhere: a tree with hashes as its keys takes three times the space. The text stays below
// 3,900 bytes, so that the first page of the file describes the whole database: a copy of that page mends it.
import { closeSync, openSync, readFileSync, readSync, writeFileSync, writeSync } from 'node:fs'
import { type Connection, openForWriting, openInMemory, troubleOf } from './engine.ts'

// `car` null: the bytes of a block are in its row. `blocks` of an upload: the ids of its blocks, 6 bytes each; null: they are not
// here any more. `uses` counts the uploads that list a block. `loose`: blocks that count one use too many, of uploads that are
// accepted or deleted in several commits.
const tables = `
create table car (id integer primary key, name text not null unique, bytes int, at int);
create table upload (id integer primary key autoincrement, cid blob not null unique, name text, profile text, bytes int, car_bytes int, at int, car int, blocks blob);
create index upload_car on upload (car) where car is not null;
create table holder (upload int, name text, kind text, state text, tries int, not_before int, class text, why text, primary key (upload, name)) without rowid;
create index holder_due on holder (name, not_before) where state = 'pending';
create table block (id integer primary key autoincrement, key blob not null unique, bytes blob, car int, at int, length int, uses int);
create index block_car on block (car) where car is not null;
create table loose (id integer primary key autoincrement, car int, ids blob);
create table quota (day int, token text, uploads int, bytes int, primary key (day, token)) without rowid;
create table record (name text primary key, bytes blob, at int);
create index record_at on record (at);
create table announce_ad (seq integer primary key, cid text not null unique, bytes blob, context int);
create table announce_chunk (cid text not null, bytes blob, context int, unique (cid, context));
create index announce_chunk_context on announce_chunk (context);
create table announced (upload integer primary key, cid blob, context int);
create index announced_context on announced (context);
create table announce_gone (upload integer primary key);
create trigger announce_gone_here after delete on holder when old.kind = 'here' begin insert or ignore into announce_gone select upload from announced where upload = old.upload; end;
create view uploads as select u.id, hex(u.cid) cid, u.name, u.profile, u.bytes, datetime(u.at / 1000, 'unixepoch') at, c.name car, group_concat(h.name || ' ' || h.state, ', ') holders from upload u left join car c on c.id = u.car left join holder h on h.upload = u.id group by u.id;
create view waiting as select h.name holder, hex(u.cid) cid, u.bytes, h.tries, datetime(h.not_before / 1000, 'unixepoch') not_before, h.why from holder h join upload u on u.id = h.upload where h.state = 'pending';
create view cars as select c.name, c.bytes, count(b.id) blocks, sum(b.length) used from car c left join block b on b.car = c.id group by c.id;
`

const version = 1
const pageBytes = 4096

function makeTables(db: Connection): void {
  db.exec(`begin; ${tables} pragma user_version = ${version}; commit`)
}

const describe = (db: Connection): string =>
  JSON.stringify(db.all('select name, sql from sqlite_schema where sql is not null order by name'))

function expected(): string {
  const fresh = openInMemory()
  makeTables(fresh)
  const text = describe(fresh)
  fresh.close()
  return text
}

/**
 * Opens the database for writing; makes it where it is missing. `head` is a copy of its first page, which takes the place of
 * a damaged one: the free list is then forgotten, which costs the room of its pages and nothing else.
 */
export function openDatabase(file: string, head: string): { readonly db: Connection; readonly isMended: boolean } {
  try {
    return { db: openWhole(file, head), isMended: false }
  } catch (error) {
    if (troubleOf(error) !== 'damaged' && !(error instanceof WrongTables)) throw error
    if (!mendHead(file, head)) throw error
    return { db: openWhole(file, head), isMended: true }
  }
}

class WrongTables extends Error {
  readonly errcode = 11
}

function openWhole(file: string, head: string): Connection {
  const db = openForWriting(file)
  try {
    if (db.get('select count(*) n from sqlite_schema')?.n === 0) makeTables(db)
    else if (describe(db) !== expected()) throw new WrongTables('the tables of the database are not as they were made')
    keepHead(db, file, head)
    return db
  } catch (error) {
    db.close()
    throw error
  }
}

function keepHead(db: Connection, file: string, head: string): void {
  try {
    if (readFileSync(head).byteLength === pageBytes) return
  } catch {}
  db.exec('pragma wal_checkpoint(truncate)')
  try {
    writeFileSync(head, readHead(file), { flush: true })
  } catch {
    // A disk without room: the next start tries again.
  }
}

function readHead(file: string): Buffer {
  const page = Buffer.alloc(pageBytes)
  const handle = openSync(file, 'r')
  try {
    readSync(handle, page, 0, pageBytes, 0)
  } finally {
    closeSync(handle)
  }
  return page
}

const sizeAt = 28
const freeListAt = 32
const counterAt = 24
const validForAt = 92

function mendHead(file: string, head: string): boolean {
  let page: Buffer
  try {
    page = readFileSync(head)
  } catch {
    return false
  }
  if (page.byteLength !== pageBytes) return false
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

/** A new file that is whole when it is closed; the caller syncs it. */
function openCopy(file: string): Connection {
  const db = openForWriting(file)
  db.exec('pragma journal_mode = off; pragma synchronous = off')
  makeTables(db)
  return db
}

// A copy of the database without the bytes of blocks: what salvage has where the database itself is beyond use.

const copied: Readonly<Record<string, readonly string[]>> = {
  car: ['id', 'name', 'bytes', 'at'],
  upload: ['id', 'cid', 'name', 'profile', 'bytes', 'car_bytes', 'at', 'car', 'blocks'],
  holder: ['upload', 'name', 'kind', 'state', 'tries', 'not_before', 'class', 'why'],
  block: ['id', 'key', 'car', 'at', 'length', 'uses'],
  quota: ['day', 'token', 'uploads', 'bytes'],
  record: ['name', 'bytes', 'at'],
  announce_ad: ['seq', 'cid', 'bytes', 'context'],
  announce_chunk: ['cid', 'bytes', 'context'],
  announced: ['upload', 'cid', 'context'],
  announce_gone: ['upload'],
}

export function copyLedger(from: Connection, to: string): void {
  const copy = openCopy(to)
  try {
    from.exec('begin')
    copy.exec('begin')
    for (const [table, columns] of Object.entries(copied)) {
      const sql = `insert into ${table} (${columns.join(', ')}) values (${columns.map(() => '?').join(', ')})`
      for (const row of from.iterate(`select ${columns.join(', ')} from ${table}`))
        copy.run(sql, ...columns.map((column) => row[column] ?? null))
    }
    copy.exec('commit')
  } finally {
    from.exec('rollback')
    copy.close()
  }
}
