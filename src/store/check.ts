// The damage of a store: of the pages of its database, and of the folder of its CAR files, which is
// compared with the rows that name them.
import { closeSync, existsSync, openSync, readdirSync, readSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { isGone } from '../core/disk/files.ts'
import { type Connection, markAt, type Places } from './database.ts'

/** Reads the whole database. Returns what is damaged, in words for the operator. */
export const damagedPages = (db: Connection): readonly string[] =>
  db
    .all('pragma quick_check(10)')
    .map((row) => String(Object.values(row)[0]))
    .filter((line) => line !== 'ok')

/** `unneeded`: files of uploads that were not accepted, at the start of a gateway: never. */
type Compared = { readonly damage: readonly string[]; readonly unneeded: readonly string[] }

export function compareCars(db: Connection, cars: string): Compared {
  // Tools that copy folders may leave out an empty one.
  const entries = existsSync(cars) ? readdirSync(cars, { withFileTypes: true }) : []
  const files = entries.flatMap((entry) => (entry.isFile() ? entry.name : []))
  const unnamed = new Set(files)
  const missing = db
    .all('select id, name from car')
    .filter(({ name }) => !unnamed.delete(name as string) && !existsSync(join(cars, name as string)))
    .filter(({ id }) => db.get('select 1 from block where car = ? limit 1', id as number))
  const [unknown, unneeded] = [[] as string[], [] as string[]]
  for (const name of unnamed) {
    const isAccepted = wasAccepted(join(cars, name))
    if (isAccepted === false) unneeded.push(name)
    // A gateway may have accepted it since the rows were read.
    else if (isAccepted && !db.get('select 1 from car where name = ?', name)) unknown.push(name)
  }
  const damage = [
    ...(missing.length > 0 ? [`${missing.length} files of uploads are missing, ${missing[0]?.name} first`] : []),
    ...(unknown.length > 0
      ? [`${unknown.length} files of uploads are newer than the database, ${unknown[0]} first`]
      : []),
  ]
  return { damage, unneeded }
}

/** Undefined: it is gone. */
function wasAccepted(file: string): boolean | undefined {
  const byte = Buffer.alloc(1)
  try {
    const handle = openSync(file, 'r')
    try {
      return readSync(handle, byte, 0, 1, markAt) === 1 && byte[0] === 1
    } finally {
      closeSync(handle)
    }
  } catch (error) {
    if (isGone(error)) return undefined
    throw error
  }
}

/** In words, where the database is missing or empty and something of its store is not. */
export function lossOf({ file, head, copy, cars }: Places): string | undefined {
  const bytesOf = (path: string): number => statSync(path, { throwIfNoEntry: false })?.size ?? 0
  if (bytesOf(file) > 0) return undefined
  const left = [head, copy, `${file}-wal`].find((path) => bytesOf(path) > 0)
  const isUsed = left !== undefined || (existsSync(cars) && readdirSync(cars).length > 0)
  return isUsed ? `there is no ${file}, and ${left ?? `files of uploads are in ${cars}`}` : undefined
}
