// What a data folder, or a folder of its own of an embedded provider, holds: read beside a gateway that may be using it.
import { existsSync } from 'node:fs'
import { copyFile, mkdtemp, open, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { CID } from 'multiformats/cid'

export type Kept = {
  /** The accepted uploads, as v1 CIDs. */
  readonly uploads: readonly string[]
  /** Those that some holder is still to get. */
  readonly waiting: readonly string[]
  /** Blocks that uploads list. */
  readonly blocks: number
  /** CAR files that no upload names. */
  readonly strays: readonly string[]
}

export async function keptIn(folder: string): Promise<Kept> {
  const cars = (await readdir(join(folder, 'uploads')).catch(() => [])).filter((name) => name.endsWith('.car'))
  const file = join(folder, 'cidgate.sqlite')
  if (!existsSync(file)) return { uploads: [], waiting: [], blocks: 0, strays: cars }
  // SQLite follows /proc/<pid>/root by its name, out of the namespace of that process.
  const copy = file.startsWith('/proc/') ? await mkdtemp(join(tmpdir(), 'cidgate-kept-')) : undefined
  if (copy)
    for (const end of ['', '-wal'].filter((one) => existsSync(file + one)))
      await copyFile(file + end, join(copy, `cidgate.sqlite${end}`))
  const db = copy ? new DatabaseSync(join(copy, 'cidgate.sqlite')) : new DatabaseSync(file, { readOnly: true })
  try {
    const cids = (sql: string) =>
      db
        .prepare(sql)
        .all()
        .map(({ cid }) =>
          CID.decode(cid as Uint8Array)
            .toV1()
            .toString(),
        )
    const named = new Set(
      db
        .prepare('select name from car')
        .all()
        .map(({ name }) => name),
    )
    return {
      uploads: cids('select cid from upload order by id'),
      waiting: cids(
        "select cid from upload where exists (select 1 from holder where upload = id and state = 'pending') order by id",
      ),
      blocks: Number(db.prepare('select count(*) n from block').get()?.['n']),
      strays: cars.filter((name) => !named.has(name)),
    }
  } finally {
    db.close()
    if (copy) await rm(copy, { recursive: true, force: true })
  }
}

export const nothing: Kept = { uploads: [], waiting: [], blocks: 0, strays: [] }

/** Changes a byte of a block, or of all of them, where it lies: a disk rots. Resolves with how many were changed. */
export async function rot(folder: string, cid?: CID): Promise<number> {
  const db = new DatabaseSync(join(folder, 'cidgate.sqlite'), { timeout: 5000 })
  try {
    const rows = db
      .prepare('select b.id, b.key, b.bytes, b.at, c.name from block b left join car c on c.id = b.car')
      .all()
      .filter(({ key }) => cid === undefined || Buffer.compare(key as Uint8Array, cid.multihash.bytes) === 0)
    for (const { id, bytes, at, name } of rows) {
      if (bytes !== null) {
        const spoilt = Uint8Array.from(bytes as Uint8Array, (byte, index) => (index === 0 ? byte ^ 255 : byte))
        db.prepare('update block set bytes = ? where id = ?').run(spoilt, id as number)
        continue
      }
      const file = await open(join(folder, 'uploads', String(name)), 'r+')
      const first = new Uint8Array(1)
      await file.read(first, 0, 1, Number(at))
      await file.write(Uint8Array.of((first[0] ?? 0) ^ 255), 0, 1, Number(at))
      await file.close()
    }
    return rows.length
  } finally {
    db.close()
  }
}
