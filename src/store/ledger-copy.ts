// A copy of the database without the bytes of blocks: what salvage has where the database itself is beyond use.
import type { Connection } from './engine.ts'
import { openCopy } from './schema.ts'

const copied: Readonly<Record<string, readonly string[]>> = {
  car: ['id', 'name', 'bytes', 'at'],
  upload: ['id', 'cid', 'name', 'profile', 'bytes', 'car_bytes', 'at', 'car', 'blocks'],
  holder: ['upload', 'name', 'kind', 'state', 'tries', 'not_before', 'class', 'why'],
  block: ['id', 'key', 'car', 'at', 'length', 'uses'],
  quota: ['day', 'token', 'uploads', 'bytes'],
  record: ['name', 'bytes', 'at'],
  announce_ad: ['seq', 'cid', 'bytes', 'context'],
  announce_chunk: ['cid', 'bytes', 'context'],
  announced: ['upload', 'cid', 'context'],
  announce_gone: ['upload'],
}

export function copyLedger(from: Connection, to: string): void {
  const copy = openCopy(to)
  try {
    from.exec('begin')
    copy.exec('begin')
    for (const [table, columns] of Object.entries(copied)) {
      const sql = `insert into ${table} (${columns.join(', ')}) values (${columns.map(() => '?').join(', ')})`
      for (const row of from.iterate(`select ${columns.join(', ')} from ${table}`))
        copy.run(sql, ...columns.map((column) => row[column] ?? null))
    }
    copy.exec('commit')
  } finally {
    from.exec('rollback')
    copy.close()
  }
}
