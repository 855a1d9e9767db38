// Writes small files by a thread of our own, many with one message. Each call by the runtime's pool of threads costs the caller as much
// as the work itself, and a new file takes four of them. The thread takes some 18 MiB, so it is started when it is first needed.
import { Worker } from 'node:worker_threads'
import { Failure } from '../failure.ts'

/** Where the file is made, what it is called when it is whole, and how many bytes it has. */
export type Written = { readonly temporary: string; readonly file: string; readonly length: number }
export type WrittenTogether = readonly Written[]

export interface ThreadWriter {
  /** False: the thread could not do it, and nothing is left of it. The caller may try by itself, which says why. */
  write(temporary: string, file: string, bytes: Uint8Array, signal: AbortSignal): Promise<boolean>
  close(): void
}

type Job = Written & {
  readonly bytes: Uint8Array
  readonly signal: AbortSignal
  readonly resolve: (isWritten: boolean) => void
  readonly reject: (why: unknown) => void
}

/** The most that a file may have. */
export const threadWriterBytes = 64 * 1024
const roomBytes = 1024 * 1024

// In the built package the files end in .js.
const ownScript = new URL(`./writer-thread${import.meta.url.slice(import.meta.url.lastIndexOf('.'))}`, import.meta.url)

export function createThreadWriter(script = ownScript): ThreadWriter {
  const room = new Uint8Array(new SharedArrayBuffer(roomBytes))
  let thread: Worker | undefined
  /** It could not be started, or ended by itself. */
  let isBroken = false
  let isClosed = false
  let isDue = false
  let waiting: Job[] = []
  let running: readonly Job[] = []

  function started(): Worker | undefined {
    if (thread || isBroken) return thread
    try {
      thread = new Worker(script, { name: 'disk tier', workerData: room.buffer, env: {}, execArgv: [] })
      thread.on('message', answered)
      thread.on('error', giveUp)
      thread.on('exit', giveUp)
    } catch {
      isBroken = true
    }
    return thread
  }

  function answered(done: readonly boolean[]): void {
    for (const [index, job] of settle().entries()) job.resolve(done[index] === true)
    // It holds the process while it works, and no longer.
    thread?.unref()
    send()
  }

  function settle(): readonly Job[] {
    const settled = running
    running = []
    return settled
  }

  function giveUp(): void {
    isBroken = true
    thread = undefined
    const jobs = [...settle(), ...waiting]
    waiting = []
    for (const { resolve, reject } of jobs) {
      if (isClosed) reject(closing())
      else resolve(false)
    }
  }

  /** As many as there is room for, in their order. */
  function take(): readonly Job[] {
    const taken: Job[] = []
    let at = 0
    for (const job of waiting) {
      if (at + job.length > roomBytes) break
      room.set(job.bytes, at)
      at += job.length
      taken.push(job)
    }
    waiting = waiting.slice(taken.length)
    return taken
  }

  function send(): void {
    isDue = false
    for (const { signal, reject } of waiting) if (signal.aborted) reject(signal.reason)
    waiting = waiting.filter(({ signal }) => !signal.aborted)
    if (waiting.length === 0) return
    const to = started()
    if (!to) return giveUp()
    running = take()
    to.ref()
    to.postMessage(running.map(({ temporary, file, length }): Written => ({ temporary, file, length })))
  }

  return {
    write(temporary, file, bytes, signal) {
      if (isClosed) return Promise.reject(closing())
      if (isBroken) return Promise.resolve(false)
      return new Promise((resolve, reject) => {
        waiting.push({ temporary, file, length: bytes.byteLength, bytes, signal, resolve, reject })
        // What else is written in this turn of the loop goes along.
        if (running.length === 0 && !isDue) setImmediate(send)
        isDue = true
      })
    },
    close() {
      isClosed = true
      thread?.terminate().catch(() => {})
      if (!thread) giveUp()
    },
  }
}

const closing = (): Failure => new Failure('unavailable', 'the disk tier is closing', { source: 'tier' })
