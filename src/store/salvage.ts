// A new database from what can still be read of a damaged one, of its daily copy, and of the CAR files, which name their roots. The
// damaged files are moved aside, and nothing of them is deleted.
import { closeSync, existsSync, fstatSync, linkSync, openSync, readdirSync, readSync, renameSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { decode } from '@ipld/dag-cbor'
import { varint } from 'multiformats'
import { CID } from 'multiformats/cid'
import { decode as decodeDigest } from 'multiformats/hashes/digest'
import { codec, maxBlockBytes, proves } from '../core/cid.ts'
import { dagBlocks } from '../ipld/block-links.ts'
import { type Connection, openForReading, placesIn } from './engine.ts'
import { cidOf } from './ledger.ts'
import { openDatabase } from './schema.ts'
import type { Row, Value } from './store.ts'
import { packIds } from './writer.ts'

export type Salvaged = {
  readonly uploads: number
  /** Of those, found by the roots of CAR files alone: they may have been deleted. */
  readonly byRoots: readonly string[]
  /** Blocks are missing here; another holder may have them. */
  readonly incomplete: readonly string[]
  /** Where the damaged files are. */
  readonly aside: string
}

/** The caller owns the folder. `name`: of the provider that holds what is here. */
export async function salvageStore(folder: string, name: string, now: number): Promise<Salvaged> {
  const places = placesIn(folder)
  const aside = join(folder, `damaged-${new Date(now).toISOString().replaceAll(':', '')}`)
  await mkdir(aside)
  const made = { file: join(aside, 'new.sqlite'), head: join(aside, 'new.sqlite-head') }
  const old = openOld(places.file)
  const sources = [old, old && isWhole(old) ? undefined : openOld(places.copy)].flatMap((one) => one ?? [])
  const { db } = openDatabase(made.file, made.head)
  let found: Omit<Salvaged, 'aside'>
  let unneeded: readonly string[]
  try {
    db.exec('begin')
    const pile = createPile(db)
    for (const source of sources) for (const row of rowsOf(source, 'block', 'key, bytes')) pile.addRow(row)
    const roots = new Map<string, CID>()
    for (const file of readdirSync(places.cars))
      for (const root of pile.addCar(places.cars, file)) roots.set(root.toString(), root)
    for (const source of sources) for (const table of copiedTables) copyRows(db, source, table)
    found = await addUploads(db, { sources, roots, pile, name, now })
    unneeded = pile.finish()
    db.exec('commit')
  } finally {
    for (const source of sources) source.close()
    db.close()
  }
  takePlace(made, places, aside)
  for (const file of unneeded) renameSync(join(places.cars, file), join(aside, file))
  return { ...found, aside }
}

/**
 * A salvage that dies before this leaves the damaged database in its place, to be salvaged again. The log of the old database
 * goes before the new one comes, which it would change.
 */
function takePlace(made: { readonly file: string; readonly head: string }, places: Places, aside: string): void {
  if (existsSync(places.file)) linkSync(places.file, join(aside, 'cidgate.sqlite'))
  for (const end of ['-wal', '-shm', '-head'])
    if (existsSync(places.file + end)) renameSync(places.file + end, join(aside, `cidgate.sqlite${end}`))
  renameSync(made.head, places.head)
  renameSync(made.file, places.file)
}

type Places = ReturnType<typeof placesIn>

const copiedTables = ['quota', 'record', 'announce_ad', 'announce_chunk', 'announced', 'announce_gone'] as const

function openOld(file: string): Connection | undefined {
  for (const isFixed of [false, true]) {
    try {
      const db = openForReading(file, { isFixed })
      db.get('select count(*) from sqlite_schema')
      return db
    } catch {
      // Its log may be damaged too; the file alone may be read.
    }
  }
  return undefined
}

/** The daily copy would bring back what was deleted since. */
function isWhole(db: Connection): boolean {
  try {
    db.get('select 1 from upload limit 1')
    return db.get('pragma quick_check(1)')?.quick_check === 'ok'
  } catch {
    return false
  }
}

/** Row by row: a damaged page costs what lies on it. */
function* rowsOf(db: Connection, table: string, columns: string): Generator<Row> {
  let last = 0
  try {
    last = Number(db.get('select seq from sqlite_sequence where name = ?', table)?.seq ?? 0)
  } catch {}
  for (let id = 1; id <= last; id++) {
    try {
      const row = db.get(`select id, ${columns} from ${table} where id = ?`, id)
      if (row) yield row
    } catch {}
  }
}

function copyRows(to: Connection, from: Connection, table: string): void {
  try {
    for (const row of from.iterate(`select * from ${table}`)) {
      const columns = Object.keys(row)
      const marks = columns.map(() => '?').join(', ')
      to.run(
        `insert or ignore into ${table} (${columns.join(', ')}) values (${marks})`,
        ...(Object.values(row) as Value[]),
      )
    }
  } catch {}
}

/** Blocks that hash to their names, with where they lie. */
function createPile(db: Connection) {
  const cars = new Map<number, string>()
  const insert = 'insert or ignore into block (key, bytes, car, at, length, uses) values (?, ?, ?, ?, ?, 0)'
  const handles = new Map<number, number>()

  function read(key: Uint8Array): { readonly id: number; readonly bytes: Uint8Array } | undefined {
    const row = db.get('select id, bytes, car, at, length from block where key = ?', key)
    if (!row) return undefined
    if (row.bytes instanceof Uint8Array) return { id: row.id as number, bytes: row.bytes }
    const bytes = new Uint8Array(row.length as number)
    readSync(handles.get(row.car as number) as number, bytes, 0, bytes.byteLength, row.at as number)
    return { id: row.id as number, bytes }
  }

  return {
    read,
    addRow({ key, bytes }: Row): void {
      if (!(key instanceof Uint8Array && bytes instanceof Uint8Array) || !provesMultihash(key, bytes)) return
      db.run(insert, key, bytes, null, null, bytes.byteLength)
    },
    /** Its roots; none where it is not whole. */
    addCar(folder: string, name: string): readonly CID[] {
      const handle = openSync(join(folder, name), 'r')
      const { size } = fstatSync(handle)
      const { id } = db.run('insert into car (name, bytes, at) values (?, ?, ?)', name, size, 0)
      cars.set(id, name)
      handles.set(id, handle)
      const { roots, sections } = readCar(handle, size)
      for (const { cid, at, length } of sections) {
        const bytes = new Uint8Array(length)
        readSync(handle, bytes, 0, length, at)
        if (proves(cid, bytes)) db.run(insert, cid.multihash.bytes, null, id, at, length)
      }
      return roots
    },
    /** Files that nothing needs. */
    finish(): readonly string[] {
      db.run('delete from block where uses = 0')
      for (const handle of handles.values()) closeSync(handle)
      const unneeded = [...cars].filter(
        ([id]) =>
          !db.get('select 1 from block where car = ? limit 1', id) && !db.get('select 1 from upload where car = ?', id),
      )
      for (const [id] of unneeded) db.run('delete from car where id = ?', id)
      return unneeded.map(([, name]) => name)
    },
  }
}

function provesMultihash(key: Uint8Array, bytes: Uint8Array): boolean {
  try {
    return proves(CID.createV1(codec.raw, decodeDigest(key)), bytes)
  } catch {
    return false
  }
}

type Section = { readonly cid: CID; readonly at: number; readonly length: number }

/** A file that was cut has no header, and names no root. */
function readCar(
  handle: number,
  size: number,
): { readonly roots: readonly CID[]; readonly sections: readonly Section[] } {
  const sections: Section[] = []
  let roots: readonly CID[] = []
  try {
    const head = piece(handle, 0, 51)
    let at = Number(head.readBigUInt64LE(27))
    const end = Math.min(size, at + Number(head.readBigUInt64LE(35)))
    const [headerBytes, lengthBytes] = varint.decode(piece(handle, at, 9))
    roots = (decode(piece(handle, at + lengthBytes, headerBytes)) as { readonly roots: readonly CID[] }).roots
    for (at += lengthBytes + headerBytes; at < end; ) {
      const begin = piece(handle, at, 128)
      const [length, before] = varint.decode(begin)
      const [cid, rest] = CID.decodeFirst(begin.subarray(before))
      const cidBytes = begin.byteLength - before - rest.byteLength
      if (length - cidBytes > maxBlockBytes) break
      sections.push({ cid, at: at + before + cidBytes, length: length - cidBytes })
      at += before + length
    }
  } catch {
    // Sections that were read so far count.
  }
  return { roots, sections }
}

function piece(handle: number, at: number, length: number): Buffer {
  const bytes = Buffer.alloc(length)
  return bytes.subarray(0, readSync(handle, bytes, 0, length, at))
}

type Sources = {
  readonly sources: readonly Connection[]
  readonly roots: ReadonlyMap<string, CID>
  readonly pile: ReturnType<typeof createPile>
  readonly name: string
  readonly now: number
}

async function addUploads(
  db: Connection,
  { sources, roots, pile, name, now }: Sources,
): Promise<Omit<Salvaged, 'aside'>> {
  const incomplete: string[] = []
  const byRoots: string[] = []
  let uploads = 0
  for (const source of sources)
    for (const row of rowsOf(source, 'upload', 'cid, name, profile, bytes, car_bytes, at, blocks is not null here')) {
      const cid = readCid(row)
      if (!cid || has(db, cid)) continue
      const ids = row.here === 1 ? await idsBelow(cid, pile) : undefined
      const holders = holdersOf(source, row.id as number)
      if (row.here === 1 && !ids) incomplete.push(cid.toString())
      const id = addUpload(
        db,
        [row.id as number, cid],
        [row.name, row.profile, row.bytes, row.car_bytes, row.at] as Value[],
        ids,
      )
      for (const one of holders)
        if (ids || one.kind !== 'here')
          db.run(
            holderSql,
            id,
            ...['name', 'kind', 'state', 'tries', 'not_before', 'class', 'why'].map((key) => one[key] ?? null),
          )
      uploads++
    }
  for (const root of roots.values()) {
    if (has(db, root)) continue
    const ids = await idsBelow(root, pile)
    if (!ids) {
      incomplete.push(root.toString())
      continue
    }
    const bytes = sum(db, ids)
    const profile = root.version === 0 ? 'unixfs-v0-2015' : 'unixfs-v1-2025'
    const id = addUpload(db, [null, root], [null, profile, bytes, bytes, now], ids)
    db.run(holderSql, id, name, 'here', 'pinned', 0, 0, null, null)
    byRoots.push(root.toString())
    uploads++
  }
  return { uploads, byRoots, incomplete }
}

const holderSql = `insert or ignore into holder (upload, name, kind, state, tries, not_before, class, why)
values (?, ?, ?, ?, ?, ?, ?, ?)`

function readCid({ cid, profile }: Row): CID | undefined {
  try {
    return cidOf(cid as Uint8Array, profile as string)
  } catch {
    return undefined
  }
}

const has = (db: Connection, cid: CID): boolean =>
  db.get('select 1 from upload where cid = ?', cid.toV1().bytes) !== undefined

function holdersOf(db: Connection, upload: number): readonly Row[] {
  try {
    return db.all('select * from holder where upload = ?', upload)
  } catch {
    return []
  }
}

const sum = (db: Connection, ids: readonly number[]): number =>
  ids.reduce((bytes, id) => bytes + Number(db.get('select length from block where id = ?', id)?.length ?? 0), 0)

/** An upload keeps its id, by which announcements name it. */
function addUpload(
  db: Connection,
  [old, cid]: readonly [number | null, CID],
  facts: readonly Value[],
  ids: readonly number[] | undefined,
): number {
  const own = old !== null && db.get('select 1 from upload where id = ?', old) ? null : old
  const { id } = db.run(
    'insert into upload (id, cid, name, profile, bytes, car_bytes, at, car, blocks) values (?, ?, ?, ?, ?, ?, ?, ?, ?)',
    ...[own, cid.toV1().bytes, ...facts, ids ? carOf(db, ids) : null, ids ? packIds(ids) : null],
  )
  for (const one of ids ?? []) db.run('update block set uses = uses + 1 where id = ?', one)
  return id
}

function carOf(db: Connection, ids: readonly number[]): number | null {
  for (const id of ids) {
    const car = db.get('select car from block where id = ?', id)?.car
    if (typeof car === 'number') return car
  }
  return null
}

/** Undefined where one of them is missing. */
async function idsBelow(root: CID, pile: ReturnType<typeof createPile>): Promise<number[] | undefined> {
  const ids = new Set<number>()
  const read = (cid: CID): Uint8Array | undefined => {
    const block = pile.read(cid.multihash.bytes)
    if (!block || !proves(cid, block.bytes)) return undefined
    ids.add(block.id)
    return block.bytes
  }
  for await (const { bytes } of dagBlocks(root, read)) if (!bytes) return undefined
  return [...ids]
}
