// The write-behind queue of one slow tier: bounded, a few writes at once, and for each key one operation at a time in the order
// of the calls, so that a running write never undoes a delete. Waiting blocks can be read.
import type { CID } from 'multiformats/cid'
import type { Call, Tier } from '../../../../backends/tiers/contract.ts'
import { blockKey } from '../../../core/block.ts'
import type { Clock } from '../../../core/clock.ts'
import { orAborted, withDeadline } from '../../../core/deadline.ts'
import { Failure, isFailure } from '../../../core/failure.ts'
import { createFillLine, type Job } from './line.ts'
import { createTurns } from './turns.ts'

export type WriteBehindOptions = {
  readonly tier: Tier
  readonly clock: Clock
  readonly maxBytes?: number
  readonly maxBlocks?: number
  readonly atOnce?: number
  /** The same key is not written again sooner: R2 answers 429 to more than one write a second. */
  readonly rewriteMs?: number
  /** How long `put` waits for room in the line before the block is dropped. 0: not at all. */
  readonly waitMs?: number
  /**
   * Reads a block again. With this no caller waits for the tier: a block that finds no room waits by name only, and the queue
   * waits while the tier is skipped.
   */
  readonly reread?: ((cid: CID) => Promise<Uint8Array | undefined>) | undefined
}

