// The thread of thread-writer.ts. The bytes of a message's files lie one behind another in memory that both sides have.
import { closeSync, mkdirSync, openSync, renameSync, rmSync, writeSync } from 'node:fs'
import { dirname } from 'node:path'
import { parentPort, workerData } from 'node:worker_threads'
import type { Written, WrittenTogether } from './thread-writer.ts'

const bytes = new Uint8Array(workerData as SharedArrayBuffer)

function open(temporary: string): number {
  try {
    return openSync(temporary, 'wx')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    mkdirSync(dirname(temporary), { recursive: true })
    return openSync(temporary, 'wx')
  }
}

function write({ temporary, file }: Written, from: number, to: number): void {
  const handle = open(temporary)
  try {
    for (let at = from; at < to; ) at += writeSync(handle, bytes, at, to - at, at - from)
  } finally {
    closeSync(handle)
  }
  renameSync(temporary, file)
}

/** False: it is not there, and nothing is left of it. */
function isWritten(one: Written, from: number, to: number): boolean {
  try {
    write(one, from, to)
    return true
  } catch {
    try {
      rmSync(one.temporary, { force: true })
    } catch {}
    return false
  }
}

parentPort?.on('message', (files: WrittenTogether) => {
  let from = 0
  const done = files.map((one) => {
    const to = from + one.length
    const isDone = isWritten(one, from, to)
    from = to
    return isDone
  })
  parentPort?.postMessage(done)
})
