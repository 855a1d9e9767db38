// The store of the process that owns its folder: the start, a thread that writes, which starts with
// the first commit, and upkeep in the background: the check for damage, and the daily copy.
import { randomUUID } from 'node:crypto'
import { rmSync, statSync } from 'node:fs'
import { rm, stat, statfs } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../core/clock.ts'
import { createShared, makeFolder, orIfGone, type SharedFolders, tryToWrite } from '../core/disk/files.ts'
import { Failure, wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { compareCars, lossOf } from './check.ts'
import {
  type Connection,
  Damaged,
  failureOf,
  keysIn,
  loneCarsSql,
  noSpace,
  openDatabase,
  openForReading,
  placesIn,
  spaceIn,
  troubleOf,
} from './database.ts'
import { createCarFile, createIntake, packed } from './intake.ts'
import { type Leave, type OwnerOptions, ownFolder } from './owner.ts'
import { createReading, createStoreReader, openHere, type ReadingOptions } from './reading.ts'
import type { Accepted, QuotaUse, Statement, Store, StoreReader } from './store.ts'
import { createThread, type Operation } from './threads.ts'

type StoreOptions = {
  readonly clock: Clock
  readonly log: Log
  /** Resolves when this process owns the folder, with what leaves it. */
  readonly owned?: Promise<Leave | undefined>
}

type Opened = Awaited<ReadingOptions['opening']>

/** A start has other work at first. */
const checkAfterMs = 5000
const dayMs = 86_400_000
const minuteMs = 60_000
const closedMs = 2000

export function createStore(folder: string, options: StoreOptions): Store {
  const { clock, log, owned = Promise.resolve(undefined) } = options
  const places = placesIn(folder)
  const closing = new AbortController()
  const running = new Set<Promise<unknown>>()
  /** Undefined: it is read only. */
  let fileId: string | undefined
  const data = () => ({ folder, ...places })
  const writer = createThread<Operation>({ script: 'writer', name: 'store writer', data })
  const opening = owned.then(open).catch(readOnly)
  const reading = createReading(folder, { clock, log, opening, isWriter: true })
  const { ready, blocks, ledger, read, check, ask, note, damage } = reading
  ready.then(
    () => inBackground(upkeep()),
    () => {},
  )

  async function open(): Promise<Opened> {
    await makeFolder(places.cars)
    const db = openOrMake()
    try {
      await sweep(db)
      fileId = idOf(places.file)
      // Opened before the other is closed, which would make a checkpoint.
      return { connection: openHere(folder), isFixed: false }
    } finally {
      db.close()
    }
  }

  function openOrMake(): Connection {
    // A new database would hide the loss of the old one, and make leftovers of the files of uploads.
    const loss = lossOf(places)
    if (loss !== undefined) throw new Damaged(loss)
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

  /** Deletes the files of uploads that a kill cut. */
  async function sweep(db: Connection): Promise<void> {
    try {
      const { damage: found, unneeded } = compareCars(db, places.cars)
      for (const line of found) note(line)
      for (const name of unneeded) await rm(join(places.cars, name), { force: true })
      if (db.get(`select id from loose union all ${loneCarsSql} limit 1`))
        inBackground(ready.then(() => store.write([])))
    } catch (error) {
      note(`the list of the files of uploads cannot be read: ${wordsOf(error)}`)
    }
  }

  /** A disk that takes no writes may be read. */
  async function readOnly(error: unknown): Promise<Opened> {
    const mayRead = error instanceof Failure ? error.kind === 'disk-error' : troubleOf(error) !== 'damaged'
    if (!mayRead) throw error
    const connection = await stat(places.file).then(
      () => openForReading(places.file, { isFixed: true }),
      () => Promise.reject(error),
    )
    log('error', 'store.read-only', { folder, error: wordsOf(error) })
    return { connection, isFixed: true }
  }

  function inBackground(work: Promise<unknown>): void {
    const tracked = work.catch(upkeepFailed).finally(() => running.delete(tracked))
    running.add(tracked)
  }

  function upkeepFailed(error: unknown): void {
    if (!closing.signal.aborted) log('warn', 'store.upkeep-failed', { folder, error: String(error) })
  }

  async function upkeep(): Promise<void> {
    for (let ms = checkAfterMs; ; ms = dayMs) {
      await clock.sleep(ms, closing.signal)
      await checkAndCopy().catch(upkeepFailed)
    }
  }

  async function checkAndCopy(): Promise<void> {
    if ((await read('select 1 from upload limit 1')).length === 0) return
    for (const line of await check()) note(line)
    const copied = await orIfGone(stat(places.copy), undefined)
    // A copy that was made from a damaged database would take the place of a good one.
    if (damage() === undefined && clock.now() - (copied?.mtimeMs ?? 0) >= dayMs - minuteMs) await ask({ kind: 'copy' })
  }

  /** Commits to a file that was removed would be lost with its last descriptor. */
  function assertInPlace(): void {
    if (fileId === undefined || idOf(places.file) === fileId) return
    throw new Damaged(
      `${places.file} was removed or replaced while it was open`,
      'its database was removed or replaced while it was open; put it back, or restart cidgate',
    )
  }

  async function commit(operation: Operation, what: string): Promise<unknown> {
    try {
      await opening
      assertInPlace()
      const reply = await writer.ask(operation)
      assertInPlace()
      return reply
    } catch (error) {
      if (troubleOf(error) === 'damaged') note((error as Error).message)
      throw failureOf(error, what)
    }
  }

  const store: Store = {
    ...{ ready, blocks, ledger, read, check, damage },
    begin() {
      /** Files that no row names are deleted at the start: none is made before that. */
      const newFile = () => createCarFile(join(places.cars, `${randomUUID()}.car`), ready)
      return createIntake({ newFile, offer: reading.offer, stored: blocks.get })
    },
    async accept(uploads: readonly Accepted[], quota = []) {
      const rows = await packed(uploads).catch((error: unknown) => {
        throw failureOf(error, 'take an upload')
      })
      for (const key of keysIn(rows.blocks.keys)) reading.filter.add(key)
      await commit({ kind: 'accept', ...rows, statements: quota.flatMap(quotaStatements) }, 'take an upload')
    },
    update: async (cid, holders) =>
      (await commit({ kind: 'update', cid: cid.toV1().bytes, holders }, 'change an upload')) === true,
    remove: async (cid) =>
      (await commit({ kind: 'update', cid: cid.toV1().bytes, holders: undefined }, 'delete an upload')) === true,
    trim: async (holder, limit, bytes) =>
      Number(await commit({ kind: 'trim', holder, limit, bytes }, 'change uploads')),
    async write(statements) {
      await commit({ kind: 'accept', ...(await packed([])), statements }, 'write to the database')
    },
    async probe() {
      const { isFixed } = await opening
        .then((opened) => {
          assertInPlace()
          return opened
        })
        .catch((error: unknown) => {
          throw failureOf(error, 'open the database')
        })
      // Writes the first page as it is. A writer that nobody needed yet is not started for it.
      if (writer.isStarted || isFixed) await store.write([{ sql: 'pragma user_version = 1', args: [] }])
      try {
        await tryToWrite(places.cars)
        const { free, kept } = spaceIn(await statfs(folder))
        if (free < kept) throw Object.assign(new Error(), noSpace)
      } catch (error) {
        throw failureOf(error, `write to ${places.cars}`)
      }
    },
    async close() {
      closing.abort(new Failure('cancelled', 'this gateway stops', { source: 'ours' }))
      const waited = new AbortController()
      await Promise.race([Promise.all(running), clock.sleep(closedMs, waited.signal)]).catch(() => {})
      waited.abort()
      await reading.close()
      // The last connection leaves one whole file.
      await writer.close()
      const leave = await owned.catch(() => undefined)
      leave?.()
    },
  }
  return store
}

function idOf(file: string): string | undefined {
  const found = statSync(file, { throwIfNoEntry: false })
  return found && `${found.dev}:${found.ino}`
}

const quotaSql = `insert into quota (day, token, uploads, bytes) values (?, ?, ?, ?)
on conflict (day, token) do update set uploads = uploads + excluded.uploads, bytes = bytes + excluded.bytes`

const quotaStatements = ({ day, token, uploads, bytes }: QuotaUse): readonly Statement[] => [
  { sql: quotaSql, args: [day, token, uploads, bytes] },
  { sql: 'delete from quota where day < ?', args: [day - 1] },
]

// A store is shared by the gateways of this process over one folder, and closed with the last of
// them.

export interface Joined<Kind extends StoreReader = Store> {
  readonly store: Kind
  leave(): Promise<void>
}

/** Where it is, there is a store. */
export const databaseIn = (folder: string): string => placesIn(folder).file

/** In words, where the folder lost its database. */
export const lossIn = (folder: string): string | undefined => lossOf(placesIn(folder))

type Folder = ReturnType<SharedFolders['enter']>

/**
 * The folder is this process's own from here on. Where it cannot be, `store.ready` rejects with the
 * Failure of `ownFolder`, and nothing is touched.
 */
export function joinStore(folder: Folder, options: OwnerOptions): Joined {
  const { one, leave } = folder.part(createSharedStore)(options)
  return { store: one, leave }
}

/** For a process beside the one that owns the folder. */
export function joinReader(folder: Folder, options: OwnerOptions): Joined<StoreReader> {
  const { one, leave } = folder.part(createSharedReader)(options)
  return { store: one, leave }
}

const createSharedStore = (path: string) =>
  createShared<OwnerOptions, Store>(
    (options, before) => createStore(path, { ...options, owned: before.then(() => ownFolder(path, options)) }),
    (store) => store.close(),
  )

const createSharedReader = (path: string) =>
  createShared<OwnerOptions, StoreReader>(
    (options) => createStoreReader(path, options),
    (reader) => reader.close(),
  )
