// The thread that writes: the one connection, and the folder of the CAR files. The light operations
// that came meanwhile and at most one heavy one are one transaction, each in a savepoint of it. An
// operation of very many blocks takes several, between those of others; what it wrote so far is
// named by rows of `loose`, so that the next process deletes what a kill leaves of it.
import { closeSync, existsSync, openSync, readSync, rmSync, statfsSync, writeFileSync, writeSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { parentPort, workerData } from 'node:worker_threads'
import { syncFolder } from '../core/disk/files.ts'
import {
  keysIn,
  loneCarsSql,
  markAt,
  noSpace,
  openForWriting,
  type Places,
  packIds,
  spaceIn,
  troubleOf,
  unpackIds,
} from './database.ts'
import type { Standing } from './store.ts'
import {
  type AcceptedRow,
  type Answer,
  type Asked,
  asText,
  type ErrorText,
  type Operation,
  type PackedBlocks,
} from './threads.ts'

const reserveAfterMs = 5000
const scarce = 16
/** A change of more blocks takes several transactions, so that nobody waits for all of them. */
const blocksAtOnce = 4096
const bytesAtOnce = 4 * 1024 * 1024
/** Operations of more blocks wait for each other. */
const lightBlocks = 1024
const { folder, file, reserve, cars } = workerData as Places & { readonly folder: string }

const space = () => spaceIn(statfsSync(folder))

/**
 * The reserve is as large as the space that is kept free. Real bytes: a file with holes would reserve
 * nothing.
 */
function makeReserve(): void {
  try {
    const { free, kept } = space()
    if (free > 2 * kept && !existsSync(reserve)) writeFileSync(reserve, Buffer.alloc(kept), { flush: true })
  } catch {
    dropReserve()
  }
}

const dropReserve = (): void => rmSync(reserve, { force: true })

/** Runs in one transaction. */
type Step = (touched: Touched) => Result

/**
 * `next`: it goes on in another transaction. `loose`: rows that name what it wrote so far, to be
 * deleted where it fails. `isDone`: only blocks to be deleted remain.
 */
type Result =
  | { readonly value: boolean | number }
  | { readonly next: Step; readonly loose?: readonly number[]; readonly isDone?: true }

type Task = {
  /** Undefined: nobody waits for it. */
  readonly id?: number | undefined
  readonly step: Step
  /**
   * Runs on a full disk too, with the space of the reserve where it must; its steps may run again.
   */
  readonly freesSpace: boolean
  readonly isHeavy: boolean
  readonly isRetried?: boolean
  /** The CAR file of its uploads. */
  readonly car?: string | undefined
  readonly loose?: readonly number[] | undefined
}

/** CAR files that lost an upload or a block. */
type Touched = Set<number>

type Car = { readonly id: number; readonly name: string; readonly bytes: number; readonly used: number | null }

const db = openForWriting(file)
let queue: Task[] = []
let isDue = false
let isClosing = false
let isReserveDue = true
/**
 * Files of uploads whose transaction failed: they may count after a restart, until another
 * transaction is over.
 */
const doubtful: string[] = []
// These belong to the transaction under way: files that no row needs any more, and those that
// uploads were accepted with.
let gone: Car[] = []
let accepted: string[] = []

function add(task: Task): void {
  queue.push(task)
  if (!isDue) setImmediate(runQueue)
  isDue = true
}

function addLater(step: Step, freesSpace = true): void {
  if (!isClosing) add({ step, freesSpace, isHeavy: true })
}

/** Takes all that are light, and one that is not. */
function takeSome(): readonly Task[] {
  const heavy = queue.find(({ isHeavy }) => isHeavy)
  const taken = queue.filter((task) => task === heavy || !task.isHeavy)
  queue = queue.filter((task) => task !== heavy && task.isHeavy)
  return taken
}

function runQueue(): void {
  const tasks = takeSome()
  const { free, kept } = space()
  if (isReserveDue && free < scarce * kept) {
    makeReserve()
    isReserveDue = !existsSync(reserve)
  }
  const begun = free < kept ? tasks.filter(({ freesSpace }) => freesSpace) : tasks
  const outcomes = begun.length > 0 ? commit(begun) : new Map<Task, Outcome>()
  parentPort?.postMessage(tasks.flatMap((task) => settle(task, outcomes.get(task)) ?? []))
  isDue = queue.length > 0
  if (isClosing && !queue.some(({ id }) => id !== undefined)) end()
  else if (isDue) setImmediate(runQueue)
}

type Outcome = Result | { readonly error: ErrorText }

function commit(tasks: readonly Task[]): Map<Task, Outcome> {
  gone = []
  accepted = []
  try {
    db.exec('begin immediate')
    const outcomes = new Map(tasks.map((task) => [task, run(task)]))
    db.exec('commit')
    for (const name of accepted) mark(name)
    for (const name of doubtful.splice(0)) removeUnnamed(name)
    for (const car of gone) removeCar(car).catch(() => {})
    if (tasks.some(({ isRetried }) => isRetried)) checkpoint()
    return outcomes
  } catch (error) {
    if (db.isInTransaction) db.exec('rollback')
    return new Map(tasks.map((task) => [task, { error: asText(error) }]))
  }
}

function checkpoint(): void {
  try {
    db.exec('pragma wal_checkpoint(truncate)')
  } catch {}
}

/** Throws where the engine gave up the whole transaction. */
function run({ step }: Task): Outcome {
  const touched: Touched = new Set()
  db.exec('savepoint one')
  try {
    const result = step(touched)
    const cars = [...touched].flatMap((id) => loneCar(id) ?? [])
    db.exec('release one')
    for (const car of cars) {
      if (car.used === null) gone.push(car)
      else addLater((again) => empty(car, again), false)
    }
    return result
  } catch (error) {
    if (!db.isInTransaction || troubleOf(error) === 'full') throw error
    db.exec('rollback to one; release one')
    return { error: asText(error) }
  }
}

/** Undefined: it goes on, or nobody waits for it. */
function settle(task: Task, outcome: Outcome | undefined): Answer | undefined {
  const { id } = task
  if (outcome && 'next' in outcome) {
    const { next: step, loose, isDone } = outcome
    const now = isDone ? { id, freesSpace: true } : task
    return void queue.push({ ...now, step, loose, isHeavy: true, isRetried: false })
  }
  if (outcome && 'value' in outcome) return id === undefined ? undefined : { id, reply: outcome.value }
  const error: ErrorText = outcome?.error ?? noSpace
  const isFull = error.code === 'ENOSPC' || (error.errcode ?? 0) % 256 === 13
  // Deletions get the space of the reserve, which is made again when they have freed some.
  if (task.freesSpace && isFull && !task.isRetried) {
    dropReserve()
    isReserveDue = true
    return void queue.push({ ...task, isRetried: true })
  }
  const { car, loose = [] } = task
  if (loose.length > 0) queue.push({ step: drain(loose, true), freesSpace: true, isHeavy: true })
  else if (car !== undefined && outcome) doubtful.push(car)
  else if (car !== undefined) removeUnnamed(car)
  return id === undefined ? undefined : { id, error }
}

function end(): void {
  db.close()
  parentPort?.close()
}

// CAR files.

/** Tells it from a file that was written and not accepted, to a database that does not know it. */
function mark(name: string): void {
  try {
    const handle = openSync(join(cars, name), 'r+')
    try {
      writeSync(handle, Uint8Array.of(1), 0, 1, markAt)
    } finally {
      closeSync(handle)
    }
  } catch {}
}

const remove = (name: string): Promise<void> => rm(join(cars, name), { force: true })

/** Another upload of its request may have been accepted with it. */
function removeUnnamed(name: string): void {
  try {
    if (!db.get('select 1 from car where name = ?', name)) remove(name).catch(() => {})
  } catch {
    // The disk fails: the next start removes the file, which no upload was accepted with.
  }
}

/**
 * The row goes when its file is surely gone, so that a power cut leaves no file that nothing knows.
 */
async function removeCar({ id, name }: Car): Promise<void> {
  await remove(name)
  await syncFolder(cars)
  addLater(() => {
    db.run('delete from car where id = ?', id)
    return { value: true }
  })
}

const loneSql = `select id, name, bytes, (select sum(length) from block where car = car.id) used from car where id = ?
and not exists (select 1 from upload where upload.car = car.id) and not exists (select 1 from loose where loose.car = car.id)`

/**
 * A file that no upload names goes. Blocks that others still need leave it before, unless they are
 * most of it.
 */
function loneCar(id: number): Car | undefined {
  const car = db.get(loneSql, id) as unknown as Car | undefined
  return car && (car.used ?? 0) <= car.bytes / 2 ? car : undefined
}

/** Moves some of its blocks into rows. */
function empty({ id, name }: Car, touched: Touched): Result {
  if (!loneCar(id)) return { value: false }
  touched.add(id)
  const blocks = db.all('select id, at, length from block where car = ? limit ?', id, blocksAtOnce)
  const handle = openSync(join(cars, name), 'r')
  try {
    let moved = 0
    for (const block of blocks) {
      const bytes = Buffer.alloc(block.length as number)
      for (let done = 0, read = 0; done < bytes.byteLength; done += read) {
        read = readSync(handle, bytes, done, bytes.byteLength - done, (block.at as number) + done)
        if (read === 0) throw new Error('a file of uploads is cut short')
      }
      db.run('update block set bytes = ?, car = null, at = null where id = ?', bytes, block.id as number)
      moved += bytes.byteLength
      if (moved >= bytesAtOnce) break
    }
  } finally {
    closeSync(handle)
  }
  return { value: true }
}

// Operations.

function taskOf({ id, question }: Asked<Operation>): Task {
  const isHeavy = question.kind === 'accept' && question.blocks.lengths.length > lightBlocks
  const task = { id, isHeavy, freesSpace: question.kind === 'update' || question.kind === 'trim' }
  switch (question.kind) {
    case 'accept':
      return { ...task, step: accept(question), car: question.blocks.car?.name }
    case 'update':
      return { ...task, step: (touched) => update(question, touched) }
    case 'trim':
      return { ...task, step: trim(question) }
  }
}

type Of<Kind extends Operation['kind']> = Extract<Operation, { kind: Kind }>

function update({ cid, holders }: Of<'update'>, touched: Touched): Result {
  const upload = idOf(cid)
  if (upload === undefined) return { value: false }
  for (const [name, standing] of Object.entries(holders ?? {})) setHolder(upload, name, standing)
  const loose = holders && isNeeded(upload) ? [] : release(upload, touched)
  if (!holders) {
    db.run('delete from holder where upload = ?', upload)
    db.run('delete from upload where id = ?', upload)
  }
  return drained(loose, true)
}

const idOf = (cid: Uint8Array): number | undefined =>
  db.get('select id from upload where cid = ?', cid)?.id as number | undefined

const drained = (loose: readonly number[], value: boolean | number): Result =>
  loose.length > 0 ? { next: drain(loose, value), isDone: true } : { value }

/** Deletes the blocks that these rows of `loose` name, row by row. */
const drain =
  ([id, ...others]: readonly number[], value: boolean | number): Step =>
  (touched) => {
    const row = db.get('select car, ids from loose where id = ?', id as number)
    db.run('delete from loose where id = ?', id as number)
    if (typeof row?.car === 'number') touched.add(row.car)
    if (row) releaseBlocks(unpackIds(row.ids as Uint8Array), touched)
    return drained(others, value)
  }

/** Very many blocks are written by several steps, before the one that accepts the uploads. */
function accept({ blocks, uploads, statements }: Of<'accept'>): Step {
  const ids = new Float64Array(blocks.lengths.length)
  const uses = new Uint32Array(ids.length)
  for (const { list } of uploads) for (const index of list) uses[index] = (uses[index] as number) + 1
  const slices = slicesOf(blocks)
  const carId = (): number | null => carRow(blocks, uploads[0]?.at ?? 0)

  const stage =
    (index: number, loose: readonly number[]): Step =>
    (touched) => {
      const car = carId()
      const used = putBlocks(blocks, slices[index] as Slice, { car, uses, ids }, touched)
      const named = [...loose, putLoose(car, used)]
      return { next: index + 1 < slices.length ? stage(index + 1, named) : finish(named), loose: named }
    }

  const finish =
    (loose: readonly number[]): Step =>
    (touched) => {
      const car = carId()
      if (slices.length === 1) putBlocks(blocks, slices[0] as Slice, { car, uses, ids }, touched)
      for (const id of loose) db.run('delete from loose where id = ?', id)
      const released = uploads.flatMap((upload) => {
        const listed = packIds(upload.list.map((at) => ids[at] as number))
        return putUpload(upload, car, listed, touched)
      })
      for (const { sql, args } of statements) db.run(sql, ...args)
      if (blocks.car) accepted.push(blocks.car.name)
      return drained(released, true)
    }

  return slices.length > 1 ? stage(0, []) : finish([])
}

const putLoose = (car: number | null, ids: readonly number[]): number =>
  db.run('insert into loose (car, ids) values (?, ?)', car, packIds(ids))

function carRow({ car }: PackedBlocks, at: number): number | null {
  if (!car) return null
  const known = db.get('select id from car where name = ?', car.name)?.id as number | undefined
  return known ?? db.run('insert into car (name, bytes, at) values (?, ?, ?)', car.name, car.bytes, at)
}

/** Keys of blocks, with their places among those of their intake. */
type Slice = readonly { readonly key: Uint8Array; readonly index: number }[]

/**
 * As many blocks as one commit takes, with keys that lie near each other: a commit writes each page
 * of the index that it touches.
 */
function slicesOf({ keys, lengths }: PackedBlocks): readonly Slice[] {
  const shares = Array.from({ length: Math.ceil(lengths.length / (0.9 * blocksAtOnce)) }, (): Slice[number][] => [])
  let index = 0
  for (const key of keysIn(keys)) {
    // Behind the name of the hash function and the length of its hash.
    const share = (((key[2] ?? 0) << 8) | (key[3] ?? 0)) / 0x10000
    shares[Math.floor(share * shares.length)]?.push({ key, index: index++ })
  }
  return shares.flatMap((share) => parts(share))
}

/** As many at once as one commit takes. */
const parts = <One>(all: readonly One[]): One[][] =>
  Array.from({ length: Math.ceil(all.length / blocksAtOnce) }, (_, part) =>
    all.slice(part * blocksAtOnce, (part + 1) * blocksAtOnce),
  )

type Put = { readonly car: number | null; readonly uses: Uint32Array; readonly ids: Float64Array }

/**
 * Returns the id of each block, as often as it is used. The newest copy counts: an older one may
 * have rotted.
 */
function putBlocks({ lengths, ats, bytes }: PackedBlocks, slice: Slice, put: Put, touched: Touched): number[] {
  const used: number[] = []
  for (const { key, index } of slice) {
    const uses = put.uses[index] as number
    if (uses === 0) continue
    const [at, length] = [ats[index] as number, lengths[index] as number]
    const place = bytes ? [bytes.subarray(at, at + length), null, null, length] : [null, put.car, at, length]
    const old = db.get('select id, car from block where key = ?', key)
    if (typeof old?.car === 'number') touched.add(old.car)
    const id = old
      ? (old.id as number)
      : db.run('insert into block (key, bytes, car, at, length, uses) values (?, ?, ?, ?, ?, ?)', key, ...place, uses)
    if (old)
      db.run(
        'update block set bytes = ?, car = ?, at = ?, length = ?, uses = uses + ? where id = ?',
        ...place,
        uses,
        id,
      )
    put.ids[index] = id
    for (let count = uses; count > 0; count--) used.push(id)
  }
  return used
}

/** Returns rows of `loose` that are to be drained. */
function putUpload(upload: AcceptedRow, car: number | null, listed: Buffer, touched: Touched): readonly number[] {
  const { cid, name = null, profile, bytes, carBytes, at, holders } = upload
  const known = idOf(cid)
  const released = known === undefined ? [] : release(known, touched)
  const facts = [name, profile, bytes, carBytes, at, car, listed]
  const id = known ?? db.run('insert into upload (cid) values (?)', cid)
  db.run(
    'update upload set name = coalesce(?, name), profile = ?, bytes = ?, car_bytes = ?, at = ?, car = ?, blocks = ? where id = ?',
    ...facts,
    id,
  )
  for (const [name, standing] of Object.entries(holders)) {
    if (standing.kind === 'here')
      db.run("delete from holder where upload = ? and kind = 'here' and name <> ?", id, name)
    setHolder(id, name, standing)
  }
  // Where every holder has it and none is the store itself, its row stays and its blocks go.
  return isNeeded(id) ? released : [...released, ...release(id, touched)]
}

function setHolder(upload: number, name: string, standing: Standing | undefined): void {
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

const needs = "(o.state = 'pending' or (o.kind = 'here' and o.state = 'pinned'))"

const isNeeded = (upload: number): boolean =>
  db.get(`select 1 from holder o where o.upload = ? and ${needs} limit 1`, upload) !== undefined

/**
 * Its blocks go, but for those that another upload lists; very many by and by: returns the rows of
 * `loose` that name them.
 */
function release(upload: number, touched: Touched): readonly number[] {
  const row = db.get('select car, blocks from upload where id = ?', upload)
  if (!(row?.blocks instanceof Uint8Array)) return []
  const car = row.car as number | null
  if (car !== null) touched.add(car)
  db.run('update upload set car = null, blocks = null where id = ?', upload)
  const ids = unpackIds(row.blocks)
  if (ids.length <= blocksAtOnce) {
    releaseBlocks(ids, touched)
    return []
  }
  // Near each other, as they were staged.
  ids.sort((one, other) => one - other)
  return parts(ids).map((some) => putLoose(car, some))
}

function releaseBlocks(ids: readonly number[], touched: Touched): void {
  for (const id of ids) {
    const block = db.get('select car, uses from block where id = ?', id)
    if (!block) continue
    if ((block.uses as number) > 1) db.run('update block set uses = uses - 1 where id = ?', id)
    else db.run('delete from block where id = ?', id)
    if (typeof block.car === 'number') touched.add(block.car)
  }
}

const pendingByAge = `select h.upload upload, u.bytes bytes, length(u.blocks) listed, not exists
(select 1 from holder o where o.upload = h.upload and o.name <> h.name and ${needs}) alone
from holder h join upload u on u.id = h.upload where h.name = ? and h.state = 'pending' order by h.upload`

type Pending = { readonly upload: number; readonly bytes: number; readonly listed: number; readonly alone: number }

/** The oldest rows beyond the limits, so many in each transaction as it takes. */
const trim =
  (operation: Of<'trim'>, before = 0, loose: readonly number[] = []): Step =>
  (touched) => {
    const { holder, limit, bytes } = operation
    const rows = db.all(pendingByAge, holder) as unknown as readonly Pending[]
    let count = rows.length
    let alone = rows.reduce((sum, row) => sum + (row.alone ? row.bytes : 0), 0)
    const released = [...loose]
    let done = before
    let work = 0
    for (const row of rows) {
      if (count <= limit && (alone <= bytes || !row.alone)) continue
      if (work >= blocksAtOnce) return { next: trim(operation, done, released), loose: released }
      db.run('delete from holder where upload = ? and name = ?', row.upload, holder)
      if (row.alone) released.push(...release(row.upload, touched))
      work += 1 + (row.alone ? (row.listed ?? 0) / 6 : 0)
      if (row.alone) alone -= row.bytes
      count--
      done++
    }
    return drained(released, done)
  }

/** Goes on with what an earlier process was killed in. */
function begin(): void {
  const loose = db.all('select id from loose').map(({ id }) => id as number)
  if (loose.length > 0) addLater(drain(loose, true))
  addLater((touched) => {
    for (const { id } of db.all(loneCarsSql)) touched.add(id as number)
    return { value: true }
  })
}

begin()
// A start has other work, and most disks have space.
setTimeout(makeReserve, reserveAfterMs).unref()
parentPort?.on('message', (asked: readonly Asked<Operation>[] | 'close') => {
  if (asked !== 'close') for (const one of asked) add(taskOf(one))
  else {
    isClosing = true
    if (!isDue) end()
  }
})
