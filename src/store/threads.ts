// The threads of a store, and the messages to them. Questions of one turn of the event loop go in
// one message.
import { getCompileCacheDir } from 'node:module'
import { dirname } from 'node:path'
import { Worker } from 'node:worker_threads'
import { codeOf } from '../core/disk/files.ts'
import type { Standing, Statement, Value } from './store.ts'

export interface Thread<Message> {
  readonly isStarted: boolean
  /** Starts the thread where none runs. Rejects where it cannot work. */
  ask(question: Message): Promise<unknown>
  /** Ends when what was asked for is done; with `idleMs` at once. */
  close(): Promise<void>
}

export type Asked<Message> = { readonly id: number; readonly question: Message }
export type Answer = { readonly id: number; readonly reply?: unknown; readonly error?: ErrorText }

/** An error as it goes from a thread to the one that asked. */
export type ErrorText = { readonly message: string; readonly code?: string | undefined; readonly errcode?: number }

export const asText = (error: unknown): ErrorText => ({
  message: error instanceof Error ? error.message : String(error),
  ...(error instanceof Error && 'errcode' in error && { errcode: Number(error.errcode) }),
  code: codeOf(error),
})

type Call = { readonly resolve: (reply: unknown) => void; readonly reject: (error: unknown) => void }

type ThreadOptions = {
  readonly script: 'writer' | 'reader'
  readonly name: string
  readonly data: () => unknown
  /** The thread ends when it was not asked for so long. */
  readonly idleMs?: number
}

const ending = import.meta.url.slice(import.meta.url.lastIndexOf('.'))

export function createThread<Message>({ script, name, data, idleMs }: ThreadOptions): Thread<Message> {
  const calls = new Map<number, Call>()
  let batch: Asked<Message>[] = []
  let nextId = 0
  let isClosed = false
  let worker: Worker | undefined
  let idle: NodeJS.Timeout | undefined

  /**
   * It gets the compile cache of the process, because compiling is two thirds of a start, and
   * nothing else of its environment.
   */
  function start(): Worker {
    const cache = getCompileCacheDir()
    const env = cache ? { NODE_COMPILE_CACHE: dirname(cache) } : {}
    const url = new URL(`./${script}-thread${ending}`, import.meta.url)
    const made = new Worker(url, { name, workerData: data(), env, execArgv: [] })
    made.on('message', heard)
    made.on('error', fail)
    made.on('exit', () => {
      if (worker !== made) return
      worker = undefined
      fail(new Error('the thread of the database ended'))
    })
    return made
  }

  function end(): void {
    void worker?.terminate()
    worker = undefined
  }

  function heard(answers: readonly Answer[]): void {
    for (const { id, reply, error } of answers) {
      const call = calls.get(id)
      calls.delete(id)
      if (error) call?.reject(Object.assign(new Error(error.message), error))
      else call?.resolve(reply)
    }
    if (calls.size > 0) return
    // An idle thread does not keep the process.
    if (!isClosed) worker?.unref()
    if (idleMs !== undefined) idle = setTimeout(end, idleMs).unref()
  }

  function fail(error: unknown): void {
    const all = [...calls.values()]
    calls.clear()
    batch = []
    for (const { reject } of all) reject(error)
  }

  function send(): void {
    if (batch.length === 0) return
    worker ??= start()
    worker.ref()
    worker.postMessage(batch)
    batch = []
  }

  return {
    get isStarted() {
      return worker !== undefined
    },
    ask(question) {
      if (isClosed) return Promise.reject(new Error('the store is closed'))
      clearTimeout(idle)
      return new Promise((resolve, reject) => {
        const id = nextId++
        calls.set(id, { resolve, reject })
        batch.push({ id, question })
        if (batch.length === 1) setImmediate(send)
      })
    },
    async close() {
      send()
      isClosed = true
      clearTimeout(idle)
      const closing = worker
      if (!closing) return
      const ended = new Promise((resolve) => closing.once('exit', resolve))
      closing.ref()
      if (idleMs === undefined) closing.postMessage('close')
      else void closing.terminate()
      await ended
    },
  }
}

// Questions to the writer.

/** Blocks of one intake, in few objects: a message of many would hold up the event loop. */
export type PackedBlocks = {
  /** Multihashes, each behind a byte with its length. */
  readonly keys: Uint8Array
  readonly lengths: readonly number[]
  /** Where each block begins: in the CAR file, or in `bytes`. */
  readonly ats: readonly number[]
  readonly car?: { readonly name: string; readonly bytes: number }
  readonly bytes?: Uint8Array
}

export type AcceptedRow = {
  /** Version 1. */
  readonly cid: Uint8Array
  readonly name: string | undefined
  readonly profile: string
  readonly bytes: number
  readonly carBytes: number
  readonly at: number
  readonly holders: Readonly<Record<string, Standing>>
  /** Its blocks among those of the intake. */
  readonly list: readonly number[]
}

export type Operation =
  /**
   * `uploads` of one request, with its blocks, and what counts with them. Their CAR file is the
   * writer's from here on, whatever comes of it.
   */
  | {
      readonly kind: 'accept'
      readonly blocks: PackedBlocks
      readonly uploads: readonly AcceptedRow[]
      readonly statements: readonly Statement[]
    }
  /** `holders` undefined: deletes it. Replies whether there is such an upload. */
  | {
      readonly kind: 'update'
      readonly cid: Uint8Array
      readonly holders: Readonly<Record<string, Standing | undefined>> | undefined
    }
  /** Replies how many rows went. */
  | { readonly kind: 'trim'; readonly holder: string; readonly limit: number; readonly bytes: number }

// Questions to a reader.

export type ReaderQuery =
  | { readonly kind: 'block'; readonly key: Uint8Array }
  | { readonly kind: 'sql'; readonly sql: string; readonly args: readonly Value[] }
  /** Replies the bits of `KeyFilter`. */
  | { readonly kind: 'filter' }
  /** Replies damage that was found. */
  | { readonly kind: 'check' }
  /** Makes the daily copy. */
  | { readonly kind: 'copy' }
