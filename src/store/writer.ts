// Commits: the operations that came in one iteration of the event loop, or while the commit before was under way, become one
// transaction in a thread of its own. Each caller hears of its own operation.
import { asError, type ErrorText, startThread } from './engine.ts'
import type { QuotaUse, Standing, Statement } from './store.ts'
import type { Answer, FromWriter, Opened, WriterData } from './writer-thread.ts'

export interface Writer {
  /** Rejects where the database cannot be written. */
  readonly opened: Promise<Opened>
  /** Durable when it resolves. */
  commit(operation: Operation): Promise<Outcome>
  /** Ends when what was asked for is done. */
  close(): Promise<void>
}

type Job = {
  readonly operation: Operation
  readonly weight: number
  readonly resolve: (outcome: Outcome) => void
  readonly reject: (error: unknown) => void
}

const lightBlocks = 256

export function createWriter(data: WriterData): Writer {
  const opened = Promise.withResolvers<Opened>()
  opened.promise.catch(() => {})
  const closed = Promise.withResolvers<void>()
  let waiting: Job[] = []
  let running: readonly Job[] = []
  let isOpen = false
  let isDue = false
  let isClosing = false
  let failed: Error | undefined

  const thread = startThread('writer', 'store writer', data)
  // An idle thread does not keep the process; one with a commit does.
  thread.unref()
  thread.on('message', heard)
  thread.on('error', giveUp)
  thread.on('exit', () => {
    giveUp(new Error('the thread that writes the database ended'))
    closed.resolve()
  })

  function heard(message: FromWriter): void {
    if ('failed' in message) return giveUp(asError(message.failed))
    if ('opened' in message) {
      isOpen = true
      opened.resolve(message.opened)
    } else settle(message.answers)
    if (waiting.length > 0) send()
    else if (isClosing) end()
    else thread.unref()
  }

  function settle(answers: readonly Answer[]): void {
    const jobs = running
    running = []
    for (const [index, { resolve, reject }] of jobs.entries()) {
      const answer = answers[index] as Answer
      if ('outcome' in answer) resolve(answer.outcome)
      else reject(asError(answer.error as ErrorText))
    }
  }

  function giveUp(error: Error): void {
    failed ??= error
    opened.reject(failed)
    const jobs = [...running, ...waiting]
    running = []
    waiting = []
    for (const { reject } of jobs) reject(failed)
    if (isClosing) void thread.terminate()
  }

  function send(): void {
    isDue = false
    if (!isOpen || running.length > 0 || waiting.length === 0) return
    running = takeSome()
    thread.ref()
    thread.postMessage(running.map(({ operation }) => operation))
  }

  /** All that are light, and of the others as many as one commit takes: they wait for each other, and nobody for them all. */
  function takeSome(): readonly Job[] {
    const taken: Job[] = []
    const later: Job[] = []
    let weight = 0
    for (const job of waiting) {
      const isNow = job.weight <= lightBlocks || weight === 0 || weight + job.weight <= blocksAtOnce
      if (isNow && job.weight > lightBlocks) weight += job.weight
      ;(isNow ? taken : later).push(job)
    }
    waiting = later
    return taken
  }

  function end(): void {
    if (failed || !isOpen) void thread.terminate()
    else thread.postMessage('close')
  }

  return {
    opened: opened.promise,
    commit(operation) {
      const refusal = failed ?? (isClosing ? new Error('the store is closed') : undefined)
      if (refusal) return Promise.reject(refusal)
      return new Promise((resolve, reject) => {
        waiting.push({ operation, weight: weightOf(operation), resolve, reject })
        if (!isOpen) thread.ref()
        if (isDue) return
        isDue = true
        setImmediate(send)
      })
    },
    async close() {
      isClosing = true
      thread.ref()
      await opened.promise.catch(() => {})
      if (running.length === 0 && waiting.length === 0) end()
      await closed.promise
    },
  }
}

// Operations of a commit: each runs in the writer's thread, in a savepoint of the shared transaction.

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

