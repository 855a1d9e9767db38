// A new database from what can still be read of a damaged one, of its daily copy, and of the CAR
// files, which name their roots. The damaged files are moved aside, and nothing of them is deleted.
import {
  closeSync,
  copyFileSync,
  createReadStream,
  existsSync,
  fstatSync,
  linkSync,
  openSync,
  readdirSync,
  readSync,
  renameSync,
  rmSync,
} from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { CID } from 'multiformats/cid'
import { decode as decodeDigest } from 'multiformats/hashes/digest'
import { codec, proves } from '../core/cid.ts'
import { readCar } from '../core/wire/car-stream.ts'
import { dagBlocks } from '../ipld/block-links.ts'
import { carSectionBytes } from '../ipld/car.ts'
import { damagedPages } from './check.ts'
import {
  type Connection,
  insert,
  ledgerTables,
  markAt,
  openDatabase,
  openForReading,
  openForRepair,
  type Places,
  packIds,
  pageBytes,
  placesIn,
} from './database.ts'
import { firstBlockAt } from './intake.ts'
import { cidOf } from './ledger.ts'
import type { Row } from './store.ts'

type Salvaged = {
  readonly uploads: number
  /** Found by the roots of CAR files alone: they may have been deleted. */
  readonly byRoots: readonly string[]
  /** Blocks are missing here: reading them is an error until they are uploaded again. */
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
  // The daily copy would bring back what was deleted since.
  const whole = old && isWhole(old) ? old : undefined
  const sources = [old, whole ? undefined : openOld(places.copy)].filter((one) => one !== undefined)
  const { db } = openDatabase(made.file, made.head)
  const pile = createPile(db, places.cars)
  const byRoots: string[] = []
  const incomplete: string[] = []
  let uploads: number
  let unneeded: readonly string[]
  try {
    db.exec('begin')
    for (const source of sources) for (const row of rowsOf(source, 'block', 'key, bytes')) pile.addRow(row)
    if (old && !whole) for (const row of leafRows(places.file, join(aside, 'leaves.sqlite'))) pile.addRow(row)
    const roots: CID[] = []
    for (const file of readdirSync(places.cars)) {
      const found = await pile.addCar(file)
      // An undamaged database names every upload of the files that it knows.
      if (!whole?.get('select 1 from car where name = ?', file)) roots.push(...found)
    }
    for (const source of sources) {
      for (const table of ledgerTables) copyRows(db, source, table)
      for (const row of rowsOf(source, 'upload', 'cid, name, profile, bytes, car_bytes, at, blocks')) {
        const cid = readCid(row)
        if (!cid || has(db, cid)) continue
        const { isComplete, car, blocks } = row.blocks ? await pile.list(cid) : nothingListed
        if (!isComplete) incomplete.push(cid.toString())
        // An upload keeps its id, by which announcements name it.
        const isTaken = db.get('select 1 from upload where id = ?', row.id as number) !== undefined
        const upload = insert(db, 'upload', { ...row, id: isTaken ? null : (row.id as number), car, blocks })
        for (const holder of holdersOf(source, row.id as number)) insert(db, 'holder', { ...holder, upload })
      }
    }
    for (const root of roots) {
      if (has(db, root)) continue
      const { isComplete, bytes, ...listed } = await pile.list(root)
      if (!isComplete) incomplete.push(root.toString())
      const profile = root.version === 0 ? 'unixfs-v0-2015' : 'unixfs-v1-2025'
      const facts = { cid: root.toV1().bytes, profile, bytes, car_bytes: bytes, at: now }
      const upload = insert(db, 'upload', { ...facts, ...listed })
      insert(db, 'holder', { upload, name, kind: 'here', state: 'pinned', tries: 0, not_before: 0 })
      byRoots.push(root.toString())
    }
    unneeded = pile.finish()
    uploads = Number(db.get('select count(*) n from upload')?.n)
    db.exec('commit')
  } finally {
    for (const one of [...sources, db]) one.close()
  }
  takePlace(made, places, aside)
  for (const file of unneeded) renameSync(join(places.cars, file), join(aside, file))
  return { uploads, byRoots, incomplete, aside }
}

/**
 * A salvage that dies before this leaves the damaged database in its place, to be salvaged again.
 * The log of the old database goes before the new one comes, which it would change.
 */
function takePlace(made: { readonly file: string; readonly head: string }, places: Places, aside: string): void {
  if (existsSync(places.file)) linkSync(places.file, join(aside, 'cidgate.sqlite'))
  for (const end of ['-wal', '-shm', '-head'])
    if (existsSync(places.file + end)) renameSync(places.file + end, join(aside, `cidgate.sqlite${end}`))
  renameSync(made.head, places.head)
  renameSync(made.file, places.file)
}

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

