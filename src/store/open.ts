// The store put together: one thread that writes, others that read where the database is not small, each started when it is
// needed; and upkeep in the background: the check for damage, the filter, the daily copy.
import { randomUUID } from 'node:crypto'
import { readdirSync, rmSync, statSync } from 'node:fs'
import { open as openFile, readdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../core/clock.ts'
import { createShared, makeFolder, orIfGone, type SharedFolders, tryToWrite } from '../core/disk/files.ts'
import { Failure, wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { createBlocks } from './blocks.ts'
import { type Connection, failureOf, markAt, openForReading, placesIn, troubleOf } from './engine.ts'
import { createCarFile, createIntake, packed } from './intake.ts'
import { createLedger } from './ledger.ts'
import { createOwnership, type Leave, type OwnerOptions } from './owner.ts'
import { Damaged, loneCarsSql, openDatabase } from './schema.ts'
import type { Accepted, Row, Store, StoreReader, Value } from './store.ts'
import { createThread, type Operation, type Question, type Thread } from './threads.ts'

type StoreOptions = {
  readonly clock: Clock
  readonly log: Log
  /** Resolves when this process owns the folder. */
  readonly owned?: Promise<unknown>
}

/** `isFixed`: the disk takes no writes. */
type Opened = { readonly connection: Connection; readonly isFixed: boolean }

/** A start has other work at first. */
const checkAfterMs = 5000
const idleMs = 60_000
/** 2 MiB: it lies in the page cache, and is read at once. A thread costs 30 ms of processor time and 10 MiB. */
const smallPages = 512
const dayMs = 86_400_000
const minuteMs = 60_000
const closedMs = 2000
const busyMs = 100
const tryMs = 50
const maxTries = 200

/** The part that both kinds of a store have. */
function createReading(folder: string, { log }: StoreOptions, opening: Promise<Opened>, isFollower: boolean) {
  let opened: Opened | undefined
  let isClosed = false
  const found = new Set<string>()
  const data = () => ({ ...placesIn(folder), isFixed: opened?.isFixed === true })
  const reader = createThread<Question>({ script: 'reader', name: 'store reader', data, idleMs })
  const thorough = createThread<Question>({ script: 'reader', name: 'store check', data, idleMs })

  function note(what: string): void {
    if (found.has(what)) return
    found.add(what)
    log('error', 'store.damaged', { folder, what })
  }

  function onError(error: unknown): void {
    const { message } = error as Error
    if (troubleOf(error) === 'damaged') note(message)
    else if (!isClosed) log('warn', 'store.read-failed', { folder, error: message })
  }

  function readNow(sql: string, ...args: readonly Value[]): readonly Row[] {
    if (!opened) throw new Error('the store is not open')
    return opened.connection.all(sql, ...args)
  }

  const isSmall = (): boolean => Number(readNow('pragma page_count')[0]?.page_count) <= smallPages

  /** Undefined: a thread has to read. */
  function replyNow(question: Question): { readonly reply: unknown } | undefined {
    try {
      if (!isSmall()) return undefined
      // Rows as a message brings them, with the prototype of objects.
      if (question.kind === 'sql') return { reply: readNow(question.sql, ...question.args).map((row) => ({ ...row })) }
      if (question.kind !== 'block') return undefined
      const [row] = readNow('select bytes from block where key = ?', question.key)
      return row?.bytes === null ? undefined : { reply: row?.bytes }
    } catch {
      return undefined
    }
  }

  const askOf =
    (thread: Thread<Question>) =>
    async (question: Question): Promise<unknown> => {
      const now = replyNow(question)
      return now ? now.reply : thread.ask(question)
    }

  const readOf =
    (thread: Thread<Question>): StoreReader['read'] =>
    async (sql, args = []) => {
      await ready
      try {
        return (await askOf(thread)({ kind: 'sql', sql, args })) as readonly Row[]
      } catch (error) {
        onError(error)
        throw failureOf(error, 'read the list of uploads')
      }
    }

  const ready = opening.then((one) => {
    opened = one
  })
  ready.catch(() => {})
  const ask = async (question: Question) =>
    askOf(question.kind === 'block' || question.kind === 'sql' ? reader : thorough)(question)
  const read = readOf(reader)

  return {
    ...{ ready, read, ask, note, onError },
    blocks: createBlocks({ ready, ask, readNow, isSmall, isFollower, onError }),
    ledger: createLedger(read, readOf(thorough)),
    damage(): string | undefined {
      if (found.size === 0) return undefined
      const [first] = found
      return `the store in ${folder} is damaged: ${first}${found.size > 1 ? `, and ${found.size - 1} more` : ''}; what can be read is served. Restore a backup, or stop cidgate and run \`cidgate doctor --salvage\``
    },
    async close() {
      isClosed = true
      await Promise.all([reader.close(), thorough.close()])
      await ready.catch(() => {})
      opened?.connection.close()
      opened = undefined
    },
  }
}

/** For a process that only reads: another one writes. */
export function createStoreReader(folder: string, options: StoreOptions): StoreReader {
  let isClosed = false

  /** The process that writes may just be making it. */
  async function openSoon(): Promise<Opened> {
    for (let left = maxTries; ; left--) {
      try {
        return { connection: openForReading(placesIn(folder).file, { timeout: busyMs }), isFixed: false }
      } catch (error) {
        if (left <= 0 || isClosed) throw error
      }
      await options.clock.sleep(tryMs)
    }
  }

  const { ready, blocks, ledger, read, damage, close, onError } = createReading(folder, options, openSoon(), true)
  blocks.makeFilter().catch(onError)
  return {
    ...{ ready, blocks, ledger, read, damage },
    close() {
      isClosed = true
      return close()
    },
  }
}

export function createStore(folder: string, options: StoreOptions): Store {
  const { clock, log, owned = Promise.resolve() } = options
  const places = placesIn(folder)
  const closing = new AbortController()
  const running = new Set<Promise<unknown>>()
  const data = () => ({ folder, ...places })
  const writer = createThread<Operation>({ script: 'writer', name: 'store writer', data })
  const opening = owned.then(open).catch(readOnly)
  const { ready, blocks, ledger, read, ask, note, onError, damage, close } = createReading(
    folder,
    options,
    opening,
    false,
  )
  inBackground(upkeep())

  async function open(): Promise<Opened> {
    await makeFolder(places.cars)
    const db = openOrMake()
    try {
      await sweep(db)
      // Opened before the other is closed, which would make a checkpoint.
      return { connection: openForReading(places.file, { timeout: busyMs }), isFixed: false }
    } finally {
      db.close()
    }
  }

  function openOrMake(): Connection {
    // A new database would make leftovers of the files of all uploads, to be removed.
    if (!statSync(places.file, { throwIfNoEntry: false })?.size && readdirSync(places.cars).length > 0)
      throw new Damaged(`there is no ${places.file}, and files of uploads are in ${places.cars}`)
    const make = (): Connection => {
      const { db, isMended } = openDatabase(places.file, places.head)
      if (isMended) note('the first page of the database was mended by its copy')
      return db
    }
    try {
      return make()
    } catch (error) {
      // A full disk refuses the files that the engine works with.
      if (!['full', 'failing', 'unopenable'].includes(troubleOf(error) ?? '')) throw error
      rmSync(places.reserve, { force: true })
      return make()
    }
  }

  /** Deletes what a killed process left. */
  async function sweep(db: Connection): Promise<void> {
    try {
      const names = await readdir(places.cars)
      const unnamed = new Set(names)
      const missing = db
        .all('select id, name from car')
        .filter(({ name }) => !unnamed.delete(name as string))
        .filter(({ id }) => db.get('select 1 from block where car = ? limit 1', id as number))
      if (missing.length > 0) note(`${missing.length} files of uploads are missing, ${missing[0]?.name} first`)
      const unknown: string[] = []
      for (const name of unnamed) {
        if (await wasAccepted(join(places.cars, name))) unknown.push(name)
        else await rm(join(places.cars, name), { force: true, recursive: true })
      }
      if (unknown.length > 0)
        note(`${unknown.length} files of uploads are newer than the database, ${unknown[0]} first`)
      if (db.get(`select id from loose union all ${loneCarsSql} limit 1`))
        inBackground(ready.then(() => writer.ask({ kind: 'write', statements: [] })))
    } catch (error) {
      note(`the list of the files of uploads cannot be read: ${wordsOf(error)}`)
    }
  }

  /** A disk that takes no writes may be read. */
  async function readOnly(error: unknown): Promise<Opened> {
    if (error instanceof Failure || troubleOf(error) === 'damaged') throw error
    const connection = await stat(places.file).then(
      () => openForReading(places.file, { isFixed: true }),
      () => Promise.reject(error),
    )
    log('error', 'store.read-only', { folder, error: wordsOf(error) })
    return { connection, isFixed: true }
  }

  function inBackground(work: Promise<unknown>): void {
    const tracked = work
      .catch((error: unknown) => {
        if (!closing.signal.aborted) log('warn', 'store.upkeep-failed', { folder, error: String(error) })
      })
      .finally(() => running.delete(tracked))
    running.add(tracked)
  }

  async function upkeep(): Promise<void> {
    if (
      !(await ready.then(
        () => true,
        () => false,
      ))
    )
      return
    await blocks.makeFilter()
    for (let ms = checkAfterMs; ; ms = dayMs) {
      await clock.sleep(ms, closing.signal)
      if ((await read('select 1 from upload limit 1')).length === 0) continue
      for (const line of (await ask({ kind: 'check' })) as readonly string[]) note(line)
      const copied = await orIfGone(stat(places.copy), undefined)
      // A copy that was made from a damaged database would take the place of a good one.
      if (damage() === undefined && clock.now() - (copied?.mtimeMs ?? 0) >= dayMs - minuteMs)
        await ask({ kind: 'copy' })
    }
  }

  async function commit(operation: Operation, what: string): Promise<unknown> {
    try {
      await opening
      return await writer.ask(operation)
    } catch (error) {
      if (troubleOf(error) === 'damaged') onError(error)
      throw failureOf(error, what)
    }
  }

  const store: Store = {
    ...{ ready, blocks, ledger, read, damage },
    begin() {
      /** Files that no row names are deleted at the start: none is made before that. */
      const newFile = () => createCarFile(join(places.cars, `${randomUUID()}.car`), ready)
      return createIntake({ newFile, offer: blocks.offer, stored: blocks.get })
    },
    async accept(uploads: readonly Accepted[], quota = []) {
      const rows = await packed(uploads).catch((error: unknown) => {
        throw failureOf(error, 'take an upload')
      })
      const committed = blocks.adding()
      await commit({ kind: 'accept', ...rows, quota }, 'take an upload').finally(committed)
    },
    update: async (cid, holders) =>
      (await commit({ kind: 'update', cid: cid.toV1().bytes, holders }, 'change an upload')) === true,
    remove: async (cid) =>
      (await commit({ kind: 'update', cid: cid.toV1().bytes, holders: undefined }, 'delete an upload')) === true,
    forget: (holder) => store.trim(holder, 0, 0),
    trim: async (holder, limit, bytes) =>
      Number(await commit({ kind: 'trim', holder, limit, bytes }, 'change uploads')),
    async write(statements) {
      await commit({ kind: 'write', statements }, 'write to the database')
    },
    async probe() {
      await ready.catch((error: unknown) => {
        throw failureOf(error, 'open the database')
      })
      // Writes the first page as it is.
      await commit({ kind: 'write', statements: [{ sql: 'pragma user_version = 1', args: [] }] }, 'take an upload')
      const error = await tryToWrite(places.cars).catch((cause: unknown) => cause)
      if (error) throw failureOf(error, `write to ${places.cars}`)
    },
    async close() {
      closing.abort(new Failure('cancelled', 'this gateway stops', { source: 'ours' }))
      const waited = new AbortController()
      await Promise.race([Promise.all(running), clock.sleep(closedMs, waited.signal)]).catch(() => {})
      waited.abort()
      await close()
      // The last connection leaves one whole file.
      await writer.close()
    },
  }
  return store
}

async function wasAccepted(file: string): Promise<boolean> {
  const handle = await openFile(file, 'r')
  try {
    const { buffer } = await handle.read(Buffer.alloc(1), 0, 1, markAt)
    return buffer[0] === 1
  } finally {
    await handle.close()
  }
}

// A store is shared by the gateways of this process over one folder, and closed with the last of them.

type JoinOptions = Pick<OwnerOptions, 'clock' | 'log'>

export interface Joined<Kind extends StoreReader = Store> {
  readonly store: Kind
  leave(): Promise<void>
}

/** Where it is, there is a store. */
export const databaseIn = (folder: string): string => placesIn(folder).file

type Folder = ReturnType<SharedFolders['enter']>

/** The folder is this process's own from here on; where another one has it, `store.ready` rejects and nothing is touched. */
export function joinStore(folder: Folder, { clock, log }: JoinOptions): Joined {
  const { one, leave } = folder.part(createSharedStore)({ folder, clock, log })
  return { store: one.store, leave }
}

/** For a process beside the one that owns the folder. */
export function joinReader(folder: Folder, { clock, log }: JoinOptions): Joined<StoreReader> {
  const { one, leave } = folder.part(createSharedReader)({ clock, log })
  return { store: one, leave }
}

function createSharedStore(path: string) {
  type Shared = { readonly store: Store; readonly owned: Promise<Leave> }
  return createShared<JoinOptions & { readonly folder: Folder }, Shared>(
    ({ folder, clock, log }, before) => {
      const owned = before.then(() => folder.part(createOwnership)({ clock, log }))
      owned.catch(() => {})
      return { store: createStore(path, { clock, log, owned }), owned }
    },
    async ({ store, owned }) => {
      await store.close()
      const leave = await owned.catch(() => undefined)
      await leave?.()
    },
  )
}

const createSharedReader = (path: string) =>
  createShared<JoinOptions, StoreReader>(
    (options) => createStoreReader(path, options),
    (reader) => reader.close(),
  )