/** A change of more blocks takes several commits, so that nobody waits for all of them. */
export const blocksAtOnce = 4096

export type Operation =
  /** Some blocks of an upload that is accepted later. `uses`: of each, by uploads of its request. */
  | { readonly kind: 'stage'; readonly blocks: PackedBlocks; readonly uses: Uint32Array; readonly at: number }
  /** Blocks of an upload that was deleted, or was staged and not accepted. */
  | { readonly kind: 'drain'; readonly loose: number }
  | { readonly kind: 'accept'; readonly intakes: readonly AcceptedIntake[]; readonly quota: readonly QuotaUse[] }
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

/** `staged`: its blocks are there, under these ids and named by these rows of `loose`. */
export type AcceptedIntake = {
  readonly blocks: PackedBlocks
  readonly uploads: readonly AcceptedRow[]
  readonly staged?: { readonly ids: Float64Array; readonly loose: readonly number[] }
}

export type Outcome = {
  readonly value: boolean | number
  /** CAR files that no row names any more. */
  readonly gone: readonly string[]
  /** CAR files that no upload names, and that have blocks which are still used. */
  readonly left: readonly string[]
  /** Rows of `loose` that were made. */
  readonly loose: readonly number[]
  /** Of blocks that were staged. */
  readonly ids?: Float64Array
}

const roomMaking: ReadonlySet<Operation['kind']> = new Set(['remove', 'update', 'forget', 'drain'])

/** Makes room rather than taking it: goes on where the disk is full. */
export const makesRoom = ({ kind }: Operation): boolean => roomMaking.has(kind)

/** Blocks that it may change, where they are many. */
export function weightOf(operation: Operation): number {
  if (operation.kind === 'drain') return blocksAtOnce
  if (operation.kind === 'stage' || operation.kind === 'move') return operation.blocks.lengths.length
  return operation.kind === 'accept' ? operation.intakes.reduce((sum, { blocks }) => sum + blocks.lengths.length, 0) : 0
}

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

/** Blocks of one commit. `places`: where they are among those of their intake. */
type Slice = { readonly blocks: PackedBlocks; readonly places: Uint32Array }

/** As many blocks as one commit takes, with keys that lie near each other: a commit writes each page of the index that it touches. */
export function* slicesOf(blocks: PackedBlocks): Generator<Slice> {
  const { keys, lengths } = blocks
  const count = lengths.length
  const starts = new Uint32Array(count)
  const shares = Array.from({ length: Math.ceil(count / (0.9 * blocksAtOnce)) }, (): number[] => [])
  for (let at = 0, index = 0; index < count; at += 1 + (keys[at] as number), index++) {
    starts[index] = at
    // Behind the name of the hash function and the length of its hash.
    const first = (((keys[at + 3] ?? 0) << 8) | (keys[at + 4] ?? 0)) / 0x10000
    shares[Math.floor(first * shares.length)]?.push(index)
  }
  for (const share of shares)
    for (let from = 0; from < share.length; from += blocksAtOnce)
      yield sliceOf(blocks, starts, Uint32Array.from(share.slice(from, from + blocksAtOnce)))
}

function sliceOf(blocks: PackedBlocks, starts: Uint32Array, places: Uint32Array): Slice {
  const keys: Uint8Array[] = []
  for (const index of places) {
    const at = starts[index] as number
    keys.push(blocks.keys.subarray(at, at + 1 + (blocks.keys[at] as number)))
  }
  const lengths = places.map((index) => blocks.lengths[index] as number)
  const ats = Float64Array.from(places, (index) => blocks.ats[index] as number)
  return { blocks: { ...blocks, keys: Buffer.concat(keys), lengths, ats }, places }
}

/** Of each block of an intake, how many of its uploads list it. */
export function usesIn({ blocks, uploads }: AcceptedIntake): Uint32Array {
  const uses = new Uint32Array(blocks.lengths.length)
  for (const { list } of uploads) for (const index of list) uses[index] = (uses[index] as number) + 1
  return uses
}
