// What a commit may consist of. Each operation runs in the writer's thread, in a savepoint of the shared transaction.
import type { Connection } from './engine.ts'
import type { QuotaUse, Standing, Statement } from './store.ts'

/** Blocks of one intake, packed: a message of many small objects would hold up the event loop. */
export type PackedBlocks = {
  /** Multihashes, each behind a byte with its length. */
  readonly keys: Uint8Array
  readonly lengths: Uint32Array
  /** Where each block begins: in the CAR file, or in `bytes`. */
  readonly ats: Float64Array
  readonly car?: { readonly name: string; readonly bytes: number }
  readonly bytes?: Uint8Array
}

export type AcceptedRow = {
  /** Version 1. */
  readonly cid: Uint8Array
  readonly profile: string
  readonly bytes: number
  readonly carBytes: number
  readonly at: number
  readonly holders: Readonly<Record<string, Standing>>
  /** Its blocks among those of the intake. */
  readonly list: Uint32Array
}

export type Operation =
  | { readonly kind: 'accept'; readonly intakes: readonly AcceptedIntake[]; readonly quota: readonly QuotaUse[] }
  | {
      readonly kind: 'update'
      readonly cid: Uint8Array
      readonly holders: Readonly<Record<string, Standing | undefined>>
    }
  | { readonly kind: 'remove'; readonly cid: Uint8Array }
  | { readonly kind: 'forget'; readonly holder: string }
  | { readonly kind: 'trim'; readonly holder: string; readonly limit: number; readonly bytes: number }
  | { readonly kind: 'move'; readonly from: string; readonly blocks: PackedBlocks }
  | { readonly kind: 'probe' }
  | { readonly kind: 'write'; readonly statements: readonly Statement[] }

export type AcceptedIntake = { readonly blocks: PackedBlocks; readonly uploads: readonly AcceptedRow[] }

export type Outcome = {
  readonly value: boolean | number
  /** CAR files that no row names any more. */
  readonly gone: readonly string[]
  /** CAR files that no upload names, and that have blocks which are still used. */
  readonly left: readonly string[]
}

/** Makes room rather than taking it: goes on where the disk is full. */
export const makesRoom = ({ kind }: Operation): boolean => kind === 'remove' || kind === 'update' || kind === 'forget'

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

export function perform(db: Connection, operation: Operation): Outcome {
  const cars = new Set<number>()
  const value = performOne(db, operation, cars)
  const gone: string[] = []
  const left: string[] = []
  for (const car of cars) {
    if (db.get('select 1 from upload where car = ? limit 1', car)) continue
    const name = db.get('select name from car where id = ?', car)?.name as string | undefined
    if (name === undefined) continue
    if (db.get('select 1 from block where car = ? limit 1', car)) left.push(name)
    else {
      db.run('delete from car where id = ?', car)
      gone.push(name)
    }
  }
  return { value, gone, left }
}

/** `cars`: takes the CAR files that lost an upload or a block. */
function performOne(db: Connection, operation: Operation, cars: Set<number>): boolean | number {
  switch (operation.kind) {
    case 'accept':
      for (const intake of operation.intakes) acceptIntake(db, intake, cars)
      for (const use of operation.quota) addQuota(db, use)
      return true
    case 'update': {
      const upload = idOf(db, operation.cid)
      if (upload === undefined) return false
      for (const [name, standing] of Object.entries(operation.holders)) setHolder(db, upload, name, standing)
      releaseUnneeded(db, upload, cars)
      return true
    }
    case 'remove': {
      const upload = idOf(db, operation.cid)
      if (upload === undefined) return false
      release(db, upload, cars)
      db.run('delete from holder where upload = ?', upload)
      db.run('delete from upload where id = ?', upload)
      return true
    }
    case 'forget':
      return dropWanted(
        db,
        operation.holder,
        db.all("select upload from holder where name = ? and state = 'wanted'", operation.holder),
        cars,
      )
    case 'trim':
      return trim(db, operation, cars)
    case 'move':
      move(db, operation.from, operation.blocks, cars)
      return true
    case 'probe':
      // Writes the first page as it is.
      db.exec('pragma user_version = 1')
      return true
    case 'write':
      for (const { sql, args } of operation.statements) db.run(sql, ...args)
      return true
  }
}

