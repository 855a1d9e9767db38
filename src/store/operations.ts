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
  readonly name: string | undefined
  readonly profile: string
  readonly bytes: number
  readonly carBytes: number
  readonly at: number
  readonly holders: Readonly<Record<string, Standing>>
  /** Its blocks among those of the intake. */
  readonly list: Uint32Array
}

/** What changes more blocks takes several commits, so that nobody waits for all of them. */
export const blocksAtOnce = 4096

export type Operation =
  /** Some blocks of an upload that is accepted later. `uses`: of each, by uploads of its request. */
  | { readonly kind: 'stage'; readonly blocks: PackedBlocks; readonly uses: Uint32Array; readonly at: number }
  /** Blocks of an upload that was deleted, or was staged and not accepted. */
  | { readonly kind: 'drain'; readonly loose: number }
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

/** `staged`: its blocks are there, under these ids and named by these rows of `loose`. */
export type AcceptedIntake = {
  readonly blocks: PackedBlocks
  readonly uploads: readonly AcceptedRow[]
  readonly staged?: { readonly ids: Float64Array; readonly loose: readonly number[] }
}

export type Outcome = {
  readonly value: boolean | number
  /** CAR files that no row names any more. */
  readonly gone: readonly string[]
  /** CAR files that no upload names, and that have blocks which are still used. */
  readonly left: readonly string[]
  /** Rows of `loose` that were made. */
  readonly loose: readonly number[]
  /** Of blocks that were staged. */
  readonly ids?: Float64Array
}

const roomMaking: ReadonlySet<Operation['kind']> = new Set(['remove', 'update', 'forget', 'drain'])

/** Makes room rather than taking it: goes on where the disk is full. */
export const makesRoom = ({ kind }: Operation): boolean => roomMaking.has(kind)

/** Blocks that it may change, where they are many. */
export function weightOf(operation: Operation): number {
  if (operation.kind === 'drain') return blocksAtOnce
  if (operation.kind === 'stage' || operation.kind === 'move') return operation.blocks.lengths.length
  return operation.kind === 'accept' ? operation.intakes.reduce((sum, { blocks }) => sum + blocks.lengths.length, 0) : 0
}

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

/** Blocks of one commit. `places`: where they are among those of their intake. */
export type Slice = { readonly blocks: PackedBlocks; readonly places: Uint32Array }

/** As many blocks as one commit takes, with keys that lie near each other: a commit writes each page of the index that it touches. */
export function* slicesOf(blocks: PackedBlocks): Generator<Slice> {
  const { keys, lengths } = blocks
  const count = lengths.length
  const starts = new Uint32Array(count)
  const shares = Array.from({ length: Math.ceil(count / (0.9 * blocksAtOnce)) }, (): number[] => [])
  for (let at = 0, index = 0; index < count; at += 1 + (keys[at] as number), index++) {
    starts[index] = at
    // Behind the name of the hash function and the length of its hash.
    const first = (((keys[at + 3] ?? 0) << 8) | (keys[at + 4] ?? 0)) / 0x10000
    shares[Math.floor(first * shares.length)]?.push(index)
  }
  for (const share of shares)
    for (let from = 0; from < share.length; from += blocksAtOnce)
      yield sliceOf(blocks, starts, Uint32Array.from(share.slice(from, from + blocksAtOnce)))
}

function sliceOf(blocks: PackedBlocks, starts: Uint32Array, places: Uint32Array): Slice {
  const keys: Uint8Array[] = []
  for (const index of places) {
    const at = starts[index] as number
    keys.push(blocks.keys.subarray(at, at + 1 + (blocks.keys[at] as number)))
  }
  const lengths = places.map((index) => blocks.lengths[index] as number)
  const ats = Float64Array.from(places, (index) => blocks.ats[index] as number)
  return { blocks: { ...blocks, keys: Buffer.concat(keys), lengths, ats }, places }
}

/** Of each block of an intake, how many of its uploads list it. */
export function usesIn({ blocks, uploads }: AcceptedIntake): Uint32Array {
  const uses = new Uint32Array(blocks.lengths.length)
  for (const { list } of uploads) for (const index of list) uses[index] = (uses[index] as number) + 1
  return uses
}

/** CAR files that lost an upload or a block, rows of `loose` that were made, ids of blocks that were staged. */
type Changes = { readonly cars: Set<number>; readonly loose: number[]; ids?: Float64Array }

