// The write-behind queue of one slow tier: bounded, readable while blocks wait, and with one
// operation at a time for each key in the order of the calls, so that a running write never undoes
// a delete. A tier that takes many blocks in one call gets all that came during the call before and
// shortly after it.
import type { CID } from 'multiformats/cid'
import type { Tier } from '../../../backends/tiers/contract.ts'
import { type Block, blockKey } from '../../core/cid.ts'
import { type Clock, orAborted, withDeadline } from '../../core/clock.ts'
import { cancelled, Failure, isFailure } from '../../core/failure.ts'
import type { Call, GuardedTier } from './guarded-tier.ts'

type WriteBehindOptions = {
  readonly tier: Pick<Tier, 'name' | 'traits'> & Pick<GuardedTier, 'put' | 'putAll' | 'delete'>
  readonly clock: Clock
  readonly maxBytes: number
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

/** `onLost`: it was not written, and not deleted meanwhile. */
type Queued = Block & { readonly onLost?: (() => void) | undefined }

/** One call to the tier, or several that belong together. */
type Operation = {
  /** Blocks that it writes, by key. */
  readonly blocks: ReadonlyMap<string, Queued>
  readonly stop: AbortController
  /** Resolves when it takes longer than it is waited for. It goes on. */
  readonly late: PromiseWithResolvers<void>
  /** Rejects as the tier does. */
  done: Promise<void>
  /** Never rejects. */
  over: Promise<void>
}

const maxBlocks = 16_384
const concurrency = 8
// A call to the disk costs as much as a dozen blocks of 4 KB.
const gatherMs = 20

export class WriteBehind {
  readonly #options: WriteBehindOptions
  readonly #queue = new Map<string, Queued>()
  #queuedBytes = 0
  /** The last operation on a key. */
  readonly #busy = new Map<string, Operation>()
  readonly #writes = new Set<Operation>()
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
  #written = 0
  #dropped = 0
  #failed = 0

  constructor(options: WriteBehindOptions) {
    this.#options = options
  }

  /**
   * Takes a block whose buffer no caller changes any more. A promise: the queue is full and moves, as
   * with a disk slower than a stream of new blocks; no caller waits for a shared tier. Never rejects.
   */
  put(cid: CID, bytes: Uint8Array, onLost?: () => void): void | Promise<void> {
    const key = blockKey(cid)
    const block = { cid, bytes, onLost }
    if (this.waiting(key) || this.#enqueue(key, block)) return
    const { tier, maxBytes } = this.#options
    const moves = !this.#isClosed && !this.#isStuck && !(this.#hasFailed && this.#waitMs > 0)
    if (moves && !tier.traits.shared && bytes.byteLength <= maxBytes && this.#waiters.length < maxBlocks)
      return new Promise<void>((resolve) => this.#waiters.push(resolve)).then(() => this.put(cid, bytes, onLost))
    this.#drop(block)
  }

  /**
   * Writes at once, after running work on this key, or joins its write. `done` rejects as the tier
   * does, `late` resolves when it takes longer than it is waited for.
   */
  write(cid: CID, bytes: Uint8Array): Pick<Operation, 'done' | 'late'> {
    const key = blockKey(cid)
    if (this.#isClosed) throw closing(this.#options.tier.name)
    this.#take(key)
    const running = this.#busy.get(key)
    if (running?.blocks.has(key)) return running
    // The removal of corrupt bytes might undo it: the write begins when that is over, or late.
    void running?.late.promise.then(() => running.stop.abort(cancelled('the block is written again')))
    const write = this.#write(new Map([[key, { cid, bytes }]]))
    write.done.catch(() => this.#failed++)
    return write
  }

  /** Forgets what waits for this key, then deletes it from the tier. */
  async delete(cid: CID, signal?: AbortSignal): Promise<void> {
    const key = blockKey(cid)
    this.#take(key)
    const { done } = this.#inOrder([key], noBlocks, () => this.#options.tier.delete(cid, signal))
    await orAborted(signal, done)
  }

  /**
   * Does other work on a key, unless an operation on it is under way. An upload of the block aborts
   * it when it is late. Resolves when it is done, or late.
   */
  async mend(cid: CID, work: (signal: AbortSignal, call: Call) => Promise<void>): Promise<void> {
    const key = blockKey(cid)
    if (this.#busy.has(key)) return
    const { done, late } = this.#inOrder([key], noBlocks, (one) => {
      return work(one.stop.signal, { onSoftTimeout: one.late.resolve })
    })
    await Promise.race([done, late.promise])
  }

  /** The bytes on their way to the tier. */
  waiting(key: string): Uint8Array | undefined {
    return (this.#queue.get(key) ?? this.#busy.get(key)?.blocks.get(key))?.bytes
  }

  get stats(): FillStats {
    let queued = this.#queue.size
    for (const { blocks } of this.#writes) queued += blocks.size
    return {
      ...{ written: this.#written, dropped: this.#dropped, failed: this.#failed },
      ...{ queued, queuedBytes: this.#queuedBytes },
    }
  }

  /** Takes no more and writes what waits; the rest is dropped after `ms`. */
  async close(ms: number): Promise<void> {
    const { clock, tier } = this.#options
    this.#isClosed = true
    this.#pump()
    const drain = async () => {
      while (this.#busy.size > 0) await Promise.all([...this.#busy.values()].map(({ over }) => over))
    }
    const late = () => closing(tier.name)
    await withDeadline({ ms, clock, late }, drain).catch(() => {
      this.#dropped += this.#queue.size
      for (const key of [...this.#queue.keys()]) this.#take(key)
      for (const { stop } of this.#busy.values()) stop.abort(late())
    })
    this.#stopTimer?.()
  }

  // The queue.

  /** False: it is full. */
  #enqueue(key: string, block: Queued): boolean {
    const bytes = this.#queuedBytes + block.bytes.byteLength
    if (this.#isClosed || this.#queue.size >= maxBlocks || bytes > this.#options.maxBytes) return false
    this.#queue.set(key, block)
    this.#queuedBytes = bytes
    this.#pump()
    return true
  }

  #drop({ onLost }: Queued): void {
    this.#dropped++
    onLost?.()
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
  }

  #wake(): void {
    for (const wake of this.#waiters.splice(0)) wake()
  }

  /** False: no block can be written now. */
  #writeNext(): boolean {
    const blocks = new Map<string, Queued>()
    let bytes = 0
    for (const [key, block] of this.#queue) {
      if (this.#busy.has(key)) continue
      bytes += block.bytes.byteLength
      if (blocks.size > 0 && bytes > this.#options.maxBytes / concurrency) break
      blocks.set(key, block)
      if (!this.#options.tier.putAll) break
    }
    if (blocks.size === 0) return false
    for (const key of blocks.keys()) this.#take(key)
    this.#write(blocks).done.catch((error: unknown) => {
      const pauseMs = isFailure(error, 'unavailable') ? error.retryAfterMs : undefined
      if (pauseMs === undefined) this.#failed += blocks.size
      else {
        this.#hasFailed = true
        this.#nextAt = this.#options.clock.monotonic() + pauseMs
      }
      // An operation that follows is its deletion.
      for (const [key, block] of blocks)
        if (!this.#busy.has(key) && !this.#queue.has(key)) {
          if (pauseMs === undefined) block.onLost?.()
          else if (!this.#enqueue(key, block)) this.#drop(block)
        }
    })
    return true
  }

  // One operation after the other.

  #write(blocks: ReadonlyMap<string, Queued>): Operation {
    return this.#inOrder([...blocks.keys()], blocks, (operation) => this.#put(operation))
  }

  async #put(write: Operation): Promise<void> {
    const { tier, clock } = this.#options
    const onSoftTimeout = () => {
      this.#isStuck = true
      write.late.resolve()
      this.#wake()
    }
    const { signal } = write.stop
    try {
      const all = [...write.blocks.values()]
      const [first] = all
      if (tier.putAll && all.length > 1) await tier.putAll(all, signal, { onSoftTimeout })
      else if (first) await tier.put(first.cid, first.bytes, signal, { onSoftTimeout })
      this.#written += all.length
      this.#hasFailed = false
      this.#stopTimer?.()
      this.#stopTimer = undefined
      this.#nextAt = tier.putAll ? clock.monotonic() + gatherMs : Number.NEGATIVE_INFINITY
    } finally {
      this.#isStuck = false
      this.#writes.delete(write)
    }
  }

  /** Does the work after the last operation on these keys; keys of several blocks are free. */
  #inOrder(
    keys: readonly string[],
    blocks: ReadonlyMap<string, Queued>,
    work: (operation: Operation) => Promise<void>,
  ): Operation {
    const before = this.#busy.get(keys[0] as string)?.over
    const operation: Operation = {
      ...{ blocks, stop: new AbortController(), late: Promise.withResolvers(), done: noWork, over: noWork },
    }
    for (const key of keys) this.#busy.set(key, operation)
    if (blocks.size > 0) this.#writes.add(operation)
    const end = () => {
      for (const key of keys) if (this.#busy.get(key) === operation) this.#busy.delete(key)
      this.#pump()
      this.#wake()
    }
    operation.done = before === undefined ? work(operation) : before.then(() => work(operation))
    operation.over = operation.done.then(end, end)
    return operation
  }
}

const noBlocks: ReadonlyMap<string, Queued> = new Map()
const noWork = Promise.resolve()

const closing = (name: string): Failure => new Failure('unavailable', `tier ${name} is closing`, { source: 'tier' })