function idOf(db: Connection, cid: Uint8Array): number | undefined {
  return db.get('select id from upload where cid = ?', cid)?.id as number | undefined
}

function acceptIntake(db: Connection, { blocks, uploads }: AcceptedIntake, cars: Set<number>): void {
  const count = blocks.lengths.length
  const uses = new Uint32Array(count)
  for (const { list } of uploads) for (const index of list) uses[index] = (uses[index] as number) + 1
  const car = carRow(db, blocks, uploads[0]?.at ?? 0)
  const ids = new Float64Array(count)
  let index = 0
  for (const key of keysIn(blocks.keys)) {
    if ((uses[index] as number) > 0)
      ids[index] = putBlock(db, key, placeOf(blocks, index, car), uses[index] as number, cars)
    index++
  }
  for (const upload of uploads) {
    const listed = packIds(Array.from(upload.list, (at) => ids[at] as number))
    // Where every holder has it and none is the store itself, its row stays and its blocks go.
    releaseUnneeded(db, putUpload(db, upload, car, listed, cars), cars)
  }
}

type Place = {
  readonly bytes: Uint8Array | null
  readonly car: number | null
  readonly at: number | null
  readonly length: number
}

function carRow(db: Connection, { car }: PackedBlocks, at: number): number | null {
  return car ? db.run('insert into car (name, bytes, at) values (?, ?, ?)', car.name, car.bytes, at).id : null
}

function placeOf({ ats, lengths, bytes }: PackedBlocks, index: number, car: number | null): Place {
  const at = ats[index] as number
  const length = lengths[index] as number
  return bytes
    ? { bytes: bytes.subarray(at, at + length), car: null, at: null, length }
    : { bytes: null, car, at, length }
}

/** The newest copy counts: an older one may have rotted. */
function putBlock(db: Connection, key: Uint8Array, place: Place, uses: number, cars: Set<number>): number {
  const { bytes, car, at, length } = place
  const old = db.get('select id, car from block where key = ?', key) as
    | { readonly id: number; readonly car: number | null }
    | undefined
  if (!old)
    return db.run(
      'insert into block (key, bytes, car, at, length, uses) values (?, ?, ?, ?, ?, ?)',
      ...[key, bytes, car, at, length, uses],
    ).id
  if (old.car !== null) cars.add(old.car)
  db.run(
    'update block set bytes = ?, car = ?, at = ?, length = ?, uses = uses + ? where id = ?',
    ...[bytes, car, at, length, uses, old.id],
  )
  return old.id
}

function putUpload(db: Connection, upload: AcceptedRow, car: number | null, listed: Buffer, cars: Set<number>): number {
  const { cid, profile, bytes, carBytes, at, holders } = upload
  let id = idOf(db, cid)
  if (id === undefined) {
    id = db.run(
      'insert into upload (cid, profile, bytes, car_bytes, at, car, blocks) values (?, ?, ?, ?, ?, ?, ?)',
      ...[cid, profile, bytes, carBytes, at, car, listed],
    ).id
  } else {
    release(db, id, cars)
    db.run(
      'update upload set profile = ?, bytes = ?, car_bytes = ?, at = ?, car = ?, blocks = ? where id = ?',
      ...[profile, bytes, carBytes, at, car, listed, id],
    )
  }
  for (const [name, { kind }] of Object.entries(holders))
    if (kind === 'here') db.run("delete from holder where upload = ? and kind = 'here' and name <> ?", id, name)
  for (const [name, standing] of Object.entries(holders)) setHolder(db, id, name, standing)
  return id
}

function setHolder(db: Connection, upload: number, name: string, standing: Standing | undefined): void {
  if (!standing) {
    db.run('delete from holder where upload = ? and name = ?', upload, name)
    return
  }
  const { kind, state, tries, notBefore = 0, class: failure = null, why = null } = standing
  db.run(holderSql, upload, name, kind, state, tries, notBefore, failure, why)
}