export function perform(db: Connection, operation: Operation): Outcome {
  const changes: Changes = { cars: new Set(), loose: [] }
  const value = performOne(db, operation, changes)
  const gone: string[] = []
  const left: string[] = []
  for (const car of changes.cars) {
    if (db.get('select 1 from upload where car = ? limit 1', car)) continue
    // Some of its blocks are still to come or to go.
    if (db.get('select 1 from loose where car = ? limit 1', car)) continue
    const name = db.get('select name from car where id = ?', car)?.name as string | undefined
    if (name === undefined) continue
    if (db.get('select 1 from block where car = ? limit 1', car)) left.push(name)
    else {
      db.run('delete from car where id = ?', car)
      gone.push(name)
    }
  }
  const { loose, ids } = changes
  return { value, gone, left, loose, ...(ids && { ids }) }
}

function performOne(db: Connection, operation: Operation, changes: Changes): boolean | number {
  switch (operation.kind) {
    case 'stage':
      stage(db, operation, changes)
      return true
    case 'drain':
      drain(db, operation.loose, changes)
      return true
    case 'accept':
      for (const intake of operation.intakes) acceptIntake(db, intake, changes)
      for (const use of operation.quota) addQuota(db, use)
      return true
    case 'update': {
      const upload = idOf(db, operation.cid)
      if (upload === undefined) return false
      for (const [name, standing] of Object.entries(operation.holders)) setHolder(db, upload, name, standing)
      releaseUnneeded(db, upload, changes)
      return true
    }
    case 'remove': {
      const upload = idOf(db, operation.cid)
      if (upload === undefined) return false
      release(db, upload, changes)
      db.run('delete from holder where upload = ?', upload)
      db.run('delete from upload where id = ?', upload)
      return true
    }
    case 'forget':
      return dropWanted(
        db,
        operation.holder,
        db.all("select upload from holder where name = ? and state = 'pending'", operation.holder),
        changes,
      )
    case 'trim':
      return trim(db, operation, changes)
    case 'move':
      move(db, operation.from, operation.blocks, changes.cars)
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

function acceptIntake(db: Connection, intake: AcceptedIntake, changes: Changes): void {
  const { blocks, uploads, staged } = intake
  const car = carRow(db, blocks, uploads[0]?.at ?? 0)
  const ids = staged?.ids ?? putBlocks(db, { blocks, uses: usesIn(intake), car }, changes.cars)
  for (const loose of staged?.loose ?? []) db.run('delete from loose where id = ?', loose)
  for (const upload of uploads) {
    const listed = packIds(Array.from(upload.list, (at) => ids[at] as number))
    // Where every holder has it and none is the store itself, its row stays and its blocks go.
    releaseUnneeded(db, putUpload(db, upload, car, listed, changes), changes)
  }
}

type Put = { readonly blocks: PackedBlocks; readonly uses: Uint32Array; readonly car: number | null }

function putBlocks(db: Connection, { blocks, uses, car }: Put, cars: Set<number>): Float64Array {
  const ids = new Float64Array(blocks.lengths.length)
  let index = 0
  for (const key of keysIn(blocks.keys)) {
    if ((uses[index] as number) > 0)
      ids[index] = putBlock(db, key, placeOf(blocks, index, car), uses[index] as number, cars)
    index++
  }
  return ids
}

type Stage = Extract<Operation, { kind: 'stage' }>

/** A process that is killed before it accepts the upload leaves the row of `loose`, which the next one drains. */
function stage(db: Connection, { blocks, uses, at }: Stage, changes: Changes): void {
  const car = carRow(db, blocks, at)
  const ids = putBlocks(db, { blocks, uses, car }, changes.cars)
  const used: number[] = []
  for (const [index, id] of ids.entries()) for (let left = uses[index] as number; left > 0; left--) used.push(id)
  changes.loose.push(putLoose(db, car, packIds(used)))
  changes.ids = ids
}

const putLoose = (db: Connection, car: number | null, ids: Uint8Array): number =>
  db.run('insert into loose (car, ids) values (?, ?)', car, ids).id

function drain(db: Connection, id: number, { cars }: Changes): void {
  const row = db.get('select car, ids from loose where id = ?', id)
  if (!row) return
  db.run('delete from loose where id = ?', id)
  if (typeof row.car === 'number') cars.add(row.car)
  releaseBlocks(db, unpackIds(row.ids as Uint8Array), cars)
}

type Place = {
  readonly bytes: Uint8Array | null
  readonly car: number | null
  readonly at: number | null
  readonly length: number
}

function carRow(db: Connection, { car }: PackedBlocks, at: number): number | null {
  if (!car) return null
  const known = db.get('select id from car where name = ?', car.name)?.id as number | undefined
  return known ?? db.run('insert into car (name, bytes, at) values (?, ?, ?)', car.name, car.bytes, at).id
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

function putUpload(db: Connection, upload: AcceptedRow, car: number | null, listed: Buffer, changes: Changes): number {
  const { cid, name = null, profile, bytes, carBytes, at, holders } = upload
  let id = idOf(db, cid)
  if (id === undefined) {
    id = db.run(
      'insert into upload (cid, name, profile, bytes, car_bytes, at, car, blocks) values (?, ?, ?, ?, ?, ?, ?, ?)',
      ...[cid, name, profile, bytes, carBytes, at, car, listed],
    ).id
  } else {
    release(db, id, changes)
    db.run(
      'update upload set name = coalesce(?, name), profile = ?, bytes = ?, car_bytes = ?, at = ?, car = ?, blocks = ? where id = ?',
      ...[name, profile, bytes, carBytes, at, car, listed, id],
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

const needed = `select 1 from holder where upload = ? and (state = 'pending' or (kind = 'here' and state = 'pinned'))
limit 1`

/** How many blocks went. */
function releaseUnneeded(db: Connection, upload: number, changes: Changes): number {
  return db.get(needed, upload) ? 0 : release(db, upload, changes)
}

/** Its blocks go, but for those that another upload lists; where they are many, by and by. */
function release(db: Connection, upload: number, { cars, loose }: Changes): number {
  const row = db.get('select car, blocks from upload where id = ?', upload)
  if (!(row?.blocks instanceof Uint8Array)) return 0
  const { blocks } = row
  const car = typeof row.car === 'number' ? row.car : null
  if (car !== null) cars.add(car)
  db.run('update upload set car = null, blocks = null where id = ?', upload)
  const ids = unpackIds(blocks)
  if (ids.length <= blocksAtOnce) return releaseBlocks(db, ids, cars)
  // Near each other, as they were staged.
  ids.sort((one, other) => one - other)
  for (let at = 0; at < ids.length; at += blocksAtOnce)
    loose.push(putLoose(db, car, packIds(ids.slice(at, at + blocksAtOnce))))
  return 0
}

function releaseBlocks(db: Connection, ids: readonly number[], cars: Set<number>): number {
  for (const id of ids) {
    const block = db.get('select car, uses from block where id = ?', id)
    if (!block) continue
    if ((block.uses as number) > 1) db.run('update block set uses = uses - 1 where id = ?', id)
    else db.run('delete from block where id = ?', id)
    if (typeof block.car === 'number') cars.add(block.car)
  }
  return ids.length
}

/** As many as one commit takes. */
function dropWanted(
  db: Connection,
  holder: string,
  rows: readonly { readonly upload?: unknown }[],
  changes: Changes,
): number {
  let count = 0
  let work = 0
  for (const { upload } of rows) {
    if (work >= blocksAtOnce) break
    db.run('delete from holder where upload = ? and name = ?', upload as number, holder)
    work += 1 + releaseUnneeded(db, upload as number, changes)
    count++
  }
  return count
}

const wantedByAge = `select h.upload upload, u.bytes bytes, not exists (select 1 from holder o where o.upload = h.upload and o.name <> h.name
and (o.state = 'pending' or (o.kind = 'here' and o.state = 'pinned'))) alone
from holder h join upload u on u.id = h.upload where h.name = ? and h.state = 'pending' order by h.upload`

type Trim = Extract<Operation, { kind: 'trim' }>

function trim(db: Connection, { holder, limit, bytes }: Trim, changes: Changes): number {
  const rows = db.all(wantedByAge, holder) as readonly { upload: number; bytes: number; alone: number }[]
  let count = rows.length
  let alone = rows.reduce((sum, row) => sum + (row.alone ? row.bytes : 0), 0)
  const dropped = rows.filter((row) => {
    if (count <= limit && (alone <= bytes || !row.alone)) return false
    count--
    if (row.alone) alone -= row.bytes
    return true
  })
  return dropWanted(db, holder, dropped, changes)
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
