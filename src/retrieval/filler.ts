// Brings blocks to one slow tier behind the requests: a bounded line, a few writes at once, and for each key one thing at
// a time in the order it was asked for, so that a write under way never undoes a delete. What waits can be read.
import type { CID } from 'multiformats/cid'
import type { Tier } from '../../backends/tiers/contract.ts'
import { blockKey } from '../block.ts'
import type { Clock } from '../clock.ts'
import { orAborted, withDeadline } from '../deadline.ts'
import { Failure } from '../failure.ts'

export type FillerOptions = {
  readonly tier: Tier
  readonly clock: Clock
  readonly maxBytes?: number
  readonly maxBlocks?: number
  readonly atOnce?: number
  /** The same key is not written again sooner: R2 answers 429 to more than one write a second. */
  readonly rewriteMs?: number
  /** How long `put` waits for room in the line before the block is dropped. 0: not at all. */
  readonly waitMs?: number
}

export type FillStats = {
  readonly written: number
  /** No room in the line. */
  readonly dropped: number
  readonly failed: number
  /** Waiting, or being written. */
  readonly queued: number
  readonly queuedBytes: number
}

export interface Filler {
  /** Takes a block that nobody changes any more. Resolves when it is in the line, or dropped; never rejects. */
  put(cid: CID, bytes: Uint8Array): Promise<void>
  /** Writes at once, after what runs for this key; rejects as the tier does. */
  write(cid: CID, bytes: Uint8Array, signal?: AbortSignal): Promise<void>
  /** Forgets what waits for this key, then deletes it from the tier. */
  delete(cid: CID, signal?: AbortSignal): Promise<void>
  /** The bytes on their way to the tier. */
  waiting(key: string): Uint8Array | undefined
  readonly stats: FillStats
  /** Takes no more and writes what waits; what is left after `ms` is dropped. */
  close(ms: number): Promise<void>
}

type Job = { readonly cid: CID; readonly bytes: Uint8Array }

const mostRemembered = 4096

export function createFiller(options: FillerOptions): Filler {
  const { tier, clock, maxBytes = 32 * 1024 * 1024, maxBlocks = 2048, atOnce = 8, rewriteMs = 0, waitMs = 0 } = options
  const line = new Map<string, Job>()
  const busy = new Map<string, Promise<unknown>>()
  const being = new Map<string, Uint8Array>()
  const lastWrites = new Map<string, number>()
  const roomSeekers = new Set<() => void>()
  const ending = new AbortController()
  let lineBytes = 0
  let writing = 0
  let written = 0
  let dropped = 0
  let failed = 0
  let closed = false
  let stopTimer: (() => void) | undefined
  let onIdle: (() => void) | undefined

  const isRoomFor = (bytes: Uint8Array): boolean => line.size < maxBlocks && lineBytes + bytes.byteLength <= maxBytes

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

  function remember(key: string): void {
    if (rewriteMs === 0) return
    lastWrites.delete(key)
    lastWrites.set(key, clock.monotonic())
    for (const [oldest] of lastWrites) {
      if (lastWrites.size <= mostRemembered) break
      lastWrites.delete(oldest)
    }
  }

  const notBefore = (key: string): number => (lastWrites.get(key) ?? Number.NEGATIVE_INFINITY) + rewriteMs

  function take(key: string): Job | undefined {
    const job = line.get(key)
    if (!job) return undefined
    line.delete(key)
    lineBytes -= job.bytes.byteLength
    return job
  }

  function pump(): void {
    const now = clock.monotonic()
    let soonest = Number.POSITIVE_INFINITY
    for (const key of line.keys()) {
      if (writing >= atOnce) break
      if (busy.has(key)) continue
      if (!closed && notBefore(key) > now) {
        soonest = Math.min(soonest, notBefore(key))
        continue
      }
      start(key)
    }
    stopTimer?.()
    stopTimer = soonest < Number.POSITIVE_INFINITY ? clock.after(soonest - now, pump) : undefined
    for (const seek of [...roomSeekers]) seek()
    if (line.size === 0 && busy.size === 0) onIdle?.()
  }

  function start(key: string): void {
    const job = take(key)
    if (!job) return
    writing++
    being.set(key, job.bytes)
    after(key, () => tier.put(job.cid, job.bytes, ending.signal))
      .then(
        () => {
          written++
          remember(key)
        },
        () => failed++,
      )
      .finally(() => {
        writing--
        being.delete(key)
        pump()
      })
  }

  /** In order of arrival; nobody waits longer than `waitMs`, and no more wait than the line is long. */
  async function waitForRoom(bytes: Uint8Array): Promise<boolean> {
    if (waitMs === 0 || roomSeekers.size >= maxBlocks || bytes.byteLength > maxBytes) return false
    const { promise, resolve } = Promise.withResolvers<boolean>()
    const seek = () => {
      if (closed) resolve(false)
      else if (isRoomFor(bytes)) resolve(true)
    }
    const stop = clock.after(waitMs, () => resolve(false))
    roomSeekers.add(seek)
    try {
      return await promise
    } finally {
      stop()
      roomSeekers.delete(seek)
    }
  }

  const isOnItsWay = (key: string): boolean => line.has(key) || being.has(key)

  return {
    async put(cid, bytes) {
      const key = blockKey(cid)
      if (isOnItsWay(key)) return
      while (!closed && !isRoomFor(bytes)) {
        if (await waitForRoom(bytes)) continue
        dropped++
        return
      }
      if (closed) {
        dropped++
        return
      }
      if (isOnItsWay(key)) return
      line.set(key, { cid, bytes })
      lineBytes += bytes.byteLength
      pump()
    },
    async write(cid, bytes, signal) {
      const key = blockKey(cid)
      signal?.throwIfAborted()
      if (closed) throw closing(tier.name)
      take(key)
      const work = after(key, async () => {
        if (notBefore(key) > clock.monotonic()) return // it was written just now: the key is the hash of the bytes
        await tier.put(cid, bytes, signal)
        written++
        remember(key)
      })
      await orAborted(signal, work)
    },
    async delete(cid, signal) {
      const key = blockKey(cid)
      take(key)
      being.delete(key)
      const work = after(key, async () => {
        lastWrites.delete(key)
        await tier.delete(cid, signal)
      })
      await orAborted(signal, work)
    },
    waiting: (key) => line.get(key)?.bytes ?? being.get(key),
    get stats() {
      return { written, dropped, failed, queued: line.size + writing, queuedBytes: lineBytes }
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
        lineBytes = 0
        ending.abort(late())
      })
      stopTimer?.()
    },
  }
}

const closing = (name: string): Failure => new Failure('unavailable', `tier ${name} is closing`, { source: 'tier' })
