// The write-behind queue of one slow tier: bounded, a few writes at once, and for each key one operation at a time in the order
// of the calls, so that a running write never undoes a delete. Waiting blocks can be read.
import type { CID } from 'multiformats/cid'
import type { Call, Tier } from '../../../../backends/tiers/contract.ts'
import { blockKey } from '../../../core/block.ts'
import type { Clock } from '../../../core/clock.ts'
import { orAborted, withDeadline } from '../../../core/deadline.ts'
import { Failure, isFailure } from '../../../core/failure.ts'
import { createFillQueue } from './queue.ts'
import { createQueueRoom } from './room.ts'
import { createSerial } from './serial.ts'
import { createWriteSchedule } from './write-schedule.ts'
import { createWrites, type OnFailed } from './writes.ts'

export type WriteBehindOptions = {
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
   * Reads a block again. With this no caller waits for the tier: a block that finds no room waits by name only, and the queue
   * waits while the tier is skipped.
   */
  readonly reread?: ((cid: CID) => Promise<Uint8Array | undefined>) | undefined
  readonly onFailed?: OnFailed | undefined
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
  /** Takes a block whose buffer no caller changes any more. Resolves when it is queued or dropped; never rejects. */
  put(cid: CID, bytes: Uint8Array): Promise<void>
  /**
   * Writes at once, after running work on this key; rejects as the tier does. What was written just now is written again only
   * if the tier says that it lost it. A caller that was told that it is overdue need not wait: the write goes on in the
   * background, within bounds.
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

const leastPauseMs = 250

export function createWriteBehind(options: WriteBehindOptions): WriteBehind {
  const { tier, clock, maxBytes = 32 * 1024 * 1024, maxBlocks = 2048, atOnce = 8 } = options
  const { rewriteMs = 0, waitMs = 0, reread, onFailed } = options
  const queue = createFillQueue({ maxBytes, maxBlocks })
  const schedule = createWriteSchedule({ clock, atOnce, rewriteMs, hasTime: reread !== undefined })
  const counts = { written: 0, dropped: 0, failed: 0 }
  let behind = 0
  let closed = false
  let stopTimer: (() => void) | undefined
  let onIdle: (() => void) | undefined
  const serial = createSerial(() => pump())
  const room = createQueueRoom({ queue, clock, waitMs, maxBytes, maxBlocks, isClosed: () => closed })
  const [onWritten, onOver] = [schedule.written, room.moved]
  const writes = createWrites({ tier, serial, maxBytes, reread, counts, onWritten, onOver, onFailed })

  function pump(): void {
    if (queue.size === 0 && behind === 0) schedule.idle()
    const now = clock.monotonic()
    const turn = closed ? { most: atOnce, from: now } : schedule.now(queue.isFilling)
    let soonest = turn.from > now ? turn.from : Number.POSITIVE_INFINITY
    for (const key of turn.most > 0 ? queue.keys() : []) {
      if (behind >= turn.most) break
      if (serial.isBusy(key)) continue
      if (!closed && schedule.notBefore(key) > now) soonest = Math.min(soonest, schedule.notBefore(key))
      else startBehind(key)
    }
    stopTimer?.()
    stopTimer = soonest < Number.POSITIVE_INFINITY && queue.size > 0 ? clock.after(soonest - now, pump) : undefined
    room.look()
    if (queue.size === 0 && serial.size === 0) onIdle?.()
  }

  function startBehind(key: string): void {
    const job = queue.take(key)
    if (!job) return
    behind++
    writes
      .begin(key, job)
      .done.catch((error: unknown) => {
        if (!reread || closed || !isFailure(error, 'unavailable')) return void counts.failed++
        // The tier is passed over for now. What waits here goes on waiting.
        schedule.pause(Math.max(leastPauseMs, error.retryAfterMs ?? 0))
        if (!queue.add(key, job, true)) counts.dropped++
      })
      .finally(() => {
        behind--
        pump()
      })
  }

  const isOnItsWay = (key: string): boolean => queue.has(key) || writes.get(key) !== undefined

  return {
    async put(cid, bytes) {
      const key = blockKey(cid)
      if (isOnItsWay(key)) return
      while (!closed && !queue.hasRoom(bytes) && !reread) {
        if (await room.wait(bytes)) continue
        counts.dropped++
        return
      }
      if (isOnItsWay(key)) return
      if (closed || !queue.add(key, { cid, bytes }, reread !== undefined)) counts.dropped++
      else {
        schedule.arrived(bytes.byteLength)
        pump()
      }
    },
    async write(cid, bytes, call) {
      const key = blockKey(cid)
      const isNew = !closed && !serial.isBusy(key) && schedule.notBefore(key) > clock.monotonic()
      // Written just now. Another instance may have found it spoilt since, and deleted it.
      if (isNew && (await tier.has(cid, undefined, call))) return
      if (closed) throw closing(tier.name)
      queue.take(key)
      const under = writes.get(key)
      const isBehindDelete = !under && serial.isBusy(key)
      const one = under ?? writes.begin(key, { cid, bytes })
      const overdue = () => {
        if (one !== under) writes.letGoOn(one)
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
      queue.take(key)
      writes.forget(key)
      const work = serial.run(key, async () => {
        schedule.forget(key)
        await tier.delete(cid, signal)
      })
      await orAborted(signal, work)
    },
    waiting: (key) => queue.get(key)?.bytes ?? writes.get(key)?.job.bytes,
    get stats() {
      return { ...counts, queued: queue.size + behind, queuedBytes: queue.bytes }
    },
    async close(ms) {
      closed = true
      const idle = Promise.withResolvers<void>()
      onIdle = idle.resolve
      pump()
      const late = () => closing(tier.name)
      await withDeadline({ ms, clock, late }, () => idle.promise).catch(() => {
        counts.dropped += queue.size
        queue.clear()
        writes.abort(late())
      })
      stopTimer?.()
    },
  }
}

const closing = (name: string): Failure => new Failure('unavailable', `tier ${name} is closing`, { source: 'tier' })
