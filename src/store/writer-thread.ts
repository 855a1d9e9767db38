// The thread of writer.ts: the one connection that writes. The operations of a message are one transaction.
import { existsSync, rmSync, statfsSync, writeFileSync } from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import { asText, type Connection, type ErrorText, troubleOf } from './engine.ts'
import { openDatabase } from './schema.ts'
import type { QuotaUse, Standing } from './store.ts'
import {
  type AcceptedIntake,
  type AcceptedRow,
  blocksAtOnce,
  keysIn,
  makesRoom,
  type Operation,
  type Outcome,
  type PackedBlocks,
  packIds,
  unpackIds,
  usesIn,
} from './writer.ts'

export type WriterData = {
  readonly folder: string
  readonly file: string
  readonly head: string
  readonly reserve: string
}

export type Answer = { readonly outcome: Outcome } | { readonly error: ErrorText }

export type Opened = {
  readonly isMended: boolean
  /** Names of the CAR files that rows name; undefined where that cannot be read. */
  readonly cars: readonly string[] | undefined
  /** Of those, without an upload. */
  readonly left: readonly string[]
  /** Rows of `loose`, of a process that was killed. */
  readonly loose: readonly number[]
}

export type FromWriter =
  | { readonly opened: Opened }
  | { readonly failed: ErrorText }
  | { readonly answers: readonly Answer[] }

const mib = 1024 * 1024
const reserveAfterMs = 5000
const scarce = 16
const { folder, file, head, reserve } = workerData as WriterData

const say = (message: FromWriter): void => parentPort?.postMessage(message)

/** Space for deletions: so much is left free, and as much again is in the reserve. A hundredth of the disk, at most 32 MiB. */
function keptFree(): { readonly free: number; readonly kept: number } {
  const { bavail, blocks, bsize } = statfsSync(folder)
  const kept = Math.min(32 * mib, Math.max(mib, Math.floor((blocks * bsize) / 100)))
  return { free: bavail * bsize, kept }
}

/** Real bytes: a file with holes would keep no room. */
function makeReserve(): void {
  try {
    const { free, kept } = keptFree()
    if (free > 2 * kept && !existsSync(reserve)) writeFileSync(reserve, Buffer.alloc(kept), { flush: true })
  } catch {
    dropReserve()
  }
}

const dropReserve = (): void => rmSync(reserve, { force: true })

const noRoom = (): ErrorText => ({ message: 'database or disk is full', code: 'ENOSPC' })

function open(): { readonly db: Connection; readonly isMended: boolean } {
  try {
    return openDatabase(file, head)
  } catch (error) {
    // A full disk refuses the files that the engine works with.
    if (!['full', 'failing', 'unopenable'].includes(troubleOf(error) ?? '')) throw error
    dropReserve()
    return openDatabase(file, head)
  }
}

function commit(db: Connection, operations: readonly Operation[]): Answer[] {
  const answers: Answer[] = []
  try {
    db.exec('begin immediate')
    for (const operation of operations) answers.push(one(db, operation))
    db.exec('commit')
    return answers
  } catch (error) {
    if (db.isInTransaction) db.exec('rollback')
    return operations.map(() => ({ error: asText(error) }))
  }
}

/** Throws where the engine gave up the whole transaction. */
function one(db: Connection, operation: Operation): Answer {
  db.exec('savepoint one')
  try {
    const outcome = perform(db, operation)
    db.exec('release one')
    return { outcome }
  } catch (error) {
    if (!db.isInTransaction || troubleOf(error) === 'full') throw error
    db.exec('rollback to one; release one')
    return { error: asText(error) }
  }
}

const isFull = (answer: Answer | undefined): boolean =>
  answer !== undefined &&
  'error' in answer &&
  (answer.error.code === 'ENOSPC' || (answer.error.errcode ?? 0) % 256 === 13)

/** Room for deletions is taken from the reserve, which is made again when they have made some. */
function createCommits(db: Connection): (operations: readonly Operation[]) => readonly Answer[] {
  let isReserveDue = true
  // A start has other work, and most disks are roomy.
  setTimeout(makeReserve, reserveAfterMs).unref()
  return (operations) => {
    const { free, kept } = keptFree()
    if (isReserveDue && free < scarce * kept) {
      makeReserve()
      isReserveDue = !existsSync(reserve)
    }
    const taken = free < kept ? operations.filter(makesRoom) : operations
    let answers = taken.length === 0 ? [] : commit(db, taken)
    const due = new Map(taken.map((operation, index) => [operation, answers[index] as Answer]))
    const stuck = taken.filter((operation) => makesRoom(operation) && isFull(due.get(operation)))
    if (stuck.length > 0) {
      dropReserve()
      answers = commit(db, stuck)
      for (const [index, operation] of stuck.entries()) due.set(operation, answers[index] as Answer)
      try {
        db.exec('pragma wal_checkpoint(truncate)')
      } catch {}
    }
    if (stuck.length > 0) isReserveDue = true
    return operations.map((operation) => due.get(operation) ?? { error: noRoom() })
  }
}

const leftSql = `select name from car where not exists (select 1 from upload where upload.car = car.id)
and not exists (select 1 from loose where loose.car = car.id)`

function found(db: Connection): Omit<Opened, 'isMended'> {
  const names = (sql: string) => db.all(sql).map(({ name }) => name as string)
  try {
    const loose = db.all('select id from loose').map(({ id }) => id as number)
    return { cars: names('select name from car'), left: names(leftSql), loose }
  } catch {
    return { cars: undefined, left: [], loose: [] }
  }
}

/** CAR files that lost an upload or a block, rows of `loose` that were made, ids of blocks that were staged. */
type Changes = { readonly cars: Set<number>; readonly loose: number[]; ids?: Float64Array }

function perform(db: Connection, operation: Operation): Outcome {
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

/** Returns the number of blocks that went. */
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

try {
  const { db, isMended } = open()
  const commitAll = createCommits(db)
  say({ opened: { isMended, ...found(db) } })
  parentPort?.on('message', (operations: readonly Operation[] | 'close') => {
    if (operations !== 'close') return say({ answers: commitAll(operations) })
    db.close()
    parentPort?.close()
  })
} catch (error) {
  say({ failed: asText(error) })
}
