// The thread that writes: the one connection, and the folder of the CAR files. All operations that came meanwhile are one
// transaction, each in a savepoint of it. An operation of very many blocks takes several, between those of others; what it wrote
// so far is named by rows of `loose`, so that the next process deletes what a kill leaves of it.
import { existsSync, readdirSync, rmSync, statfsSync, statSync, writeFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { parentPort, workerData } from 'node:worker_threads'
import { asText, type Connection, type ErrorText, troubleOf } from './engine.ts'
import { openDatabase } from './schema.ts'
import type { QuotaUse, Standing } from './store.ts'
import {
  type AcceptedRow,
  type Answer,
  type Asked,
  type FromWriter,
  keysIn,
  type Operation,
  type PackedBlocks,
  packIds,
  unpackIds,
  type WriterData,
} from './writer.ts'

const mib = 1024 * 1024
const reserveAfterMs = 5000
const scarce = 16
/** A change of more blocks takes several transactions, so that nobody waits for all of them. */
const blocksAtOnce = 4096
/** Operations of more blocks wait for each other. */
const lightBlocks = 1024
const { folder, file, head, reserve, cars } = workerData as WriterData

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

/** A new database would make leftovers of the files of all uploads, to be removed. */
class NoDatabase extends Error {
  readonly errcode = 11
}

function open(): { readonly db: Connection; readonly isMended: boolean } {
  if (!statSync(file, { throwIfNoEntry: false })?.size && existsSync(cars) && readdirSync(cars).length > 0)
    throw new NoDatabase(`there is no ${file}, and files of uploads are in ${cars}`)
  try {
    return openDatabase(file, head)
  } catch (error) {
    // A full disk refuses the files that the engine works with.
    if (!['full', 'failing', 'unopenable'].includes(troubleOf(error) ?? '')) throw error
    dropReserve()
    return openDatabase(file, head)
  }
}

/** One transaction of an operation. `drain`: deletes blocks by rows of `loose`, some in each transaction. */
type Step =
  | (Operation & { readonly staged?: Staged; readonly count?: number })
  | { readonly kind: 'drain'; readonly loose: readonly number[]; readonly result: Result }

/** What an operation of very many blocks did so far. */
type Staged = {
  readonly slices: readonly Slice[]
  /** Of each block, how many of the uploads list it. */
  readonly uses: Uint32Array
  /** Of the blocks that were written. */
  readonly ids: Float64Array
  /** Rows of `loose` that name them. */
  readonly loose: readonly number[]
}

/** Without an id: nobody waits for it. `isRetried`: with the room of the reserve. */
type Task = { readonly id?: number | undefined; readonly step: Step; readonly isRetried?: boolean }

/** `next`: the operation goes on in another transaction. */
type Result = { readonly value: boolean | number } | { readonly next: Step } | { readonly error: ErrorText }

type Changes = {
  /** CAR files that lost an upload or a block. */
  readonly cars: Set<number>
  /** Rows of `loose` that were made. */
  readonly loose: number[]
  hasReleased: boolean
}

/** Makes room rather than taking it: goes on where the disk is full. */
const makesRoom = ({ step }: Task): boolean => ['remove', 'update', 'forget', 'drain'].includes(step.kind)

const isLight = ({ step }: Task): boolean =>
  step.kind !== 'drain' && !('blocks' in step && step.blocks.lengths.length > lightBlocks)

const isFull = ({ code, errcode = 0 }: ErrorText): boolean => code === 'ENOSPC' || errcode % 256 === 13

function createTurns(db: Connection): { add(task: Task): void; close(): void } {
  let queue: Task[] = []
  let isDue = false
  let isClosing = false
  let isReserveDue = true
  /** Files of uploads whose transaction failed: they may count after a restart, until another transaction is over. */
  const doubtful: string[] = []
  // Of the transaction under way.
  let gone: string[] = []
  let left: string[] = []
  let hasReleased = false
  // A start has other work, and most disks are roomy.
  setTimeout(makeReserve, reserveAfterMs).unref()

  function add(task: Task): void {
    queue.push(task)
    if (!isDue) setImmediate(turn)
    isDue = true
  }

  /** All that are light, and one that is not. */
  function takeSome(): readonly Task[] {
    const heavy = queue.find((task) => !isLight(task))
    const taken = queue.filter((task) => task === heavy || isLight(task))
    queue = queue.filter((task) => task !== heavy && !isLight(task))
    return taken
  }

  function turn(): void {
    const tasks = takeSome()
    const { free, kept } = keptFree()
    if (isReserveDue && free < scarce * kept) {
      makeReserve()
      isReserveDue = !existsSync(reserve)
    }
    const begun = free < kept ? tasks.filter(makesRoom) : tasks
    ;[gone, left, hasReleased] = [[], [], false]
    const results = begun.length > 0 ? commit(begun) : new Map<Task, Result>()
    const answers = tasks.flatMap((task) => settle(task, results.get(task)) ?? [])
    say({ answers, hasReleased, left })
    isDue = queue.length > 0
    if (isClosing && !queue.some(({ id }) => id !== undefined)) end()
    else if (isDue) setImmediate(turn)
  }

  function commit(tasks: readonly Task[]): Map<Task, Result> {
    try {
      db.exec('begin immediate')
      const results = new Map(tasks.map((task) => [task, run(task)]))
      db.exec('commit')
      for (const name of [...gone, ...doubtful.splice(0)]) remove(name)
      if (tasks.some(({ isRetried }) => isRetried)) checkpoint()
      return results
    } catch (error) {
      if (db.isInTransaction) db.exec('rollback')
      ;[left, hasReleased] = [[], false]
      return new Map(tasks.map((task) => [task, { error: asText(error) }]))
    }
  }

  function checkpoint(): void {
    try {
      db.exec('pragma wal_checkpoint(truncate)')
    } catch {}
  }

  /** Throws where the engine gave up the whole transaction. */
  function run({ step }: Task): Result {
    const changes: Changes = { cars: new Set(), loose: [], hasReleased: false }
    db.exec('savepoint one')
    try {
      const result = perform(db, step, changes)
      const files = withoutUploads(db, changes.cars)
      db.exec('release one')
      gone.push(...files.gone)
      left.push(...files.left)
      hasReleased ||= changes.hasReleased
      return result
    } catch (error) {
      if (!db.isInTransaction || troubleOf(error) === 'full') throw error
      db.exec('rollback to one; release one')
      return { error: asText(error) }
    }
  }

  /** Undefined: it goes on, or nobody waits for it. */
  function settle(task: Task, result: Result | undefined): Answer | undefined {
    const { id, step, isRetried } = task
    if (result && 'next' in result) return void queue.push({ id, step: result.next })
    if (result && 'value' in result) return id === undefined ? undefined : { id, value: result.value }
    const error = result?.error ?? noRoom()
    // Room for deletions is taken from the reserve, which is made again when they have made some.
    if (makesRoom(task) && isFull(error) && !isRetried) {
      dropReserve()
      isReserveDue = true
      return void queue.push({ id, step, isRetried: true })
    }
    if (step.kind === 'accept' || step.kind === 'move') giveUp(step, result !== undefined)
    return id === undefined ? undefined : { id, error }
  }

  /** The blocks of an operation that failed. */
  function giveUp({ blocks, staged }: Accept | Move, isBegun: boolean): void {
    if (staged && staged.loose.length > 0)
      queue.push({ step: { kind: 'drain', loose: staged.loose, result: { value: true } } })
    else if (blocks.car && isBegun) doubtful.push(blocks.car.name)
    else if (blocks.car) remove(blocks.car.name)
  }

  function end(): void {
    db.close()
    parentPort?.close()
  }

  return {
    add,
    close() {
      isClosing = true
      if (!isDue) end()
    },
  }
}

const remove = (name: string): void => void rm(join(cars, name), { force: true, recursive: true }).catch(() => {})

/** Of these CAR files, those that no upload names: with blocks that are still used, and without. */
function withoutUploads(db: Connection, cars: ReadonlySet<number>) {
  const gone: string[] = []
  const left: string[] = []
  for (const car of cars) {
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
  return { gone, left }
}

function perform(db: Connection, step: Step, changes: Changes): Result {
  switch (step.kind) {
    case 'accept':
      return accept(db, step, changes)
    case 'drain': {
      const [id, ...loose] = step.loose
      const row = db.get('select car, ids from loose where id = ?', id as number)
      db.run('delete from loose where id = ?', id as number)
      if (typeof row?.car === 'number') changes.cars.add(row.car)
      if (row) releaseBlocks(db, unpackIds(row.ids as Uint8Array), changes)
      return loose.length > 0 ? { next: { ...step, loose } } : step.result
    }
    case 'update': {
      const upload = idOf(db, step.cid)
      if (upload === undefined) return { value: false }
      for (const [name, standing] of Object.entries(step.holders)) setHolder(db, upload, name, standing)
      if (!isNeeded(db, upload)) release(db, upload, changes)
      return drained(changes, { value: true })
    }
    case 'remove': {
      const upload = idOf(db, step.cid)
      if (upload === undefined) return { value: false }
      release(db, upload, changes)
      db.run('delete from holder where upload = ?', upload)
      db.run('delete from upload where id = ?', upload)
      return drained(changes, { value: true })
    }
    case 'forget':
    case 'trim': {
      const rows =
        step.kind === 'trim'
          ? beyond(db, step)
          : db.all("select upload from holder where name = ? and state = 'pending'", step.holder)
      const { count = 0 } = step
      const some = dropWanted(db, step.holder, rows, changes)
      return drained(changes, some === 0 ? { value: count } : { next: { ...step, count: count + some } })
    }
    case 'move':
      return move(db, step, changes)
    case 'probe':
      // Writes the first page as it is.
      db.exec('pragma user_version = 1')
      return { value: true }
    case 'write':
      for (const { sql, args } of step.statements) db.run(sql, ...args)
      return { value: true }
  }
}

const drained = ({ loose }: Changes, result: Result): Result =>
  loose.length > 0 ? { next: { kind: 'drain', loose, result } } : result

function idOf(db: Connection, cid: Uint8Array): number | undefined {
  return db.get('select id from upload where cid = ?', cid)?.id as number | undefined
}

type Accept = Extract<Step, { kind: 'accept' }>

function accept(db: Connection, step: Accept, changes: Changes): Result {
  const { blocks, uploads, quota } = step
  const car = carRow(db, blocks, uploads[0]?.at ?? 0)
  const staged = step.staged ?? (blocks.lengths.length > blocksAtOnce ? stagedAnew(step) : undefined)
  const [slice, ...slices] = staged?.slices ?? []
  if (staged && slice) {
    const loose = [...staged.loose, stage(db, slice, { ...staged, car }, changes)]
    return { next: { ...step, staged: { ...staged, slices, loose } } }
  }
  const ids = staged?.ids ?? putBlocks(db, { blocks, uses: usesIn(step), car }, changes.cars)
  for (const loose of staged?.loose ?? []) db.run('delete from loose where id = ?', loose)
  let isHere = false
  for (const upload of uploads) {
    const listed = packIds(Array.from(upload.list, (at) => ids[at] as number))
    const id = putUpload(db, upload, car, listed, changes)
    // Where every holder has it and none is the store itself, its row stays and its blocks go.
    if (isNeeded(db, id)) isHere = true
    else release(db, id, changes)
  }
  for (const use of quota) addQuota(db, use)
  return drained(changes, { value: isHere })
}

const stagedAnew = (step: Accept): Staged => ({
  slices: [...slicesOf(step.blocks)],
  uses: usesIn(step),
  ids: new Float64Array(step.blocks.lengths.length),
  loose: [],
})

function usesIn({ blocks, uploads }: Accept): Uint32Array {
  const uses = new Uint32Array(blocks.lengths.length)
  for (const { list } of uploads) for (const index of list) uses[index] = (uses[index] as number) + 1
  return uses
}

/** Writes some blocks of an upload that is accepted later; returns the row of `loose` that names them. */
function stage(
  db: Connection,
  { blocks, places }: Slice,
  { uses: all, ids, car }: Staged & { car: number | null },
  changes: Changes,
): number {
  const uses = places.map((index) => all[index] as number)
  const used: number[] = []
  for (const [at, id] of putBlocks(db, { blocks, uses, car }, changes.cars).entries()) {
    ids[places[at] as number] = id
    for (let count = uses[at] as number; count > 0; count--) used.push(id)
  }
  return putLoose(db, car, packIds(used))
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

const putLoose = (db: Connection, car: number | null, ids: Uint8Array): number =>
  db.run('insert into loose (car, ids) values (?, ?)', car, ids).id

/** Blocks of one commit. `places`: where they are among those of their intake. */
type Slice = { readonly blocks: PackedBlocks; readonly places: Uint32Array }

/** As many blocks as one commit takes, with keys that lie near each other: a commit writes each page of the index that it touches. */
function* slicesOf(blocks: PackedBlocks): Generator<Slice> {
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

const isNeeded = (db: Connection, upload: number): boolean => db.get(needed, upload) !== undefined

/** Returns the number of blocks that went. Its blocks go, but for those that another upload lists; where they are many, by and by. */
function release(db: Connection, upload: number, changes: Changes): number {
  const row = db.get('select car, blocks from upload where id = ?', upload)
  if (!(row?.blocks instanceof Uint8Array)) return 0
  const { blocks } = row
  const car = typeof row.car === 'number' ? row.car : null
  if (car !== null) changes.cars.add(car)
  db.run('update upload set car = null, blocks = null where id = ?', upload)
  const ids = unpackIds(blocks)
  if (ids.length <= blocksAtOnce) return releaseBlocks(db, ids, changes)
  // Near each other, as they were staged.
  ids.sort((one, other) => one - other)
  for (let at = 0; at < ids.length; at += blocksAtOnce)
    changes.loose.push(putLoose(db, car, packIds(ids.slice(at, at + blocksAtOnce))))
  return 0
}

function releaseBlocks(db: Connection, ids: readonly number[], changes: Changes): number {
  changes.hasReleased = true
  for (const id of ids) {
    const block = db.get('select car, uses from block where id = ?', id)
    if (!block) continue
    if ((block.uses as number) > 1) db.run('update block set uses = uses - 1 where id = ?', id)
    else db.run('delete from block where id = ?', id)
    if (typeof block.car === 'number') changes.cars.add(block.car)
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
    work += 1 + (isNeeded(db, upload as number) ? 0 : release(db, upload as number, changes))
    count++
  }
  return count
}

const wantedByAge = `select h.upload upload, u.bytes bytes, not exists (select 1 from holder o where o.upload = h.upload and o.name <> h.name
and (o.state = 'pending' or (o.kind = 'here' and o.state = 'pinned'))) alone
from holder h join upload u on u.id = h.upload where h.name = ? and h.state = 'pending' order by h.upload`

type Trim = Extract<Operation, { kind: 'trim' }>

/** The oldest rows beyond the limits. */
function beyond(db: Connection, { holder, limit, bytes }: Trim): readonly { readonly upload: number }[] {
  const rows = db.all(wantedByAge, holder) as readonly { upload: number; bytes: number; alone: number }[]
  let count = rows.length
  let alone = rows.reduce((sum, row) => sum + (row.alone ? row.bytes : 0), 0)
  return rows.filter((row) => {
    if (count <= limit && (alone <= bytes || !row.alone)) return false
    count--
    if (row.alone) alone -= row.bytes
    return true
  })
}

type Move = Extract<Step, { kind: 'move' }>

/** Blocks of a CAR file that is to go lie in another place now. */
function move(db: Connection, { from, blocks }: Move, { cars }: Changes): Result {
  const old = db.get('select id, at from car where name = ?', from)
  if (!old) return { value: false }
  const car = carRow(db, blocks, old.at as number)
  for (const one of [old.id as number, car]) if (one !== null) cars.add(one)
  let index = 0
  for (const key of keysIn(blocks.keys)) {
    const { bytes, at, length } = placeOf(blocks, index++, car)
    db.run(
      'update block set bytes = ?, car = ?, at = ?, length = ? where key = ? and car = ?',
      ...[bytes, car, at, length, key, old.id as number],
    )
  }
  return { value: true }
}

const quotaSql = `insert into quota (day, token, uploads, bytes) values (?, ?, ?, ?)
on conflict (day, token) do update set uploads = uploads + excluded.uploads, bytes = bytes + excluded.bytes`

function addQuota(db: Connection, { day, token, uploads, bytes }: QuotaUse): void {
  db.run(quotaSql, day, token, uploads, bytes)
  db.run('delete from quota where day < ?', day - 1)
}

const leftSql = `select name from car where not exists (select 1 from upload where upload.car = car.id)
and not exists (select 1 from loose where loose.car = car.id)`

/** Files that no row names are of uploads that were cut. Returns damage that was found. */
function sweep(db: Connection): readonly string[] {
  let named: readonly string[]
  try {
    named = db.all('select name from car').map(({ name }) => name as string)
  } catch {
    return ['the list of the files of uploads cannot be read']
  }
  const there = new Set(readdirSync(cars))
  const missing = named.filter((name) => !there.delete(name))
  for (const name of there) remove(name)
  return missing.length > 0 ? [`${missing.length} files of uploads are missing, ${missing[0]} first`] : []
}

function serve({ db, isMended }: ReturnType<typeof open>): void {
  const damage = isMended ? ['the first page of the database was mended by its copy'] : []
  const turns = createTurns(db)
  say({ opened: [...damage, ...sweep(db)] })
  try {
    say({ answers: [], hasReleased: false, left: db.all(leftSql).map(({ name }) => name as string) })
    const loose = db.all('select id from loose').map(({ id }) => id as number)
    if (loose.length > 0) turns.add({ step: { kind: 'drain', loose, result: { value: true } } })
  } catch {
    // The check for damage reports it.
  }
  parentPort?.on('message', (asked: readonly Asked[] | 'close') => {
    if (asked === 'close') return turns.close()
    for (const { id, operation } of asked) turns.add({ id, step: operation })
  })
}

try {
  serve(open())
} catch (error) {
  say({ failed: asText(error) })
}