function isWhole(db: Connection): boolean {
  try {
    db.get('select 1 from upload limit 1')
    return damagedPages(db).length === 0
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

const tableLeaf = 0x0d

/**
 * The rows on every leaf of the database, also below a damaged page: in a copy, each leaf in turn
 * is taken for the root of the table. Rows of other tables do not hash to their keys. None where
 * there is no space for the copy.
 */
function* leafRows(file: string, copy: string): Generator<Row> {
  try {
    for (const end of ['', '-wal']) if (existsSync(file + end)) copyFileSync(file + end, copy + end)
    const db = openForRepair(copy)
    const handle = openSync(copy, 'r')
    try {
      const pages = fstatSync(handle).size / pageBytes
      for (let page = 2; page <= pages; page++) {
        if (piece(handle, (page - 1) * pageBytes, 1)[0] !== tableLeaf) continue
        try {
          db.run("update sqlite_schema set rootpage = ? where name = 'block'", page)
          db.exec('pragma writable_schema = reset; pragma writable_schema = on')
          yield* db.iterate('select key, bytes from block')
        } catch {}
      }
    } finally {
      closeSync(handle)
      db.close()
    }
  } catch {}
  for (const end of ['', '-wal', '-shm']) rmSync(copy + end, { force: true })
}

function copyRows(to: Connection, from: Connection, table: string): void {
  try {
    for (const row of from.iterate(`select * from ${table}`)) insert(to, table, row)
  } catch {}
}

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

/** Its blocks are elsewhere. */
const nothingListed = { isComplete: true, car: null, blocks: null } as const

/** Blocks that hash to their names, with where they lie. */
function createPile(db: Connection, folder: string) {
  const handles = new Map<number, { readonly name: string; readonly handle: number }>()

  const add = (key: Uint8Array, bytes: Uint8Array | null, place: Row): void =>
    void insert(db, 'block', { key, bytes, uses: 0, ...place })

  function read(key: Uint8Array): Uint8Array | undefined {
    const row = db.get('select bytes, car, at, length from block where key = ?', key)
    if (typeof row?.car !== 'number') return row?.bytes as Uint8Array | undefined
    return piece(handles.get(row.car)?.handle as number, row.at as number, row.length as number)
  }

  return {
    addRow({ key, bytes }: Row): void {
      if (!(key instanceof Uint8Array && bytes instanceof Uint8Array) || !provesMultihash(key, bytes)) return
      add(key, bytes, { length: bytes.byteLength })
    },
    /**
     * Returns its roots; none where it was cut, since its header is written last. Blocks that were
     * read so far count.
     */
    async addCar(name: string): Promise<readonly CID[]> {
      const path = join(folder, name)
      const handle = openSync(path, 'r')
      const car = insert(db, 'car', { name, bytes: fstatSync(handle).size, at: 0 })
      handles.set(car, { name, handle })
      let roots: readonly CID[] = []
      let at = firstBlockAt
      try {
        const onRoots = (found: readonly CID[]) => void (roots = found)
        const start = Number(piece(handle, 0, markAt).readBigUInt64LE(27))
        for await (const { cid, bytes } of readCar(createReadStream(path, { start }), { onRoots })) {
          const length = bytes.byteLength
          at += carSectionBytes(cid, length)
          if (proves(cid, bytes)) add(cid.multihash.bytes, null, { car, at: at - length, length })
        }
      } catch {}
      return roots
    },
    /** Lists the blocks of an upload. A row without bytes stands for a lost block. */
    async list(root: CID) {
      const keys = new Map<string, Uint8Array>()
      let isComplete = true
      const get = (cid: CID): Uint8Array | undefined => {
        const key = cid.multihash.bytes
        keys.set(cid.toString(), key)
        const bytes = read(key)
        if (bytes && proves(cid, bytes)) return bytes
        add(key, null, { length: 0 })
        isComplete = false
        return undefined
      }
      for await (const _ of dagBlocks(root, get));
      const rows = new Map<number, Row>()
      for (const key of keys.values()) {
        const row = db.get('select id, car, length from block where key = ?', key) as Row
        rows.set(row.id as number, row)
      }
      const ids = [...rows.keys()]
      for (const id of ids) db.run('update block set uses = uses + 1 where id = ?', id)
      const car = [...rows.values()].find((row) => row.car !== null)?.car ?? null
      const bytes = [...rows.values()].reduce((sum, { length }) => sum + Number(length), 0)
      return { isComplete, bytes, car, blocks: packIds(ids) }
    },
    /** Returns files that nothing needs. */
    finish(): readonly string[] {
      db.run('delete from block where uses = 0')
      for (const { handle } of handles.values()) closeSync(handle)
      const unneeded = db.all(
        'delete from car where id not in (select car from block where car is not null union select car from upload where car is not null) returning name',
      )
      return unneeded.map(({ name }) => name as string)
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

function piece(handle: number, at: number, length: number): Buffer {
  const bytes = Buffer.alloc(length)
  return bytes.subarray(0, readSync(handle, bytes, 0, length, at))
}
