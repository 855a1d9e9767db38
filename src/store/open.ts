// The store put together: one thread that writes, two that read, and upkeep in the background: the check for damage, the filter,
// the daily copy, and blocks that move out of files that are to go.
import { randomUUID } from 'node:crypto'
import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { CID } from 'multiformats/cid'
import { decode as decodeDigest } from 'multiformats/hashes/digest'
import { codec } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import { createShared, makeFolder, orIfGone, type SharedFolders, tryToWrite } from '../core/disk/files.ts'
import { Failure, wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { createBlocks, createReader, type Reader } from './blocks.ts'
import { type Connection, failureOf, openForReading, placesIn, troubleOf } from './engine.ts'
import { type CarFile, createBlockPile, createCarFile, createIntake, intakeOf, noBlocks } from './intake.ts'
import { createLedger, guarded } from './ledger.ts'
import { createOwnership, type Leave, type OwnerOptions } from './owner.ts'
import type { Accepted, Store, StoreReader } from './store.ts'
import { createWriter, type Operation } from './writer.ts'

type StoreOptions = {
  readonly clock: Clock
  readonly log: Log
  /** Resolves when this process owns the folder. */
  readonly owned?: Promise<unknown>
}

/** A start has other work at first. */
const checkAfterMs = 5000
const slowIdleMs = 10_000
/** 8 MiB. */
const smallPages = 2048
const dayMs = 86_400_000
const minuteMs = 60_000
const closedMs = 2000
const tryMs = 50
const maxTries = 200

/** The part that both kinds of a store have. `opened`: the database is there, and no file is swept any more. */
function createReading(
  folder: string,
  { clock, log }: StoreOptions,
  opened: Promise<{ readonly isFixed: boolean }>,
  isFollower: boolean,
) {
  const { file, cars } = placesIn(folder)
  const data = { file, cars, isFixed: false }
  const reader = createReader(data, 'store reader')
  const thorough = createReader(data, 'store check', slowIdleMs)
  /** Long reads have a thread of their own, which costs 40 ms and 10 MiB; in a small database none is long. */
  const slow: Pick<Reader, 'ask'> = {
    async ask(question) {
      const pages = connection?.get('pragma page_count')?.['page_count'] as number
      return (pages <= smallPages ? reader : thorough).ask(question)
    },
  }
  const found = new Set<string>()
  let connection: Connection | undefined
  let isClosed = false

  function note(what: string): void {
    if (found.has(what)) return
    found.add(what)
    log('error', 'store.damaged', { folder, what })
  }

  /** The process that writes may just be making it. */
  async function openSoon(): Promise<Connection> {
    for (let left = isFollower ? maxTries : 0; ; left--) {
      try {
        return openForReading(file, { timeout: 100, isFixed: data.isFixed })
      } catch (error) {
        if (left <= 0 || isClosed) throw error
      }
      await clock.sleep(tryMs)
    }
  }

  function onError(error: unknown): void {
    const { message } = error as Error
    if (troubleOf(error) === 'damaged') note(message)
    else log('warn', 'store.read-failed', { folder, error: message })
  }

  const ready = opened.then(async ({ isFixed }) => {
    data.isFixed = isFixed
    connection = await openSoon()
    blocks.open(connection)
  })
  ready.catch(() => {})
  const blocks = createBlocks({ reader, slow, ready, isFollower, onError })
  const read = guarded(ready, (sql, args = []) => reader.ask({ kind: 'sql', sql, args }), onError)
  const readSlow = guarded(ready, (sql, args = []) => slow.ask({ kind: 'sql', sql, args }), onError)

  return {
    ...{ ready, blocks, read, slow, note, onError },
    ledger: createLedger(read, readSlow),
    damage(): string | undefined {
      if (found.size === 0) return undefined
      const [first] = found
      return `the store in ${folder} is damaged: ${first}${found.size > 1 ? `, and ${found.size - 1} more` : ''}; what can be read is served. Restore a backup, or stop cidgate and run \`cidgate doctor --salvage\``
    },
    async close() {
      isClosed = true
      await Promise.all([reader.close(), thorough.close()])
      await ready.catch(() => {})
      connection?.close()
      connection = undefined
    },
  }
}

/** For a process that only reads: another one writes. */
export function createStoreReader(folder: string, options: StoreOptions): StoreReader {
  const reading = createReading(folder, options, Promise.resolve({ isFixed: false }), true)
  const { ready, blocks, ledger, read, damage, close, onError } = reading
  ready.then(() => blocks.makeFilter()).catch(onError)
  return { ready, blocks, ledger, read, damage, close }
}

export function createStore(folder: string, options: StoreOptions): Store {
  const { clock, log, owned = Promise.resolve() } = options
  const places = placesIn(folder)
  const closing = new AbortController()
  const running = new Set<Promise<unknown>>()
  const emptying = new Set<string>()

  const writing = owned.then(async () => {
    await makeFolder(places.cars)
    return createWriter({ data: { folder, ...places }, onReleased: () => blocks.released(), onLeft })
  })
  writing.catch(() => {})
  const opened = writing.then((writer) => writer.opened).then(begin, readOnly)
  const reading = createReading(folder, options, opened, false)
  const { blocks, ledger, read, ready } = reading

  function begin(damage: readonly string[]): { readonly isFixed: boolean } {
    for (const line of damage) reading.note(line)
    inBackground(upkeep())
    return { isFixed: false }
  }

  /** A disk that takes no writes may be read. */
  async function readOnly(error: unknown): Promise<{ readonly isFixed: boolean }> {
    if (error instanceof Failure || troubleOf(error) === 'damaged') throw error
    await stat(places.file).catch(() => {
      throw error
    })
    log('error', 'store.read-only', { folder, error: wordsOf(error) })
    return { isFixed: true }
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
    await ready
    await blocks.makeFilter()
    await clock.sleep(checkAfterMs, closing.signal)
    for (;;) {
      for (const line of await reading.slow.ask({ kind: 'check' })) reading.note(line)
      await copyLedger()
      await clock.sleep(dayMs, closing.signal)
    }
  }

  async function copyLedger(): Promise<void> {
    const mtimeMs = await orIfGone(
      stat(places.copy).then((found) => found.mtimeMs),
      0,
    )
    // One that was made from a damaged database would take the place of a good one.
    if (reading.damage() !== undefined || clock.now() - mtimeMs < dayMs - minuteMs) return
    await reading.slow.ask({ kind: 'copy', to: places.copy })
  }

  /** Files that no row names are deleted at the start: none is made before that. */
  const newFile = (): CarFile => createCarFile(join(places.cars, `${randomUUID()}.car`), opened)

  async function commit(operation: Operation, what: string): Promise<boolean | number> {
    try {
      return await (await writing).commit(operation)
    } catch (error) {
      if (troubleOf(error) === 'damaged') reading.onError(error)
      throw failureOf(error, what)
    }
  }

  function onLeft(name: string): void {
    if (emptying.has(name) || closing.signal.aborted) return
    emptying.add(name)
    inBackground(moveFrom(name).finally(() => emptying.delete(name)))
  }

  /** Blocks that others still need leave a file that no upload names, unless they are most of it. */
  async function moveFrom(name: string): Promise<void> {
    const rows = await read(leftInSql, [name])
    const used = rows.reduce((sum, { length }) => sum + (length as number), 0)
    const { size } = await stat(join(places.cars, name))
    if (used > size / 2) return
    const pile = createBlockPile(newFile)
    for (const { key } of rows) {
      closing.signal.throwIfAborted()
      const cid = CID.createV1(codec.raw, decodeDigest(key as Uint8Array))
      const bytes = await blocks.get(cid)
      if (bytes) await pile.add(cid, bytes).written
    }
    const packed = await pile.seal(pile.cids.slice(0, 1))
    await pile.file?.close()
    await commit({ kind: 'move', from: name, blocks: packed }, 'move blocks')
  }

  async function accept(uploads: readonly Accepted[], quota: Parameters<Store['accept']>[1] = []): Promise<void> {
    const intake = uploads[0] && intakeOf(uploads[0].staged)
    const packed = await intake?.pack(uploads).catch((error: unknown) => {
      throw failureOf(error, 'take an upload')
    })
    const { blocks: written, rows } = packed ?? { blocks: noBlocks, rows: [] }
    const committed = blocks.adding(written)
    try {
      const isHere = await commit({ kind: 'accept', blocks: written, uploads: rows, quota }, 'take an upload')
      if (intake && isHere && written.bytes) blocks.wrote(intake.cids)
    } finally {
      committed()
    }
    if (blocks.isFilterDue) inBackground(blocks.makeFilter())
  }

  const store: Store = {
    ...{ ready, blocks, ledger, read },
    damage: reading.damage,
    begin: () => createIntake({ newFile, offer: blocks.offer, stored: blocks.get }),
    accept,
    update: async (cid, holders) =>
      (await commit({ kind: 'update', cid: cid.toV1().bytes, holders }, 'change an upload')) === true,
    remove: async (cid) => (await commit({ kind: 'remove', cid: cid.toV1().bytes }, 'delete an upload')) === true,
    forget: async (holder) => Number(await commit({ kind: 'forget', holder }, 'change uploads')),
    trim: async (holder, limit, bytes) =>
      Number(await commit({ kind: 'trim', holder, limit, bytes }, 'change uploads')),
    async write(statements) {
      await commit({ kind: 'write', statements }, 'write to the database')
    },
    async probe() {
      await ready.catch((error: unknown) => {
        throw failureOf(error, 'open the database')
      })
      await commit({ kind: 'probe' }, 'take an upload')
      const error = await tryToWrite(places.cars).catch((cause: unknown) => cause)
      if (error) throw failureOf(error, `write to ${places.cars}`)
    },
    async close() {
      closing.abort(new Failure('cancelled', 'this gateway stops', { source: 'ours' }))
      const waited = new AbortController()
      await Promise.race([Promise.all(running), clock.sleep(closedMs, waited.signal)]).catch(() => {})
      waited.abort()
      await reading.close()
      await writing.then((writer) => writer.close()).catch(() => {})
    },
  }
  return store
}

const leftInSql = 'select b.key key, b.length length from block b join car c on c.id = b.car where c.name = ?'

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
      const owned = before.then(() => folder.part(createOwnership)({ clock, log, isFull: false }))
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
