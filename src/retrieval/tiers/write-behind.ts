// The write-behind queue of one slow tier: bounded, readable while blocks wait, and with one
// operation at a time for each key in the order of the calls, so that a running write never undoes
// a delete. A tier that takes many blocks in one call gets all that came during the call before and
// shortly after it.
import type { CID } from 'multiformats/cid'
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import { type Block, blockKey } from '../../core/cid.ts'
import { type Clock, orAborted, withDeadline } from '../../core/clock.ts'
import { cancelled, Failure, isFailure } from '../../core/failure.ts'

type Keyed = readonly [key: string, block: Block]

type WriteBehindOptions = {
  readonly tier: Tier
  readonly clock: Clock
  readonly maxBytes: number
  /** Called with a block that the tier did not take, unless it was deleted meanwhile. */
  readonly onFailed?: ((cid: CID, bytes: Uint8Array) => void) | undefined
}

export type FillStats = {
  readonly written: number
  /** The queue was full. */
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
// A call to the disk costs as much as a dozen blocks of 4 KB.
const gatherMs = 20

export class WriteBehind {
  readonly #options: WriteBehindOptions
  readonly #queue = new Map<string, Block>()
  #queuedBytes = 0
  /** The last operation on a key; never rejects. */
  readonly #busy = new Map<string, Promise<void>>()
  /** Blocks that are being written and were not deleted meanwhile. */
  readonly #writing = new Map<string, { readonly write: Write; readonly bytes: Uint8Array }>()
  readonly #writes = new Set<Write>()
  readonly #mending = new Map<string, AbortController>()
  /** Callers that wait for capacity in the queue. */
  #waiters: (() => void)[] = []
  /** The tier is overdue: the queue does not move. */
  #isStuck = false
  #isClosed = false
  /** The last call failed. */
  #hasFailed = false
  /** The next call has to wait until then: the tier failed, or more blocks may join the call. */
  #nextAt = Number.NEGATIVE_INFINITY
  #stopTimer: (() => void) | undefined
  #onIdle = () => {}
  #written = 0
  #dropped = 0
  #failed = 0

  constructor(options: WriteBehindOptions) {
    this.#options = options
  }

  /**
   * Takes a block whose buffer no caller changes any more; false: it is dropped. A promise: the
   * queue is full and moves, as with a disk slower than a stream of new blocks; no caller waits for
   * a shared tier. Never rejects.
   */
  put(cid: CID, bytes: Uint8Array): boolean | Promise<boolean> {
    const key = blockKey(cid)
    if (this.#queue.has(key) || this.#writing.has(key)) return true
    if (this.#enqueue(key, { cid, bytes })) return true
    const { tier, maxBytes } = this.#options
    const moves = !this.#isClosed && !this.#isStuck && !(this.#hasFailed && this.#waitMs > 0)
    if (moves && !tier.traits.shared && bytes.byteLength <= maxBytes && this.#waiters.length < maxBlocks)
      return new Promise<void>((resolve) => this.#waiters.push(resolve)).then(() => this.put(cid, bytes))
    this.#dropped++
    return false
  }

  /**
   * Writes at once, after running work on this key, or joins its write; rejects as the tier does.
   */
  async write(cid: CID, bytes: Uint8Array, call?: Call): Promise<void> {
    const key = blockKey(cid)
    if (this.#isClosed) throw closing(this.#options.tier.name)
    this.#take(key)
    this.#mending.get(key)?.abort(cancelled('the block is written again'))
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

  /**
   * Does other work on a key, unless an operation on it is under way. An upload of the block aborts
   * it, since it might undo the write.
   */
  mend(cid: CID, work: (signal: AbortSignal) => Promise<void>): Promise<void> {
    const key = blockKey(cid)
    if (this.#busy.has(key)) return noWork
    const stop = new AbortController()
    this.#mending.set(key, stop)
    return this.#inOrder([key], () => work(stop.signal)).finally(() => this.#mending.delete(key))
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
      for (const stop of this.#mending.values()) stop.abort(late())
      for (const { stop } of this.#writes) stop.abort(late())
    })
    this.#stopTimer?.()
  }

  // The queue.

  /** False: it is full. */
  #enqueue(key: string, block: Block): boolean {
    const bytes = this.#queuedBytes + block.bytes.byteLength
    if (this.#isClosed || this.#queue.size >= maxBlocks || bytes > this.#options.maxBytes) return false
    this.#queue.set(key, block)
    this.#queuedBytes = bytes
    this.#pump()
    return true
  }

  #take(key: string): void {
    this.#queuedBytes -= this.#queue.get(key)?.bytes.byteLength ?? 0
    this.#queue.delete(key)
  }

  get #waitMs(): number {
    const { clock, maxBytes } = this.#options
    const isFull = !this.#hasFailed && this.#queuedBytes >= maxBytes / concurrency
    return this.#isClosed || isFull ? 0 : this.#nextAt - clock.monotonic()
  }

  #pump(): void {
    const waitMs = this.#waitMs
    if (waitMs <= 0) while (this.#writes.size < (this.#options.tier.putAll ? 1 : concurrency) && this.#writeNext());
    else if (this.#queue.size > 0)
      this.#stopTimer ??= this.#options.clock.after(waitMs, () => {
        this.#stopTimer = undefined
        this.#pump()
      })
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
      bytes += block.bytes.byteLength
      if (blocks.length > 0 && bytes > this.#options.maxBytes / concurrency) break
      blocks.push([key, block])
      if (!this.#options.tier.putAll) break
    }
    if (blocks.length === 0) return false
    for (const [key] of blocks) this.#take(key)
    this.#begin(blocks).done.catch((error: unknown) => {
      const pauseMs = isFailure(error, 'unavailable') ? error.retryAfterMs : undefined
      if (pauseMs === undefined) return void (this.#failed += blocks.length)
      this.#hasFailed = true
      this.#nextAt = this.#options.clock.monotonic() + pauseMs
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
    const { tier, clock, onFailed } = this.#options
    const overdue = () => {
      write.isOverdue = this.#isStuck = true
      for (const tell of write.tell) tell()
      this.#wake()
    }
    const { blocks, stop } = write
    let isWritten = false
    try {
      const all = blocks.map(([, block]) => block)
      const [first] = all
      if (tier.putAll && all.length > 1) await tier.putAll(all, stop.signal, { overdue })
      else if (first) await tier.put(first.cid, first.bytes, stop.signal, { overdue })
      isWritten = true
      this.#written += all.length
      this.#hasFailed = false
      this.#nextAt = tier.putAll ? clock.monotonic() + gatherMs : Number.NEGATIVE_INFINITY
    } finally {
      this.#isStuck = false
      this.#writes.delete(write)
      for (const [key, { cid, bytes }] of blocks) {
        if (this.#writing.get(key)?.write !== write) continue
        this.#writing.delete(key)
        if (!isWritten) onFailed?.(cid, bytes)
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
