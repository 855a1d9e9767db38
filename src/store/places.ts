// Where a store keeps what in its folder, and where the scripts of its threads are.
import { join } from 'node:path'

export const placesIn = (folder: string) => ({
  file: join(folder, 'cidgate.sqlite'),
  /** Of the first page. */
  head: join(folder, 'cidgate.sqlite-head'),
  /** Made daily, without the bytes of blocks. */
  copy: join(folder, 'cidgate-ledger.sqlite'),
  /** Space for deletions on a full disk. */
  reserve: join(folder, 'cidgate.reserve'),
  /** A CAR file for each large request. */
  cars: join(folder, 'uploads'),
})

const ending = import.meta.url.slice(import.meta.url.lastIndexOf('.'))

export const threadScript = (name: 'writer' | 'reader'): URL => new URL(`./${name}-thread${ending}`, import.meta.url)
