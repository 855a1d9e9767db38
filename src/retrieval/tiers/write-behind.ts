// The write-behind queue of one slow tier: bounded, readable while blocks wait, and with one
// operation at a time for each key in the order of the calls, so that a running write never undoes a
// delete. A tier that takes many blocks by one call gets all that came during the call before.
import type { CID } from 'multiformats/cid'
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import { blockKey } from '../../core/cid.ts'
import { type Clock, orAborted, withDeadline } from '../../core/clock.ts'
import { Failure, isFailure } from '../../core/failure.ts'

/** Without `bytes` it is read again before it is written. */
type QueuedBlock = { readonly cid: CID; readonly bytes: Uint8Array | undefined }

type WriteBehindOptions = {
  readonly tier: Tier
  readonly clock: Clock
  readonly maxBytes: number
  /**
   * Reads a block again. With it no caller waits for the tier: a block beyond `maxBytes` waits
   * without its bytes, and the queue waits while the tier is down.
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
  readonly bytes: number
  readonly stop: AbortController
  /** Callers to tell that it is overdue. */
  readonly tell: Set<() => void>
  done: Promise<void>
  isOverdue: boolean
}

const maxBlocks = 16_384
const concurrency = 8
// R2 answers 429 to more than one write a second of one key.
const rewriteMs = 1000
/** A disk slower than a stream of new blocks slows the stream down a little instead of losing them. */
const maxWaitMs = 500

export class WriteBehind {
  readonly #tier: Tier
  readonly #clock: Clock
  readonly #maxBytes: number
  readonly #reread: WriteBehindOptions['reread']
  readonly #onFailed: WriteBehindOptions['onFailed']
  readonly #isBatched: boolean
  readonly #queue = new Map<string, QueuedBlock>()
  #queuedBytes = 0
  /** The last operation on a key; never rejects. */
  readonly #busy = new Map<string, Promise<void>>()
  /** Blocks that are being written and were not deleted meanwhile. */
  readonly #writing = new Map<string, { readonly write: Write; readonly block: QueuedBlock }>()
  readonly #writes = new Set<Write>()
  #running = 0
  #lateBytes = 0
  /** When keys were written lately, the oldest first. */
  readonly #writtenAt = new Map<string, number>()
  /** Callers that wait for room in the queue. */
  readonly #waiters = new Set<() => void>()
  #isStuck = false
  #isClosed = false
  #pausedUntil = Number.NEGATIVE_INFINITY
  #stopTimer = () => {}
  #onIdle = () => {}
  #written = 0
  #dropped = 0
  #failed = 0

  constructor({ tier, clock, maxBytes, reread, onFailed }: WriteBehindOptions) {
    this.#tier = tier
    this.#clock = clock
    this.#maxBytes = maxBytes
    this.#reread = reread
    this.#onFailed = onFailed
    this.#isBatched = tier.putAll !== undefined && !reread
  }