export type FillStats = {
  readonly written: number
  /** There was no room in the line, or it was gone when it was to be read again. */
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
   * Writes at once, after running work on this key; rejects as the tier does. A caller that was told that it is overdue need
   * not wait: the write goes on in the background, within bounds.
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

/** A block on its way; `told`: who wants to know that it takes long. */
type Writing = {
  readonly job: Job
  readonly stop: AbortController
  readonly told: Set<() => void>
  done: Promise<void>
  isOverdue: boolean
}

const leastPauseMs = 250
const fullPart = 0.75

export function createWriteBehind(options: WriteBehindOptions): WriteBehind {
  const { tier, clock, maxBytes = 32 * 1024 * 1024, maxBlocks = 2048, atOnce = 8 } = options
  const { rewriteMs = 0, waitMs = 0, reread } = options
  const line = createFillLine({ maxBytes, maxBlocks })
  const turns = createTurns({ clock, atOnce, rewriteMs, hasTime: reread !== undefined })
  const busy = new Map<string, Promise<unknown>>()
  const running = new Set<Writing>()
  /** Those of them that were not deleted meanwhile. */
  const writing = new Map<string, Writing>()
  const roomSeekers = new Set<() => void>()
  let behind = 0
  let isStuck = false
  let written = 0
  let dropped = 0
  let failed = 0
  let closed = false
  let stopTimer: (() => void) | undefined
  let onIdle: (() => void) | undefined

  /** One thing at a time for a key. The promise in `busy` never rejects. */
  function after<T>(key: string, work: () => Promise<T>): Promise<T> {
    const before = busy.get(key)
    const done = before === undefined ? work() : before.then(work)
    const settled = done.then(
      () => {},
      () => {},
    )
    const over = settled.then(() => {
      if (busy.get(key) === over) busy.delete(key)
      pump()
    })
    busy.set(key, over)
    return done
  }

  const isFilling = (): boolean => line.bytes > fullPart * maxBytes || line.size > fullPart * maxBlocks

  function pump(): void {
    if (line.size === 0 && behind === 0) turns.idle()
    const now = clock.monotonic()
    const turn = closed ? { most: atOnce, from: now } : turns.now(isFilling())
    let soonest = turn.from > now ? turn.from : Number.POSITIVE_INFINITY
    for (const key of turn.most > 0 ? line.keys() : []) {
      if (behind >= turn.most) break
      if (busy.has(key)) continue
      if (!closed && turns.notBefore(key) > now) soonest = Math.min(soonest, turns.notBefore(key))
      else startBehind(key)
    }
    stopTimer?.()
    stopTimer = soonest < Number.POSITIVE_INFINITY && line.size > 0 ? clock.after(soonest - now, pump) : undefined
    for (const seek of [...roomSeekers]) seek()
    if (line.size === 0 && busy.size === 0) onIdle?.()
  }

  function startBehind(key: string): void {
    const job = line.take(key)
    if (!job) return
    behind++
    bring(key, job)
      .done.catch((error: unknown) => {
        if (!reread || closed || !isFailure(error, 'unavailable')) return void failed++
        // It is passed over for now. What waits here goes on waiting.
        turns.pause(Math.max(leastPauseMs, error.retryAfterMs ?? 0))
        if (!line.add(key, job) && !line.add(key, { cid: job.cid, bytes: undefined })) dropped++
      })
      .finally(() => {
        behind--
        pump()
      })
  }

  function bring(key: string, job: Job): Writing {
    const one: Writing = {
      job,
      stop: new AbortController(),
      told: new Set(),
      done: Promise.resolve(),
      isOverdue: false,
    }
    const overdue = () => {
      one.isOverdue = true
      for (const tell of one.told) tell()
    }
    writing.set(key, one)
    running.add(one)
    one.done = after(key, async () => {
      const bytes = job.bytes ?? (await reread?.(job.cid))
      if (!bytes) {
        dropped++
        return
      }
      await tier.put(job.cid, bytes, one.stop.signal, { overdue })
      written++
      turns.written(key)
    }).finally(() => {
      isStuck = false
      running.delete(one)
      if (writing.get(key) === one) writing.delete(key)
    })
    return one
  }

  /** In order of arrival; no caller waits longer than `waitMs`, or while nothing moves, and the waiters are bounded too. */
  async function waitForRoom(bytes: Uint8Array): Promise<boolean> {
    if (waitMs === 0 || isStuck || roomSeekers.size >= maxBlocks || bytes.byteLength > maxBytes) return false
    const { promise, resolve } = Promise.withResolvers<boolean>()
    const before = written + failed
    const seek = () => {
      if (closed || isStuck) resolve(false)
      else if (line.hasRoom(bytes)) resolve(true)
    }
    const stop = clock.after(waitMs, () => {
      isStuck = written + failed === before
      resolve(false)
    })
    roomSeekers.add(seek)
    try {
      return await promise
    } finally {
      stop()
      roomSeekers.delete(seek)
    }
  }

  const isOnItsWay = (key: string): boolean => line.has(key) || writing.has(key)

  /** A write that no caller waits for may go on, up to as many bytes as the queue may hold. */
  function letGoOn(one: Writing): void {
    let bytes = 0
    for (const { isOverdue, job } of running) if (isOverdue) bytes += job.bytes?.byteLength ?? 0
    if (bytes > maxBytes) one.stop.abort(crowded(tier.name))
  }

  return {
    async put(cid, bytes) {
      const key = blockKey(cid)
      if (isOnItsWay(key)) return
      while (!closed && !line.hasRoom(bytes) && !reread) {
        if (await waitForRoom(bytes)) continue
        dropped++
        return
      }
      if (isOnItsWay(key)) return
      if (closed || !(line.add(key, { cid, bytes }) || (reread && line.add(key, { cid, bytes: undefined })))) dropped++
      else {
        turns.arrived(bytes.byteLength)
        pump()
      }
    },
    async write(cid, bytes, call) {
      if (closed) throw closing(tier.name)
      const key = blockKey(cid)
      line.take(key)
      const under = writing.get(key)
      const isBehindDelete = !under && busy.has(key)
      // It was written just now: the key is the hash of the bytes.
      if (!under && !isBehindDelete && turns.notBefore(key) > clock.monotonic()) return
      const one = under ?? bring(key, { cid, bytes })
      const overdue = () => {
        if (one !== under) letGoOn(one)
        call?.overdue?.()
      }
      if (one.isOverdue || isBehindDelete) overdue()
      else one.told.add(overdue)
      try {
        await one.done
      } catch (error) {
        if (one !== under) failed++
        throw error
      }
    },
    async delete(cid, signal) {
      const key = blockKey(cid)
      line.take(key)
      writing.delete(key)
      const work = after(key, async () => {
        turns.forget(key)
        await tier.delete(cid, signal)
      })
      await orAborted(signal, work)
    },
    waiting: (key) => line.get(key)?.bytes ?? writing.get(key)?.job.bytes,
    get stats() {
      return { written, dropped, failed, queued: line.size + behind, queuedBytes: line.bytes }
    },
    async close(ms) {
      closed = true
      const idle = Promise.withResolvers<void>()
      onIdle = idle.resolve
      pump()
      const late = () => closing(tier.name)
      await withDeadline({ ms, clock, late }, () => idle.promise).catch(() => {
        dropped += line.size
        line.clear()
        for (const { stop } of running) stop.abort(late())
      })
      stopTimer?.()
    },
  }
}

const closing = (name: string): Failure => new Failure('unavailable', `tier ${name} is closing`, { source: 'tier' })

const crowded = (name: string): Failure =>
  new Failure('overloaded', `tier ${name}: too much is on its way to it`, { source: 'tier' })
