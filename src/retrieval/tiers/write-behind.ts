// The write-behind queue of one slow tier: bounded, readable while blocks wait, and with one operation at a time for each key in
// the order of the calls, so that a running write never undoes a delete. A tier that takes many blocks by one call gets all that
// came during the call before.
import type { CID } from 'multiformats/cid'
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import { blockKey } from '../../core/cid.ts'
import { type Clock, orAborted, withDeadline } from '../../core/clock.ts'
import { Failure, isFailure } from '../../core/failure.ts'

/** Without `bytes` it is read again before it is written. */
type QueuedBlock = { readonly cid: CID; readonly bytes: Uint8Array | undefined }
type Keyed = readonly [key: string, block: QueuedBlock]

type WriteBehindOptions = {
  readonly tier: Tier
  readonly clock: Clock
  readonly maxBytes: number
  /**
   * Reads a block again. With it no caller waits for the tier: a block beyond `maxBytes` waits without its bytes, and the queue
   * waits while the tier is down.
   */
  readonly reread?: ((cid: CID) => Promise<Uint8Array | undefined>) | undefined
  /** Called with a block that the tier did not take, unless it was deleted meanwhile. */
  readonly onFailed?: ((cid: CID, bytes: Uint8Array) => void) | undefined
}

export type FillStats = {
  readonly written: number
  /** The queue was full, or the block was gone when it was to be read again. */
  readonly dropped: number
  readonly failed: number
  /** Waiting, or being written. */
  readonly queued: number
  readonly queuedBytes: number
}

/** One call to the tier, with all that wait for it. */
type Write = {
  readonly stop: AbortController
  /** Callers to tell that it is overdue. */
  readonly tell: Set<() => void>
  readonly blocks: readonly Keyed[]
  done: Promise<void>
  isOverdue: boolean
}

const maxBlocks = 16_384
const concurrency = 8
/** A tier that fails, and does not say when to come back, is left alone this long. */
const retryMs = 1000

export class WriteBehind {
  readonly #options: WriteBehindOptions
  readonly #isBatched: boolean
  readonly #queue = new Map<string, QueuedBlock>()
  #queuedBytes = 0
  /** The last operation on a key; never rejects. */
  readonly #busy = new Map<string, Promise<void>>()
  /** Blocks that are being written and were not deleted meanwhile. */
  readonly #writing = new Map<string, { readonly write: Write; readonly bytes: Uint8Array | undefined }>()
  readonly #writes = new Set<Write>()
  /** Callers that wait for capacity in the queue. */
  #waiters: (() => void)[] = []
  /** The tier is overdue: the queue does not move. */
  #isStuck = false
  #isClosed = false
  #pausedUntil = Number.NEGATIVE_INFINITY
  #stopTimer = () => {}
  #onIdle = () => {}
  #written = 0
  #dropped = 0
  #failed = 0

  constructor(options: WriteBehindOptions) {
    this.#options = options
    this.#isBatched = options.tier.putAll !== undefined && !options.reread
  }

