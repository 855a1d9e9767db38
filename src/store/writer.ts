// Commits, as the event loop sees them: operations go to a thread of their own, and each caller hears of its own.
import { asError, type ErrorText, startThread } from './engine.ts'
import type { QuotaUse, Standing, Statement } from './store.ts'

export interface Writer {
  /** Resolves with damage that was found. Rejects where the database cannot be written. */
  readonly opened: Promise<readonly string[]>
  /** Durable when it resolves. The CAR file of `blocks` is the writer's from here on, whatever comes of it. */
  commit(operation: Operation): Promise<boolean | number>
  /** Ends when what was asked for is done. */
  close(): Promise<void>
}

type WriterOptions = {
  readonly data: WriterData
  /** Blocks were deleted. */
  readonly onReleased: () => void
  /** A CAR file that no upload names has blocks which are still used. */
  readonly onLeft: (name: string) => void
}

type Job = { readonly resolve: (value: boolean | number) => void; readonly reject: (error: unknown) => void }

export function createWriter({ data, onReleased, onLeft }: WriterOptions): Writer {
  const opened = Promise.withResolvers<readonly string[]>()
  opened.promise.catch(() => {})
  const closed = Promise.withResolvers<void>()
  const jobs = new Map<number, Job>()
  let batch: Asked[] = []
  let nextId = 0
  let isOpen = false
  let isClosing = false
  let failed: Error | undefined

  const thread = startThread('writer', 'store writer', data)
  thread.on('message', heard)
  thread.on('error', giveUp)
  thread.on('exit', () => {
    giveUp(new Error('the thread that writes the database ended'))
    closed.resolve()
  })

  /** An idle thread does not keep the process. */
  function keepAlive(): void {
    if (!isOpen || jobs.size > 0 || isClosing) thread.ref()
    else thread.unref()
  }

  function heard(message: FromWriter): void {
    if ('failed' in message) return giveUp(asError(message.failed))
    if ('opened' in message) {
      isOpen = true
      opened.resolve(message.opened)
      return keepAlive()
    }
    if (message.hasReleased) onReleased()
    for (const { id, value, error } of message.answers) {
      const job = jobs.get(id)
      jobs.delete(id)
      if (error) job?.reject(asError(error))
      else job?.resolve(value ?? false)
    }
    for (const name of message.left) onLeft(name)
    keepAlive()
  }

  function giveUp(error: Error): void {
    failed ??= error
    opened.reject(failed)
    for (const { reject } of jobs.values()) reject(failed)
    jobs.clear()
    if (isClosing) void thread.terminate()
    else thread.unref()
  }

  function send(): void {
    thread.postMessage(batch)
    batch = []
  }

  return {
    opened: opened.promise,
    commit(operation) {
      const refusal = failed ?? (isClosing ? new Error('the store is closed') : undefined)
      if (refusal) return Promise.reject(refusal)
      return new Promise((resolve, reject) => {
        const id = nextId++
        jobs.set(id, { resolve, reject })
        batch.push({ id, operation })
        if (batch.length === 1) setImmediate(send)
        keepAlive()
      })
    },
    async close() {
      if (batch.length > 0) send()
      isClosing = true
      keepAlive()
      if (failed) void thread.terminate()
      else thread.postMessage('close')
      await closed.promise
    },
  }
}

export type WriterData = {
  readonly folder: string
  readonly file: string
  readonly head: string
  readonly reserve: string
  readonly cars: string
}

export type Asked = { readonly id: number; readonly operation: Operation }

export type Answer = { readonly id: number; readonly value?: boolean | number; readonly error?: ErrorText }

export type FromWriter =
  | { readonly opened: readonly string[] }
  | { readonly failed: ErrorText }
  | { readonly answers: readonly Answer[]; readonly hasReleased: boolean; readonly left: readonly string[] }

// Operations of a commit.

/** Blocks of one intake, packed: a message of many small objects would hold up the event loop. */
export type PackedBlocks = {
  /** Multihashes, each behind a byte with its length. */
  readonly keys: Uint8Array
  readonly lengths: Uint32Array
  /** Where each block begins: in the CAR file, or in `bytes`. */
  readonly ats: Float64Array
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
  readonly list: Uint32Array
}

export type Operation =
  /** `uploads` of one request, with its blocks. Value: their blocks stay here. */
  | {
      readonly kind: 'accept'
      readonly blocks: PackedBlocks
      readonly uploads: readonly AcceptedRow[]
      readonly quota: readonly QuotaUse[]
    }
  | {
      readonly kind: 'update'
      readonly cid: Uint8Array
      readonly holders: Readonly<Record<string, Standing | undefined>>
    }
  | { readonly kind: 'remove'; readonly cid: Uint8Array }
  | { readonly kind: 'forget'; readonly holder: string }
  | { readonly kind: 'trim'; readonly holder: string; readonly limit: number; readonly bytes: number }
  | { readonly kind: 'move'; readonly from: string; readonly blocks: PackedBlocks }
  | { readonly kind: 'probe' }
  | { readonly kind: 'write'; readonly statements: readonly Statement[] }

const idBytes = 6

export function packIds(ids: readonly number[]): Buffer {
  const packed = Buffer.allocUnsafe(ids.length * idBytes)
  for (const [index, id] of ids.entries()) packed.writeUIntBE(id, index * idBytes, idBytes)
  return packed
}

export function unpackIds(packed: Uint8Array): number[] {
  const view = Buffer.from(packed.buffer, packed.byteOffset, packed.byteLength)
  return Array.from({ length: Math.floor(view.byteLength / idBytes) }, (_, index) =>
    view.readUIntBE(index * idBytes, idBytes),
  )
}

/** Each key of packed blocks, without a copy. */
export function* keysIn(keys: Uint8Array): Generator<Uint8Array> {
  for (let at = 0; at < keys.byteLength; ) {
    const end = at + 1 + (keys[at] as number)
    yield keys.subarray(at + 1, end)
    at = end
  }
}
