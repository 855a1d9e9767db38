// The write-behind queue of one slow tier: bounded, a few writes at once, and for each key one
// operation at a time in the order of the calls, so that a running write never undoes a delete.
// Waiting blocks can be read.
import type { CID } from 'multiformats/cid'
import type { Call, Tier } from '../../../backends/tiers/contract.ts'
import { blockKey } from '../../core/block.ts'
import type { Clock } from '../../core/clock.ts'
import { orAborted, withDeadline } from '../../core/deadline.ts'
import { Failure, isFailure } from '../../core/failure.ts'

/** `bytes` undefined: it waits by name, and is read again when it is its turn. */
export type QueuedBlock = { readonly cid: CID; readonly bytes: Uint8Array | undefined }

type WriteBehindOptions = {
  readonly tier: Tier
  readonly clock: Clock
  readonly maxBytes?: number
  readonly maxBlocks?: number
  readonly atOnce?: number
  /** The same key is not written again sooner: R2 answers 429 to more than one write a second. */
  readonly rewriteMs?: number
  /** How long `put` waits for room in the queue before the block is dropped. 0: not at all. */
  readonly waitMs?: number
  /**
   * Reads a block again. With this no caller waits for the tier: a block that finds no room waits
   * by name only, and the queue waits while the tier is skipped.
   */
  readonly reread?: ((cid: CID) => Promise<Uint8Array | undefined>) | undefined
  /** Called with a block that the tier did not take, unless it was deleted meanwhile. */
  readonly onFailed?: ((block: QueuedBlock) => void) | undefined
}

export type FillStats = {
  readonly written: number
  /** There was no room in the queue, or it was gone when it was to be read again. */
  readonly dropped: number
  readonly failed: number
  /** Waiting, or being written. */
  readonly queued: number
  readonly queuedBytes: number
}

export interface WriteBehind {
  /**
   * Takes a block whose buffer no caller changes any more. A promise: the caller waits for room.
   * Never rejects.
   */
  put(cid: CID, bytes: Uint8Array): void | Promise<void>
  /**
   * Writes at once, after running work on this key; rejects as the tier does. What was written just
   * now is written again only if the tier says that it lost it. A caller that was told that it is
   * overdue need not wait: the write goes on in the background, within bounds.
   */
  write(cid: CID, bytes: Uint8Array, call?: Call): Promise<void>
  /** Forgets what waits for this key, then deletes it from the tier. */
  delete(cid: CID, signal?: AbortSignal): Promise<void>
  /** The bytes on their way to the tier. */
  waiting(key: string): Uint8Array | undefined
  readonly stats: FillStats
  /** Takes no more and writes what waits; what is left after `ms` is dropped. */
  close(ms: number): Promise<void>
}

/** A block that is being written; `told`: the callers to be told that it is overdue. */
type Writing = {
  readonly job: QueuedBlock
  readonly stop: AbortController
  readonly told: Set<() => void>
  done: Promise<void>
  isOverdue: boolean
}

const leastPauseMs = 250
const maxNames = 16_384
const fullPart = 0.75
// More than this at once comes for a reader, and writing takes processor time from it: it is
// written when nothing came for a moment, or that has gone on for long, or the queue is getting
// full.
const burstBytes = 256 * 1024
const soon = { quietMs: 50, maxMs: 1000 } as const
/**
 * A tier elsewhere has time: beyond the room of the queue a block waits by name, and is read again
 * from memory.
 */
const patient = { quietMs: 250, maxMs: 3000, maxBytes: 64 * 1024 * 1024 } as const

