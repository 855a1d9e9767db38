// A thread that reads: a read-only connection, and the CAR files. Cold and long reads wait here,
// and not on the event loop.
import { closeSync, openSync, readSync } from 'node:fs'
import { join } from 'node:path'
import { parentPort, workerData } from 'node:worker_threads'
import { compareCars, damagedPages } from './check.ts'
import { type Connection, copyLedger, filterOf, openForReading, type Places } from './database.ts'
import { type Asked, asText, type ReaderQuery } from './threads.ts'

const { file, copy, cars, isFixed } = workerData as Places & { readonly isFixed: boolean }
const blockSql =
  'select b.bytes, c.name car, b.at, b.length from block b left join car c on c.id = b.car where b.key = ?'

let connection: Connection | undefined
/** Open during one message: a removed file uses its space as long as it is open. */
const handles = new Map<string, number>()

function db(): Connection {
  connection ??= openForReading(file, { isFixed })
  return connection
}

function block(key: Uint8Array, isAgain = false): Uint8Array | undefined {
  const row = db().get(blockSql, key)
  if (!row || row.bytes instanceof Uint8Array) return row?.bytes as Uint8Array | undefined
  if (row.car === null) throw new Error('this block was lost when the database was damaged; upload its file again')
  try {
    return readFrom(row.car as string, row.at as number, row.length as number)
  } catch (error) {
    // It may have moved since the row was read.
    if (!isAgain) return block(key, true)
    throw error
  }
}

function readFrom(car: string, at: number, length: number): Uint8Array {
  const handle = handles.get(car) ?? openSync(join(cars, car), 'r')
  handles.set(car, handle)
  const bytes = new Uint8Array(length)
  for (let done = 0; done < length; ) {
    const count = readSync(handle, bytes, done, length - done, at + done)
    if (count === 0) throw new Error(`the file ${car} is cut short`)
    done += count
  }
  return bytes
}

function replyTo(question: ReaderQuery): unknown {
  switch (question.kind) {
    case 'block':
      return block(question.key)
    case 'sql':
      return db().all(question.sql, ...question.args)
    case 'filter':
      return filterOf(db()).bits
    case 'check':
      return [...damagedPages(db()), ...compareCars(db(), cars).damage]
    case 'copy':
      return copyLedger(file, copy)
  }
}

parentPort?.on('message', (asked: readonly Asked<ReaderQuery>[]) => {
  const answers = asked.map(({ id, question }) => {
    try {
      return { id, reply: replyTo(question) }
    } catch (error) {
      // A connection that failed may see more when it is opened again.
      connection?.close()
      connection = undefined
      return { id, error: asText(error) }
    }
  })
  for (const handle of handles.values()) closeSync(handle)
  handles.clear()
  parentPort?.postMessage(answers)
})