  /**
   * Takes a block whose buffer no caller changes any more. A promise: the caller waits for room.
   * Never rejects.
   */
  put(cid: CID, bytes: Uint8Array): void | Promise<void> {
    const key = blockKey(cid)
    if (this.#isKnown(key)) return undefined
    if (this.#isClosed || this.#reread || this.#hasRoom(bytes)) return this.#enqueue(key, { cid, bytes })
    return this.#whenRoom(bytes).then((hasRoom) => {
      if (!hasRoom) this.#dropped++
      else if (!this.#isKnown(key)) this.#enqueue(key, { cid, bytes })
    })
  }

  /**
   * Writes at once, after running work on this key; rejects as the tier does. A block written just
   * now is written again only if the tier lost it. A caller that was told that it is overdue need
   * not wait: the write goes on, within `maxBytes`.
   */
  async write(cid: CID, bytes: Uint8Array, call?: Call): Promise<void> {
    const key = blockKey(cid)
    // Another instance may have found it corrupt since, and deleted it.
    if (!this.#busy.has(key) && this.#isJustWritten(key) && (await this.#tier.has(cid, undefined, call))) return
    if (this.#isClosed) throw closing(this.#tier.name)
    this.#take(key)
    const joined = this.#writing.get(key)?.write
    const isBehindDelete = !joined && this.#busy.has(key)
    const write = joined ?? this.#begin([[key, { cid, bytes }]])
    const overdue = () => {
      if (!joined && this.#lateBytes > this.#maxBytes) write.stop.abort(crowded(this.#tier.name))
      call?.overdue?.()
    }
    if (write.isOverdue || isBehindDelete) overdue()
    else write.tell.add(overdue)
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
    const work = this.#inOrder([key], async () => {
      this.#writtenAt.delete(key)
      await this.#tier.delete(cid, signal)
    })
    await orAborted(signal, work)
  }

  /** The bytes on their way to the tier. */
  waiting(key: string): Uint8Array | undefined {
    return this.#queue.get(key)?.bytes ?? this.#writing.get(key)?.block.bytes
  }

  get stats(): FillStats {
    const queued = this.#queue.size + this.#running
    return {
      ...{ written: this.#written, dropped: this.#dropped, failed: this.#failed },
      ...{ queued, queuedBytes: this.#queuedBytes },
    }
  }

  /** Takes no more and writes what waits; the rest is dropped after `ms`. */
  async close(ms: number): Promise<void> {
    this.#isClosed = true
    const idle = Promise.withResolvers<void>()
    this.#onIdle = idle.resolve
    this.#pump()
    const late = () => closing(this.#tier.name)
    await withDeadline({ ms, clock: this.#clock, late }, () => idle.promise).catch(() => {
      this.#dropped += this.#queue.size
      for (const key of [...this.#queue.keys()]) this.#take(key)
      for (const { stop } of this.#writes) stop.abort(late())
    })
    this.#stopTimer()
  }

  // The queue.

  #isKnown(key: string): boolean {
    return this.#queue.has(key) || this.#writing.has(key) || this.#isJustWritten(key)
  }

  #isJustWritten(key: string): boolean {
    return (this.#writtenAt.get(key) ?? Number.NEGATIVE_INFINITY) + rewriteMs > this.#clock.monotonic()
  }

  #hasRoom(bytes: Uint8Array): boolean {
    return this.#queue.size < maxBlocks && this.#queuedBytes + bytes.byteLength <= this.#maxBytes
  }

  #enqueue(key: string, { cid, bytes }: QueuedBlock): void {
    const isWhole = bytes !== undefined && this.#hasRoom(bytes)
    if (this.#isClosed || (!isWhole && (!this.#reread || this.#queue.size >= maxBlocks))) return void this.#dropped++
    this.#queue.set(key, { cid, bytes: isWhole ? bytes : undefined })
    if (isWhole) this.#queuedBytes += bytes.byteLength
    this.#pump()
  }

  #take(key: string): void {
    this.#queuedBytes -= this.#queue.get(key)?.bytes?.byteLength ?? 0
    this.#queue.delete(key)
  }

  /** False: there was no room in time. After a wait in vain nobody waits until a write has ended. */
  #whenRoom(bytes: Uint8Array): Promise<boolean> {
    if (this.#isStuck || this.#waiters.size >= maxBlocks || bytes.byteLength > this.#maxBytes)
      return Promise.resolve(false)
    return new Promise((resolve) => {
      const settle = (hasRoom: boolean) => {
        stop()
        this.#waiters.delete(look)
        resolve(hasRoom)
      }
      const look = () => {
        if (this.#isClosed || this.#isStuck) settle(false)
        else if (this.#hasRoom(bytes)) settle(true)
      }
      const before = this.#written + this.#failed
      const stop = this.#clock.after(maxWaitMs, () => {
        this.#isStuck = this.#written + this.#failed === before
        settle(false)
      })
      this.#waiters.add(look)
    })
  }

  #pump(): void {
    const waitMs = this.#isClosed ? 0 : this.#pausedUntil - this.#clock.monotonic()
    this.#stopTimer()
    if (waitMs > 0) this.#stopTimer = this.#clock.after(waitMs, () => this.#pump())
    else while (this.#writes.size < (this.#isBatched ? 1 : concurrency) && this.#writeNext());
    for (const look of [...this.#waiters]) look()
    if (this.#queue.size === 0 && this.#busy.size === 0) this.#onIdle()
  }

  /** False: no block can be written now. */
  #writeNext(): boolean {
    const blocks: [string, QueuedBlock][] = []
    let bytes = 0
    for (const [key, block] of this.#queue) {
      if (this.#busy.has(key)) continue
      bytes += block.bytes?.byteLength ?? 0
      if (blocks.length > 0 && bytes > this.#maxBytes / concurrency) break
      blocks.push([key, block])
      if (!this.#isBatched) break
    }
    if (blocks.length === 0) return false
    for (const [key] of blocks) this.#take(key)
    this.#begin(blocks).done.catch((error: unknown) => {
      if (!this.#reread || this.#isClosed || !isFailure(error, 'unavailable'))
        return void (this.#failed += blocks.length)
      this.#pausedUntil = this.#clock.monotonic() + (error.retryAfterMs ?? rewriteMs)
      for (const [key, block] of blocks) if (!this.#queue.has(key)) this.#enqueue(key, block)
    })
    return true
  }

  // One operation after the other.

  #begin(blocks: readonly (readonly [string, QueuedBlock])[]): Write {
    const bytes = blocks.reduce((sum, [, block]) => sum + (block.bytes?.byteLength ?? 0), 0)
    const write: Write = { bytes, stop: new AbortController(), tell: new Set(), done: noWork, isOverdue: false }
    for (const [key, block] of blocks) this.#writing.set(key, { write, block })
    this.#writes.add(write)
    this.#running += blocks.length
    const keys = blocks.map(([key]) => key)
    write.done = this.#inOrder(keys, () => this.#put(blocks, write))
    return write
  }

  async #put(blocks: readonly (readonly [string, QueuedBlock])[], write: Write): Promise<void> {
    const overdue = () => {
      if (!write.isOverdue) this.#lateBytes += write.bytes
      write.isOverdue = true
      for (const tell of write.tell) tell()
    }
    let isWritten = false
    try {
      const [first] = blocks
      if (blocks.length === 1 && first) {
        const [, { cid, bytes: held }] = first
        const bytes = held ?? (await this.#reread?.(cid))
        if (!bytes) return void this.#dropped++
        await this.#tier.put(cid, bytes, write.stop.signal, { overdue })
      } else
        await this.#tier.putAll?.(
          blocks.map(([, block]) => block as Whole),
          write.stop.signal,
          { overdue },
        )
      isWritten = true
      this.#written += blocks.length
      this.#pausedUntil = Number.NEGATIVE_INFINITY
    } finally {
      this.#isStuck = false
      if (write.isOverdue) this.#lateBytes -= write.bytes
      this.#writes.delete(write)
      this.#running -= blocks.length
      for (const [key, block] of blocks) {
        const isOurs = this.#writing.get(key)?.write === write
        if (isOurs) this.#writing.delete(key)
        if (isWritten) this.#noteWritten(key)
        else if (isOurs && block.bytes) this.#onFailed?.(block.cid, block.bytes)
      }
    }
  }

  /** Only a shared tier limits how often a key is written. */
  #noteWritten(key: string): void {
    if (!this.#tier.traits.shared) return
    const now = this.#clock.monotonic()
    this.#writtenAt.delete(key)
    this.#writtenAt.set(key, now)
    for (const [oldest, at] of this.#writtenAt) {
      if (at + rewriteMs > now) break
      this.#writtenAt.delete(oldest)
    }
  }

  /** Does the work after the last operation on these keys; keys of several blocks are free. */
  #inOrder(keys: readonly string[], work: () => Promise<void>): Promise<void> {
    const before = this.#busy.get(keys[0] as string)
    const done = before === undefined ? work() : before.then(work)
    const end = () => {
      for (const key of keys) if (this.#busy.get(key) === over) this.#busy.delete(key)
      this.#pump()
    }
    const over = done.then(end, end)
    for (const key of keys) this.#busy.set(key, over)
    return done
  }
}

/** A block of several that are written together. */
type Whole = QueuedBlock & { readonly bytes: Uint8Array }
const noWork = Promise.resolve()

const closing = (name: string): Failure => new Failure('unavailable', `tier ${name} is closing`, { source: 'tier' })

const crowded = (name: string): Failure =>
  new Failure('overloaded', `tier ${name}: its write queue is full`, { source: 'tier' })
