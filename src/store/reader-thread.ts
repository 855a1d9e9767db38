// The thread of `createReader` (blocks.ts): a read-only connection, and the CAR files. Cold reads wait here, and not on the event loop.
import { closeSync, fsyncSync, openSync, readSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { parentPort, workerData } from 'node:worker_threads'
import { asText, type Connection, type ErrorText, openForReading } from './engine.ts'
import { addKey, emptyFilter, type Filter } from './key-filter.ts'
import { copyLedger } from './schema.ts'
import type { Row, Value } from './store.ts'

export type ReaderData = { readonly file: string; readonly cars: string; readonly isFixed: boolean }

export type Question =
  | { readonly kind: 'blocks'; readonly keys: readonly Uint8Array[] }
  | { readonly kind: 'sql'; readonly sql: string; readonly args: readonly Value[] }
  | { readonly kind: 'filter' }
  | { readonly kind: 'check' }
  /** The ledger. */
  | { readonly kind: 'copy'; readonly to: string }

export type BlockAnswer = Uint8Array | undefined | { readonly error: ErrorText }

export type Replies = {
  readonly blocks: readonly BlockAnswer[]
  readonly sql: readonly Row[]
  /** With the highest id that it knows of. */
  readonly filter: { readonly filter: Filter; readonly last: number }
  /** Damage that was found. */
  readonly check: readonly string[]
  readonly copy: undefined
}

export type FromReader = { readonly id: number; readonly reply?: unknown; readonly error?: ErrorText }

const { file, cars, isFixed } = workerData as ReaderData
const blockSql = `select b.bytes bytes, c.name car, b.at at, b.length length from block b left join car c on c.id = b.car where b.key = ?`

function createReads() {
  const handles = new Map<string, number>()
  let connection: Connection | undefined

  function db(): Connection {
    connection ??= openForReading(file, { isFixed })
    return connection
  }

  function handleOf(name: string): number {
    const known = handles.get(name)
    if (known !== undefined) return known
    const handle = openSync(join(cars, name), 'r')
    handles.set(name, handle)
    return handle
  }

  function read(key: Uint8Array, isAgain = false): Uint8Array | undefined {
    const row = db().get(blockSql, key)
    if (!row || row.bytes instanceof Uint8Array) return row?.bytes as Uint8Array | undefined
    const length = row.length as number
    const bytes = new Uint8Array(length)
    try {
      const handle = handleOf(row.car as string)
      for (let done = 0; done < length; ) {
        const count = readSync(handle, bytes, done, length - done, (row.at as number) + done)
        if (count === 0) throw new Error(`the file ${row.car} is cut short`)
        done += count
      }
      return bytes
    } catch (error) {
      // Its blocks may have moved since the row was read.
      if (!isAgain) return read(key, true)
      throw error
    }
  }

  /** No file stays open: the room of one that is removed would not be free. */
  function blocks(keys: readonly Uint8Array[]): readonly BlockAnswer[] {
    const answers = keys.map((key) => {
      try {
        return read(key)
      } catch (error) {
        return { error: asText(error) }
      }
    })
    for (const handle of handles.values()) closeSync(handle)
    handles.clear()
    return answers
  }

  function filter(): Replies['filter'] {
    const { last, count } = db().get('select coalesce(max(id), 0) last, count(*) count from block') as {
      last: number
      count: number
    }
    const made = emptyFilter(count)
    for (const { key } of db().iterate('select key from block where id <= ?', last)) addKey(made, key as Uint8Array)
    return { filter: made, last }
  }

  function check(): readonly string[] {
    const found = db()
      .all('pragma quick_check(10)')
      .map((row) => String(Object.values(row)[0]))
    return found.filter((line) => line !== 'ok')
  }

  function copy(to: string): undefined {
    rmSync(`${to}.part`, { force: true })
    copyLedger(db(), `${to}.part`)
    const handle = openSync(`${to}.part`, 'r+')
    fsyncSync(handle)
    closeSync(handle)
    renameSync(`${to}.part`, to)
  }

  function answer(question: Question): unknown {
    switch (question.kind) {
      case 'blocks':
        return blocks(question.keys)
      case 'sql':
        return db().all(question.sql, ...question.args)
      case 'filter':
        return filter()
      case 'check':
        return check()
      case 'copy':
        return copy(question.to)
    }
  }

  return {
    answer,
    /** A connection that failed may see more when it is opened again. */
    forget() {
      connection?.close()
      connection = undefined
    },
  }
}

function serve(reads: ReturnType<typeof createReads>): void {
  parentPort?.on('message', ({ id, question }: { readonly id: number; readonly question: Question }) => {
    let message: FromReader
    try {
      message = { id, reply: reads.answer(question) }
    } catch (error) {
      reads.forget()
      message = { id, error: asText(error) }
    }
    parentPort?.postMessage(message)
  })
}

serve(createReads())