  /**
   * Takes a block whose buffer no caller changes any more; false: it is dropped. A promise: the queue is full and moves, as with a
   * disk slower than a stream of new blocks. Never rejects.
   */
  put(cid: CID, bytes: Uint8Array): boolean | Promise<boolean> {
    const key = blockKey(cid)
    if (this.#queue.has(key) || this.#writing.has(key)) return true
    if (this.#enqueue(key, { cid, bytes })) return true
    const { reread, maxBytes } = this.#options
    const waits = !this.#isClosed && !this.#isStuck && !reread && bytes.byteLength <= maxBytes
    if (waits && this.#waiters.length < maxBlocks)
      return new Promise<void>((resolve) => this.#waiters.push(resolve)).then(() => this.put(cid, bytes))
    this.#dropped++
    return false
  }

  /** Writes at once, after running work on this key, or joins its write; rejects as the tier does. */
  async write(cid: CID, bytes: Uint8Array, call?: Call): Promise<void> {
    const key = blockKey(cid)
    if (this.#isClosed) throw closing(this.#options.tier.name)
    this.#take(key)
    const joined = this.#writing.get(key)?.write
    const write = joined ?? this.#begin([[key, { cid, bytes }]])
    if (write.isOverdue) call?.overdue?.()
    else if (call?.overdue) write.tell.add(call.overdue)
    await write.done.catch((error: unknown) => {
      if (!joined) this.#failed++
      throw error
    })
  }

  /** Forgets what waits for this key, then deletes it from the tier. */
  async delete(cid: CID, signal?: AbortSignal): Promise<void> {
    const key = blockKey(cid)
    this.#take(key)
    this.#writing.delete(key)
    await orAborted(
      signal,
      this.#inOrder([key], () => this.#options.tier.delete(cid, signal)),
    )
  }

  /** The bytes on their way to the tier. */
  waiting(key: string): Uint8Array | undefined {
    return this.#queue.get(key)?.bytes ?? this.#writing.get(key)?.bytes
  }

  get stats(): FillStats {
    let queued = this.#queue.size
    for (const { blocks } of this.#writes) queued += blocks.length
    return {
      ...{ written: this.#written, dropped: this.#dropped, failed: this.#failed },
      ...{ queued, queuedBytes: this.#queuedBytes },
    }
  }

  /** Takes no more and writes what waits; the rest is dropped after `ms`. */
  async close(ms: number): Promise<void> {
    const { clock, tier } = this.#options
    this.#isClosed = true
    const idle = Promise.withResolvers<void>()
    this.#onIdle = idle.resolve
    this.#pump()
    const late = () => closing(tier.name)
    await withDeadline({ ms, clock, late }, () => idle.promise).catch(() => {
      this.#dropped += this.#queue.size
      for (const key of [...this.#queue.keys()]) this.#take(key)
      for (const { stop } of this.#writes) stop.abort(late())
    })
    this.#stopTimer()
  }

  // The queue.

  /** False: it is full. */
  #enqueue(key: string, { cid, bytes }: QueuedBlock): boolean {
    const { reread, maxBytes } = this.#options
    const fits = bytes !== undefined && this.#queuedBytes + bytes.byteLength <= maxBytes
    if (this.#isClosed || this.#queue.size >= maxBlocks || (!fits && !reread)) return false
    this.#queue.set(key, { cid, bytes: fits ? bytes : undefined })
    if (fits) this.#queuedBytes += bytes.byteLength
    this.#pump()
    return true
  }

  #take(key: string): void {
    this.#queuedBytes -= this.#queue.get(key)?.bytes?.byteLength ?? 0
    this.#queue.delete(key)
  }

  #pump(): void {
    const { clock } = this.#options
    const waitMs = this.#isClosed ? 0 : this.#pausedUntil - clock.monotonic()
    this.#stopTimer()
    if (waitMs > 0) this.#stopTimer = clock.after(waitMs, () => this.#pump())
    else while (this.#writes.size < (this.#isBatched ? 1 : concurrency) && this.#writeNext());
    if (this.#queue.size === 0 && this.#busy.size === 0) this.#onIdle()
  }

  #wake(): void {
    for (const wake of this.#waiters.splice(0)) wake()
  }

  /** False: no block can be written now. */
  #writeNext(): boolean {
    const blocks: Keyed[] = []
    let bytes = 0
    for (const [key, block] of this.#queue) {
      if (this.#busy.has(key)) continue
      bytes += block.bytes?.byteLength ?? 0
      if (blocks.length > 0 && bytes > this.#options.maxBytes / concurrency) break
      blocks.push([key, block])
      if (!this.#isBatched) break
    }
    if (blocks.length === 0) return false
    for (const [key] of blocks) this.#take(key)
    this.#begin(blocks).done.catch((error: unknown) => {
      const { reread, clock } = this.#options
      if (!reread || this.#isClosed || !isFailure(error, 'unavailable')) return void (this.#failed += blocks.length)
      this.#pausedUntil = clock.monotonic() + (error.retryAfterMs ?? retryMs)
      for (const [key, block] of blocks) if (!this.#queue.has(key) && !this.#enqueue(key, block)) this.#dropped++
    })
    return true
  }

  // One operation after the other.

  #begin(blocks: readonly Keyed[]): Write {
    const write: Write = { blocks, stop: new AbortController(), tell: new Set(), done: noWork, isOverdue: false }
    for (const [key, { bytes }] of blocks) this.#writing.set(key, { write, bytes })
    this.#writes.add(write)
    const keys = blocks.map(([key]) => key)
    write.done = this.#inOrder(keys, () => this.#put(write))
    return write
  }

  async #put(write: Write): Promise<void> {
    const { tier, reread, onFailed } = this.#options
    const overdue = () => {
      write.isOverdue = this.#isStuck = true
      for (const tell of write.tell) tell()
      this.#wake()
    }
    const { blocks, stop } = write
    let isWritten = false
    try {
      const read: { readonly cid: CID; readonly bytes: Uint8Array }[] = []
      for (const [, { cid, bytes: held }] of blocks) {
        const bytes = held ?? (await reread?.(cid))
        if (bytes) read.push({ cid, bytes })
        else this.#dropped++
      }
      const [first] = read
      if (read.length > 1) await tier.putAll?.(read, stop.signal, { overdue })
      else if (first) await tier.put(first.cid, first.bytes, stop.signal, { overdue })
      isWritten = true
      this.#written += read.length
      this.#pausedUntil = Number.NEGATIVE_INFINITY
    } finally {
      this.#isStuck = false
      this.#writes.delete(write)
      for (const [key, { cid, bytes }] of blocks) {
        if (this.#writing.get(key)?.write !== write) continue
        this.#writing.delete(key)
        if (!isWritten && bytes) onFailed?.(cid, bytes)
      }
    }
  }

  /** Does the work after the last operation on these keys; keys of several blocks are free. */
  #inOrder(keys: readonly string[], work: () => Promise<void>): Promise<void> {
    const before = this.#busy.get(keys[0] as string)
    const done = before === undefined ? work() : before.then(work)
    const end = () => {
      for (const key of keys) if (this.#busy.get(key) === over) this.#busy.delete(key)
      this.#pump()
      this.#wake()
    }
    const over = done.then(end, end)
    for (const key of keys) this.#busy.set(key, over)
    return done
  }
}

const noWork = Promise.resolve()

const closing = (name: string): Failure => new Failure('unavailable', `tier ${name} is closing`, { source: 'tier' })
