// Reads off the event loop, by a thread that starts with the first of them: many keys with one message.
import type { Worker } from 'node:worker_threads'
import { asError } from './engine.ts'
import { startThread } from './places.ts'
import type { BlockAnswer, FromReader, Question, ReaderData, Replies } from './reader-thread.ts'

export interface Reader {
  block(key: Uint8Array): Promise<Uint8Array | undefined>
  ask<Kind extends Question['kind']>(question: Question & { readonly kind: Kind }): Promise<Replies[Kind]>
  close(): Promise<void>
}

type Asked = { readonly resolve: (reply: never) => void; readonly reject: (error: unknown) => void }
type Wanted = {
  readonly key: Uint8Array
  readonly resolve: (bytes: Uint8Array | undefined) => void
  readonly reject: (error: unknown) => void
}

const mostKeys = 256

/** `idleMs`: the thread ends when it was not asked for so long; by default never. */
export function createReader(data: ReaderData, name: string, idleMs?: number): Reader {
  const asked = new Map<number, Asked>()
  const wanted: Wanted[] = []
  let isFetching = false
  let isClosed = false
  let nextId = 0
  let thread: Worker | undefined
  let idle: NodeJS.Timeout | undefined

  function started(): Worker {
    if (thread) return thread
    const made = startThread('reader', name, data)
    made.on('message', heard)
    made.on('error', (error) => failAll(error))
    made.on('exit', () => {
      if (thread === made) thread = undefined
      failAll(new Error('the thread that reads the database ended'))
    })
    thread = made
    return made
  }

  function failAll(error: unknown): void {
    const all = [...asked.values()]
    asked.clear()
    for (const { reject } of all) reject(error)
  }

  function heard({ id, reply, error }: FromReader): void {
    const one = asked.get(id)
    asked.delete(id)
    if (error) one?.reject(asError(error))
    else one?.resolve(reply as never)
    if (asked.size > 0) return
    thread?.unref()
    if (idleMs !== undefined) idle = setTimeout(end, idleMs).unref()
  }

  function end(): void {
    void thread?.terminate()
    thread = undefined
  }

  const ask: Reader['ask'] = (question) => {
    if (isClosed) return Promise.reject(new Error('the store is closed'))
    clearTimeout(idle)
    return new Promise((resolve, reject) => {
      const id = nextId++
      asked.set(id, { resolve, reject })
      const to = started()
      to.ref()
      to.postMessage({ id, question })
    })
  }

  /** Keys that come while the thread reads go along with the next message. */
  async function fetch(): Promise<void> {
    isFetching = true
    await undefined
    while (wanted.length > 0) {
      const some = wanted.splice(0, mostKeys)
      try {
        const replies = await ask({ kind: 'blocks', keys: some.map(({ key }) => key) })
        for (const [index, { resolve, reject }] of some.entries()) {
          const one = replies[index] as BlockAnswer
          if (one === undefined || one instanceof Uint8Array) resolve(one)
          else reject(asError(one.error))
        }
      } catch (error) {
        for (const { reject } of some) reject(error)
      }
    }
    isFetching = false
  }

  return {
    ask,
    block: (key) =>
      new Promise((resolve, reject) => {
        wanted.push({ key, resolve, reject })
        if (!isFetching) void fetch()
      }),
    async close() {
      isClosed = true
      clearTimeout(idle)
      await thread?.terminate()
      thread = undefined
    },
  }
}