export function createWriteBehind(options: WriteBehindOptions): WriteBehind {
  const { tier, clock, maxBytes = 32 * 1024 * 1024, maxBlocks = 2048, atOnce = 8 } = options
  const { rewriteMs = 0, waitMs = 0, reread, onFailed } = options
  const { quietMs, maxMs } = reread ? patient : soon
  const counts = { written: 0, dropped: 0, failed: 0 }
  /** First in, first out. */
  const queue = new Map<string, QueuedBlock>()
  let queuedBytes = 0
  let names = 0
  /** The last of what is done under a key, one after the other. None of these promises rejects. */
  const busy = new Map<string, Promise<unknown>>()
  const running = new Set<Writing>()
  /** Those of them that were not deleted meanwhile. */
  const byKey = new Map<string, Writing>()
  /** When a key was last written, where that counts. The oldest go. */
  const writtenAt = new Map<string, number>()
  /** Callers that wait for room. */
  const seekers = new Set<() => void>()
  let behind = 0
  let moves = 0
  let isStuck = false
  let isClosed = false
  let busySince = clock.monotonic()
  let pausedUntil = Number.NEGATIVE_INFINITY
  let lastArrival = Number.NEGATIVE_INFINITY
  let burst = 0
  let stopTimer: (() => void) | undefined
  let onIdle: (() => void) | undefined

  // The queue.

  const hasRoom = (bytes: Uint8Array): boolean =>
    queue.size - names < maxBlocks && queuedBytes + bytes.byteLength <= maxBytes

  function add(key: string, { cid, bytes }: QueuedBlock): boolean {
    if (bytes && hasRoom(bytes)) {
      queue.set(key, { cid, bytes })
      queuedBytes += bytes.byteLength
      return true
    }
    if (!reread || names >= maxNames) return false
    queue.set(key, { cid, bytes: undefined })
    names++
    return true
  }

  function take(key: string): QueuedBlock | undefined {
    const job = queue.get(key)
    if (!job) return undefined
    queue.delete(key)
    if (job.bytes) queuedBytes -= job.bytes.byteLength
    else names--
    return job
  }

  /**
   * Waits for room in order of arrival, not where nothing moves, and by no more than the queue is
   * long.
   */
  async function room(bytes: Uint8Array): Promise<boolean> {
    if (waitMs === 0 || isStuck || seekers.size >= maxBlocks || bytes.byteLength > maxBytes) return false
    const { promise, resolve } = Promise.withResolvers<boolean>()
    const before = moves
    const seek = () => {
      if (isClosed || isStuck) resolve(false)
      else if (hasRoom(bytes)) resolve(true)
    }
    const stop = clock.after(waitMs, () => {
      isStuck = moves === before
      resolve(false)
    })
    seekers.add(seek)
    return promise.finally(() => {
      stop()
      seekers.delete(seek)
    })
  }

  function enqueue(key: string, job: QueuedBlock & { readonly bytes: Uint8Array }): void {
    if (isOnItsWay(key)) return
    if (isClosed || !add(key, job)) return void counts.dropped++
    const now = clock.monotonic()
    burst = now - lastArrival > quietMs ? job.bytes.byteLength : burst + job.bytes.byteLength
    lastArrival = now
    pump()
  }

  // One operation after the other.

  /** Does the work after what was asked for under this key before, whatever became of that. */
  function inLine<T>(key: string, work: () => Promise<T>): Promise<T> {
    const before = busy.get(key)
    const done = before === undefined ? work() : before.then(work)
    const settle = () => {
      if (busy.get(key) === over) busy.delete(key)
      pump()
    }
    const over = done.then(settle, settle)
    busy.set(key, over)
    return done
  }

  async function bring(key: string, { cid, bytes: own }: QueuedBlock, one: Writing): Promise<void> {
    try {
      const bytes = own ?? (await reread?.(cid))
      if (!bytes) return void counts.dropped++
      const overdue = () => {
        one.isOverdue = true
        for (const tell of one.told) tell()
      }
      await tier.put(cid, bytes, one.stop.signal, { overdue })
      counts.written++
      pausedUntil = Number.NEGATIVE_INFINITY
      noteWritten(key)
    } catch (error) {
      if (byKey.get(key) === one) onFailed?.(one.job)
      throw error
    } finally {
      moves++
      isStuck = false
      running.delete(one)
      if (byKey.get(key) === one) byKey.delete(key)
    }
  }

  function begin(key: string, job: QueuedBlock): Writing {
    const stop = new AbortController()
    const one: Writing = { job, stop, told: new Set(), done: Promise.resolve(), isOverdue: false }
    byKey.set(key, one)
    running.add(one)
    one.done = inLine(key, () => bring(key, job, one))
    return one
  }

  function noteWritten(key: string): void {
    if (rewriteMs === 0) return
    const now = clock.monotonic()
    writtenAt.delete(key)
    writtenAt.set(key, now)
    for (const [oldest, at] of writtenAt) {
      if (at + rewriteMs > now) break
      writtenAt.delete(oldest)
    }
  }

  const notBefore = (key: string): number => (writtenAt.get(key) ?? Number.NEGATIVE_INFINITY) + rewriteMs

  // Behind the readers.

  /** From when on the next may be written. */
  function nextAt(now: number): number {
    if (isClosed) return now
    const isFilling = queuedBytes > fullPart * maxBytes || queue.size > fullPart * maxBlocks
    const mayWait = reread ? burst < patient.maxBytes : !isFilling
    const isHeld = burst > burstBytes && now - busySince < maxMs && mayWait
    return Math.max(pausedUntil, isHeld ? lastArrival + quietMs : now)
  }

  function pump(): void {
    const now = clock.monotonic()
    if (queue.size === 0 && behind === 0) busySince = now
    const from = nextAt(now)
    // After a pause one goes ahead of the others.
    const max = from > now ? 0 : pausedUntil > Number.NEGATIVE_INFINITY && !isClosed ? 1 : atOnce
    let soonest = from > now ? from : Number.POSITIVE_INFINITY
    for (const key of max > 0 ? queue.keys() : []) {
      if (behind >= max) break
      if (busy.has(key)) continue
      if (!isClosed && notBefore(key) > now) soonest = Math.min(soonest, notBefore(key))
      else writeNext(key)
    }
    stopTimer?.()
    stopTimer = soonest < Number.POSITIVE_INFINITY && queue.size > 0 ? clock.after(soonest - now, pump) : undefined
    for (const seek of [...seekers]) seek()
    if (queue.size === 0 && busy.size === 0) onIdle?.()
  }

  function writeNext(key: string): void {
    const job = take(key)
    if (!job) return
    behind++
    const over = () => {
      behind--
      pump()
    }
    begin(key, job).done.then(over, (error: unknown) => {
      if (!reread || isClosed || !isFailure(error, 'unavailable')) counts.failed++
      else {
        // The tier is passed over for now. What waits here goes on waiting.
        pausedUntil = clock.monotonic() + Math.max(leastPauseMs, error.retryAfterMs ?? 0)
        if (!add(key, job)) counts.dropped++
      }
      over()
    })
  }

  const isOnItsWay = (key: string): boolean => queue.has(key) || byKey.has(key)

  return {
    put(cid, bytes) {
      const key = blockKey(cid)
      if (isOnItsWay(key)) return undefined
      if (isClosed || reread || hasRoom(bytes)) return enqueue(key, { cid, bytes })
      return (async () => {
        while (!isClosed && !hasRoom(bytes)) if (!(await room(bytes))) return void counts.dropped++
        enqueue(key, { cid, bytes })
      })()
    },
    async write(cid, bytes, call) {
      const key = blockKey(cid)
      const isRewrite = !isClosed && !busy.has(key) && notBefore(key) > clock.monotonic()
      // Written just now. Another instance may have found it spoilt since, and deleted it.
      if (isRewrite && (await tier.has(cid, undefined, call))) return
      if (isClosed) throw closing(tier.name)
      take(key)
      const under = byKey.get(key)
      const isBehindDelete = !under && busy.has(key)
      const one = under ?? begin(key, { cid, bytes })
      const overdue = () => {
        if (one !== under) {
          // It may go on without a caller, up to as many bytes as the queue may hold.
          let late = 0
          for (const { isOverdue, job } of running) if (isOverdue) late += job.bytes?.byteLength ?? 0
          if (late > maxBytes) one.stop.abort(crowded(tier.name))
        }
        call?.overdue?.()
      }
      if (one.isOverdue || isBehindDelete) overdue()
      else one.told.add(overdue)
      try {
        await one.done
      } catch (error) {
        if (one !== under) counts.failed++
        throw error
      }
    },
    async delete(cid, signal) {
      const key = blockKey(cid)
      take(key)
      byKey.delete(key)
      const work = inLine(key, async () => {
        writtenAt.delete(key)
        await tier.delete(cid, signal)
      })
      await orAborted(signal, work)
    },
    waiting: (key) => queue.get(key)?.bytes ?? byKey.get(key)?.job.bytes,
    get stats() {
      return { ...counts, queued: queue.size + behind, queuedBytes }
    },
    async close(ms) {
      isClosed = true
      const idle = Promise.withResolvers<void>()
      onIdle = idle.resolve
      pump()
      const late = () => closing(tier.name)
      await withDeadline({ ms, clock, late }, () => idle.promise).catch(() => {
        counts.dropped += queue.size
        queue.clear()
        queuedBytes = names = 0
        for (const { stop } of running) stop.abort(late())
      })
      stopTimer?.()
    },
  }
}

const closing = (name: string): Failure => new Failure('unavailable', `tier ${name} is closing`, { source: 'tier' })

const crowded = (name: string): Failure =>
  new Failure('overloaded', `tier ${name}: its write queue is full`, { source: 'tier' })
