// The thread of writer.ts: the one connection that writes. The operations of a message are one transaction.
import { existsSync, rmSync, statfsSync, writeFileSync } from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import { asText, type Connection, type ErrorText, troubleOf } from './engine.ts'
import { makesRoom, type Operation, type Outcome, perform } from './operations.ts'
import { openDatabase } from './schema.ts'

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
