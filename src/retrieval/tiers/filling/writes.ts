// The running writes to one slow tier: their blocks can be read, a caller that waits for one is told when it is overdue, and
// the write then goes on in the background, within bounds.
import type { CID } from 'multiformats/cid'
import type { Tier } from '../../../../backends/tiers/contract.ts'
import { Failure } from '../../../core/failure.ts'
import type { QueuedBlock } from './queue.ts'
import type { Serial } from './serial.ts'

/** A block on its way; `told`: the callers to be told that it is overdue. */
export type Writing = {
  readonly job: QueuedBlock
  readonly stop: AbortController
  readonly told: Set<() => void>
  done: Promise<void>
  isOverdue: boolean
}

export interface Writes {
  begin(key: string, job: QueuedBlock): Writing
  /** Unless it was deleted meanwhile. */
  get(key: string): Writing | undefined
  /** The block was deleted: its write goes on, and is not to be read any more. */
  forget(key: string): void
  /** A write that no caller waits for may go on, up to as many bytes as the queue may hold. */
  letGoOn(one: Writing): void
  abort(reason: Failure): void
}

export type WritesOptions = {
  readonly tier: Tier
  readonly serial: Serial
  readonly maxBytes: number
  readonly reread: ((cid: CID) => Promise<Uint8Array | undefined>) | undefined
  /** Counts what was written, and what was to be read again and is gone. */
  readonly counts: { written: number; dropped: number }
  readonly onWritten: (key: string) => void
  /** A write is over, however it went. */
  readonly onOver: () => void
  readonly onFailed: OnFailed | undefined
}

/** Called with a block that the tier did not take, unless it was deleted meanwhile. */
export type OnFailed = (block: QueuedBlock) => void

export function createWrites(options: WritesOptions): Writes {
  const { tier, serial, maxBytes, reread, counts, onWritten, onOver, onFailed } = options
  const running = new Set<Writing>()
  /** Those of them that were not deleted meanwhile. */
  const byKey = new Map<string, Writing>()

  async function bring(
    key: string,
    { cid, bytes: own }: QueuedBlock,
    stop: AbortSignal,
    overdue: () => void,
  ): Promise<void> {
    const bytes = own ?? (await reread?.(cid))
    if (!bytes) {
      counts.dropped++
      return
    }
    await tier.put(cid, bytes, stop, { overdue })
    counts.written++
    onWritten(key)
  }

  return {
    begin(key, job) {
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
      byKey.set(key, one)
      running.add(one)
      one.done = serial
        .run(key, () => bring(key, job, one.stop.signal, overdue))
        .catch((error: unknown) => {
          if (byKey.get(key) === one) onFailed?.(job)
          throw error
        })
        .finally(() => {
          onOver()
          running.delete(one)
          if (byKey.get(key) === one) byKey.delete(key)
        })
      return one
    },
    get: (key) => byKey.get(key),
    forget: (key) => void byKey.delete(key),
    letGoOn(one) {
      let bytes = 0
      for (const { isOverdue, job } of running) if (isOverdue) bytes += job.bytes?.byteLength ?? 0
      if (bytes > maxBytes) one.stop.abort(crowded(tier.name))
    },
    abort(reason) {
      for (const { stop } of running) stop.abort(reason)
    },
  }
}

const crowded = (name: string): Failure =>
  new Failure('overloaded', `tier ${name}: its write queue is full`, { source: 'tier' })