/** No `replace`: that would be a deletion to triggers. */
const holderSql = `insert into holder (upload, name, kind, state, tries, not_before, class, why) values (?, ?, ?, ?, ?, ?, ?, ?)
on conflict (upload, name) do update set kind = excluded.kind, state = excluded.state, tries = excluded.tries,
not_before = excluded.not_before, class = excluded.class, why = excluded.why`

const needed = `select 1 from holder where upload = ? and (state = 'wanted' or (kind = 'here' and state = 'held'))
limit 1`

function releaseUnneeded(db: Connection, upload: number, cars: Set<number>): void {
  if (!db.get(needed, upload)) release(db, upload, cars)
}

/** Its blocks go, but for those that another upload lists. */
function release(db: Connection, upload: number, cars: Set<number>): void {
  const row = db.get('select car, blocks from upload where id = ?', upload)
  if (!(row?.blocks instanceof Uint8Array)) return
  if (typeof row.car === 'number') cars.add(row.car)
  for (const id of unpackIds(row.blocks)) {
    const block = db.get('select car, uses from block where id = ?', id)
    if (!block) continue
    if ((block.uses as number) > 1) db.run('update block set uses = uses - 1 where id = ?', id)
    else db.run('delete from block where id = ?', id)
    if (typeof block.car === 'number') cars.add(block.car)
  }
  db.run('update upload set car = null, blocks = null where id = ?', upload)
}

function dropWanted(
  db: Connection,
  holder: string,
  rows: readonly { readonly upload?: unknown }[],
  cars: Set<number>,
): number {
  for (const { upload } of rows) {
    db.run('delete from holder where upload = ? and name = ?', upload as number, holder)
    releaseUnneeded(db, upload as number, cars)
  }
  return rows.length
}

const wantedByAge = `select h.upload upload, u.bytes bytes, not exists (select 1 from holder o where o.upload = h.upload and o.name <> h.name
and (o.state = 'wanted' or (o.kind = 'here' and o.state = 'held'))) alone
from holder h join upload u on u.id = h.upload where h.name = ? and h.state = 'wanted' order by h.upload`

type Trim = Extract<Operation, { kind: 'trim' }>

function trim(db: Connection, { holder, limit, bytes }: Trim, cars: Set<number>): number {
  const rows = db.all(wantedByAge, holder) as readonly { upload: number; bytes: number; alone: number }[]
  let count = rows.length
  let alone = rows.reduce((sum, row) => sum + (row.alone ? row.bytes : 0), 0)
  const dropped = rows.filter((row) => {
    if (count <= limit && (alone <= bytes || !row.alone)) return false
    count--
    if (row.alone) alone -= row.bytes
    return true
  })
  return dropWanted(db, holder, dropped, cars)
}

/** Blocks of a CAR file that is to go lie in another place now. */
function move(db: Connection, from: string, blocks: PackedBlocks, cars: Set<number>): void {
  const old = db.get('select id, at from car where name = ?', from) as
    | { readonly id: number; readonly at: number }
    | undefined
  if (!old) return
  cars.add(old.id)
  const car = carRow(db, blocks, old.at)
  if (car !== null) cars.add(car)
  let index = 0
  for (const key of keysIn(blocks.keys)) {
    const { bytes, at, length } = placeOf(blocks, index++, car)
    db.run(
      'update block set bytes = ?, car = ?, at = ?, length = ? where key = ? and car = ?',
      ...[bytes, car, at, length, key, old.id],
    )
  }
}

const quotaSql = `insert into quota (day, token, uploads, bytes) values (?, ?, ?, ?)
on conflict (day, token) do update set uploads = uploads + excluded.uploads, bytes = bytes + excluded.bytes`

function addQuota(db: Connection, { day, token, uploads, bytes }: QuotaUse): void {
  db.run(quotaSql, day, token, uploads, bytes)
  db.run('delete from quota where day < ?', day - 1)
}
