// A copy of a store while a gateway goes on in it. An open read keeps the write-ahead log from
// starting over, so that the database file and the log, copied in this order, are one state.
// Commits wait for the last step alone: the log, and files that came since.
import { constants } from 'node:fs'
import { copyFile, link, open, readdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { codeOf, isGone, makeFolder, orIfGone, syncFolder } from '../core/disk/files.ts'
import { Failure } from '../core/failure.ts'
import { compareCars, damagedPages } from './check.ts'
import { type Connection, openForReading, openForWriting, placesIn } from './database.ts'

/** `damage`: of the store that was copied, in words for the operator. */
type BackedUp = { readonly uploads: number; readonly files: number; readonly damage: readonly string[] }

/** Every upload that was acknowledged before it resolves is in the copy, unless it is damaged. `to`: missing or empty. */
export async function backUpStore(from: string, to: string, signal: AbortSignal): Promise<BackedUp> {
  const [source, target] = [placesIn(from), placesIn(to)]
  await stat(source.file).catch((cause: unknown) => {
    throw refused(`${from} holds no store: name the folder of \`data\` in the configuration`, cause)
  })
  if ((await orIfGone(readdir(to), [])).length > 0) throw refused(`${to} is not empty: name a new folder`)
  await makeFolder(target.cars)
  const reader = openForReading(source.file)
  const namesIn = (db: Connection) => db.all('select name from car').map(({ name }) => name as string)
  const copied = new Set<string>()

  async function copyCars(names: readonly string[]): Promise<void> {
    for (const name of names) {
      signal.throwIfAborted()
      if (copied.has(name)) continue
      await copyCar(join(source.cars, name), join(target.cars, name)).catch(unlessGone)
      copied.add(name)
    }
  }

  try {
    const damage = [...damagedPages(reader), ...compareCars(reader, source.cars).damage]
    reader.exec('begin')
    await copyCars(namesIn(reader))
    await copy(source.file, target.file)
    await copy(source.head, target.head).catch(unlessGone)
    const writer = openForWriting(source.file)
    try {
      writer.exec('begin immediate')
      const { n } = writer.get('select count(*) n from upload') as { readonly n: number }
      const names = namesIn(writer)
      const isNamed = new Set(names)
      await copy(`${source.file}-wal`, `${target.file}-wal`).catch(unlessGone)
      await copyCars(names)
      for (const name of copied) if (!isNamed.has(name)) await rm(join(target.cars, name), { force: true })
      for (const folder of [target.cars, to]) await syncFolder(folder)
      return { uploads: n, files: names.length, damage }
    } finally {
      writer.exec('rollback')
      writer.close()
    }
  } finally {
    reader.close()
  }
}

/** Names of one file need no bytes of their own: it is not written to any more. */
async function copyCar(from: string, to: string): Promise<void> {
  try {
    await link(from, to)
  } catch (error) {
    if (!cannotLink.has(codeOf(error) ?? '')) throw error
    await copy(from, to)
  }
}

const cannotLink: ReadonlySet<string> = new Set(['EXDEV', 'EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EMLINK'])

async function copy(from: string, to: string): Promise<void> {
  await copyFile(from, to, constants.COPYFILE_FICLONE)
  const handle = await open(to, 'r+')
  await handle.sync().finally(() => handle.close())
}

function unlessGone(error: unknown): void {
  if (!isGone(error)) throw error
}

const refused = (message: string, cause?: unknown): Failure =>
  new Failure('refused', message, { source: 'ours', cause })
