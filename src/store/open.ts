// The store put together: one writer, two threads that read, and what is done behind: the sweep of files without rows, the check
// for damage, the filter, the daily copy, and blocks that move out of files that are to go.
import { randomUUID } from 'node:crypto'
import { readdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { CID } from 'multiformats/cid'
import { decode as decodeDigest } from 'multiformats/hashes/digest'
import { codec } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import { makeFolder, orIfGone, type SharedFolders, tryToWrite } from '../core/disk/files.ts'
import { Failure, wordsOf } from '../core/failure.ts'
import type { Log } from '../core/log.ts'
import { createBlocks, createReader, type Reader } from './blocks.ts'
import { type Connection, failureOf, openForReading, placesIn, troubleOf } from './engine.ts'
import { type CarFile, createBlockPile, createCarFile, createIntake, type KeptIn, type OwnIntake } from './intake.ts'
import { createLedger, guarded } from './ledger.ts'
import { createOwnership, type OwnerOptions } from './owner.ts'
import type { Accepted, Kept, Standing, Store, StoreReader } from './store.ts'
import {
  type AcceptedIntake,
  blocksAtOnce,
  createWriter,
  type Operation,
  type Outcome,
  slicesOf,
  usesIn,
} from './writer.ts'
import type { Opened } from './writer-thread.ts'

/** The rule of the SQL `needed` in writer-thread.ts. */
const needsBlocks = ({ kind, state }: Standing): boolean =>
  state === 'pending' || (kind === 'here' && state === 'pinned')

/** `under`: what ends the note of its keys. `loose`: rows of blocks that were staged for it. */
type Accepting = { readonly under: (() => void)[]; readonly loose: number[] }

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
  const behind = new Set<Promise<unknown>>()
  const kept = new WeakMap<Kept, KeptIn>()
  /** Files that this process began before those of others were swept. */
  const begun = new Set<string>()
  let isSwept = false
  const committing = new Set<CarFile>()
  /** Of commits that failed, and may count after a restart: the next commit ends that. */
  const doubtful = new Set<string>()
  const emptying = new Set<string>()
  /** Files whose blocks are staged: they go with their rows. */
  const staged = new Set<string>()

  const writing = owned.then(async () => {
    await makeFolder(places.cars)
    return createWriter({ folder, file: places.file, head: places.head, reserve: places.reserve })
  })
  writing.catch(() => {})
  const opened = writing.then((writer) => writer.opened).then(begin, readOnly)
  const reading = createReading(folder, options, opened, false)
  const { blocks, ledger, read, ready } = reading

  function begin(found: Opened): { readonly isFixed: boolean } {
    goOn(sweep(found))
    goOn(drain(found.loose))
    goOn(look())
    if (found.isMended) reading.note('the first page of the database was mended by its copy')
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

  function goOn(work: Promise<unknown>): void {
    const tracked = work
      .catch((error: unknown) => {
        if (!closing.signal.aborted) log('warn', 'store.upkeep-failed', { folder, error: String(error) })
      })
      .finally(() => behind.delete(tracked))
    behind.add(tracked)
  }

  /** Files that no row names are of uploads that were cut. */
  async function sweep({ cars, left }: Opened): Promise<void> {
    if (!cars) return reading.note('the list of the files of uploads cannot be read')
    const named = new Set(cars)
    const names = await orIfGone(readdir(places.cars), [])
    for (const name of names)
      if (!named.has(name) && !begun.has(name)) await rm(join(places.cars, name), { force: true, recursive: true })
    isSwept = true
    begun.clear()
    const there = new Set(names)
    const missing = cars.filter((name) => !there.has(name))
    if (missing.length > 0) reading.note(`${missing.length} files of uploads are missing, ${missing[0]} first`)
    for (const name of left) await empty(name)
  }

  async function look(): Promise<void> {
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

  function newFile(): CarFile {
    const name = `${randomUUID()}.car`
    if (!isSwept) begun.add(name)
    return createCarFile(join(places.cars, name))
  }

  async function removeFiles(names: readonly string[]): Promise<void> {
    for (const name of names) await rm(join(places.cars, name), { force: true })
  }

  /** Does not reject. */
  async function dropped(file: CarFile): Promise<void> {
    if (committing.has(file) || doubtful.has(file.name) || staged.delete(file.name)) return
    await removeFiles([file.name]).catch((error: unknown) =>
      log('warn', 'store.file-left', { file: file.name, error: String(error) }),
    )
  }

  async function commit(operation: Operation, what: string): Promise<Outcome> {
    const overcome = [...doubtful]
    try {
      const outcome = await (await writing).commit(operation)
      if (outcome.gone.length > 0 || overcome.length > 0) goOn(removeFiles([...outcome.gone, ...overcome]))
      for (const name of outcome.left) if (!emptying.has(name)) goOn(empty(name))
      for (const name of overcome) doubtful.delete(name)
      return outcome
    } catch (error) {
      if (troubleOf(error) === 'damaged') reading.onError(error)
      throw failureOf(error, what)
    }
  }

  /** A file that no upload names: what others still need of it moves, unless that is most of it. */
  async function empty(name: string): Promise<void> {
    emptying.add(name)
    await moveFrom(name).finally(() => emptying.delete(name))
  }

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
    for (const slice of slicesOf(packed))
      await commit({ kind: 'move', from: name, blocks: slice.blocks }, 'move blocks')
  }

  /** Blocks that nobody lists any more, some with each commit. */
  async function drain(loose: readonly number[]): Promise<void> {
    for (const id of loose) await commit({ kind: 'drain', loose: id }, 'delete an upload')
    if (loose.length > 0) blocks.removed()
  }

  /** The blocks of a large intake, some with each commit; the upload itself is accepted later. */
  async function stage(intake: AcceptedIntake, { under, loose }: Accepting): Promise<AcceptedIntake> {
    const { blocks: all, uploads } = intake
    if (all.lengths.length <= blocksAtOnce) {
      under.push(blocks.adding(all))
      return intake
    }
    const uses = usesIn(intake)
    const ids = new Float64Array(uses.length)
    for (const { blocks: some, places } of slicesOf(all)) {
      under.push(blocks.adding(some))
      const usesOfSome = places.map((index) => uses[index] as number)
      const operation = { kind: 'stage', blocks: some, uses: usesOfSome, at: uploads[0]?.at ?? 0 } as const
      const outcome = await commit(operation, 'take an upload')
      for (const [at, index] of places.entries()) ids[index] = outcome.ids?.[at] as number
      loose.push(...outcome.loose)
      if (all.car) staged.add(all.car.name)
    }
    const none = { keys: new Uint8Array(), lengths: new Uint32Array(), ats: new Float64Array() }
    return { blocks: { ...none, ...(all.car && { car: all.car }) }, uploads, staged: { ids, loose: [...loose] } }
  }

  async function pack(uploads: readonly Accepted[]) {
    const byIntake = new Map<OwnIntake, Accepted[]>()
    for (const upload of uploads) {
      const own = kept.get(upload.kept)
      if (!own) throw new Error('an upload of another store cannot be accepted')
      byIntake.set(own.intake, [...(byIntake.get(own.intake) ?? []), upload])
    }
    return Promise.all([...byIntake].map(async ([intake, own]) => ({ intake, packed: await intake.pack(own) })))
  }

  async function accept(uploads: readonly Accepted[], quota: Parameters<Store['accept']>[1] = []): Promise<void> {
    const packs = await pack(uploads).catch((error: unknown) => {
      throw failureOf(error, 'take an upload')
    })
    const files = packs.flatMap(({ intake }) => intake.file ?? [])
    for (const file of files) committing.add(file)
    const accepting: Accepting = { under: [], loose: [] }
    try {
      const intakes: AcceptedIntake[] = []
      for (const { packed } of packs) intakes.push(await stage(packed, accepting))
      const { loose } = await commit({ kind: 'accept', intakes, quota }, 'take an upload')
      for (const { name } of files) staged.delete(name)
      goOn(drain(loose))
    } catch (error) {
      for (const { name } of files) if (!staged.has(name)) doubtful.add(name)
      goOn(drain(accepting.loose))
      throw error
    } finally {
      for (const file of files) committing.delete(file)
      for (const over of accepting.under) over()
    }
    for (const { intake, packed } of packs) {
      intake.accepted()
      if (packed.blocks.bytes) blocks.wrote(intake.cids)
    }
    if (!uploads.every(({ holders }) => Object.values(holders).some(needsBlocks))) blocks.removed()
    if (blocks.isFilterDue) goOn(blocks.makeFilter())
  }

  const released = async (operation: Operation, what: string): Promise<number | boolean> => {
    const { value, loose } = await commit(operation, what)
    blocks.removed()
    await drain(loose)
    return value
  }

  /** Until a commit finds no more. */
  async function releasedAll(operation: Operation, what: string): Promise<number> {
    let count = 0
    for (let some = -1; some !== 0; count += some) some = Number(await released(operation, what))
    return count
  }

  const store: Store = {
    ...{ ready, blocks, ledger, read },
    damage: reading.damage,
    begin: () => createIntake({ kept, newFile, dropped, offer: blocks.offer, stored: blocks.get }),
    accept,
    update: async (cid, holders) =>
      (await released({ kind: 'update', cid: cid.toV1().bytes, holders }, 'change an upload')) === true,
    remove: async (cid) => (await released({ kind: 'remove', cid: cid.toV1().bytes }, 'delete an upload')) === true,
    forget: (holder) => releasedAll({ kind: 'forget', holder }, 'change uploads'),
    trim: (holder, limit, bytes) => releasedAll({ kind: 'trim', holder, limit, bytes }, 'change uploads'),
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
      await Promise.race([Promise.all(behind), clock.sleep(closedMs, waited.signal)]).catch(() => {})
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
export const joinStore = (folder: Folder, options: JoinOptions): Joined =>
  folder.part(createSharedStore).join(folder, options)

/** For a process beside the one that owns the folder. */
export const joinReader = (folder: Folder, options: JoinOptions): Joined<StoreReader> =>
  folder.part(createSharedReader).join(options)

function createSharedStore(path: string) {
  let users = 0
  let store: Store | undefined
  let owned: Promise<() => void> | undefined
  let closing: Promise<void> = Promise.resolve()

  async function close(last: Store, ownership: Promise<() => void> | undefined): Promise<void> {
    await last.close()
    const leave = await ownership?.catch(() => undefined)
    leave?.()
  }

  return {
    join(folder: Folder, { clock, log }: JoinOptions): Joined {
      users++
      const before = closing
      owned ??= before.then(() => folder.part(createOwnership).join({ clock, log, isFull: false }))
      owned.catch(() => {})
      store ??= createStore(path, { clock, log, owned })
      return {
        store,
        leave: once(async () => {
          users--
          if (users > 0 || !store) return
          closing = close(store, owned)
          store = undefined
          owned = undefined
          await closing
        }),
      }
    },
  }
}

function createSharedReader(path: string) {
  let users = 0
  let store: StoreReader | undefined

  return {
    join({ clock, log }: JoinOptions): Joined<StoreReader> {
      users++
      store ??= createStoreReader(path, { clock, log })
      return {
        store,
        leave: once(async () => {
          users--
          if (users > 0) return
          const last = store
          store = undefined
          await last?.close()
        }),
      }
    },
  }
}

function once(work: () => Promise<void>): () => Promise<void> {
  let done: Promise<void> | undefined
  return () => (done ??= work())
}
