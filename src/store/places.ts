// Where a store keeps what in its folder, and where the scripts of its threads are.
import { getCompileCacheDir } from 'node:module'
import { dirname, join } from 'node:path'
import { Worker } from 'node:worker_threads'

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

/**
 * A thread has an environment of its own. It gets the compile cache of the process, because compiling is two thirds of its
 * start, and nothing else.
 */
export function startThread(script: 'writer' | 'reader', name: string, workerData: unknown): Worker {
  const cache = getCompileCacheDir()
  const env = cache ? { NODE_COMPILE_CACHE: dirname(cache) } : {}
  return new Worker(new URL(`./${script}-thread${ending}`, import.meta.url), { name, workerData, env, execArgv: [] })
}
