// The readers that wait for blocks of a running answer. A reader follows it only so far: a block that does not come soon is
// asked for alone.
import type { CID } from 'multiformats/cid'
import type { DagWant } from '../../../backends/upstreams/contract.ts'
import { blockKey } from '../../core/block.ts'

export type Delivered = { readonly bytes: Uint8Array; readonly upstream: string }

/** `went-by`: it came and is in the tiers by now. `not-here`: it will not come from here; ask for it by itself. */
export type Arrival = Delivered | 'went-by' | 'not-here'

export interface Readers {
  readonly size: number
  /** Resolves with what became of it; rejects with the reason of `signal`, or with what `failAll` was given. */
  wait(cid: CID, around: DagWant, signal: AbortSignal): Promise<Arrival>
  arrived(cid: CID, delivered: Delivered): void
  settleAll(arrival: Arrival): void
  failAll(error: unknown): void
  /** Where the reader stands that is furthest behind. */
  furthestBehind(): DagWant | undefined
}

type DagReader = {
  readonly around: DagWant
  passedBlocks: number
  passedBytes: number
  readonly settle: (arrival: Arrival) => void
  readonly fail: (error: unknown) => void
}

// How far a reader follows an answer that does not bring its block next.
const mostPassedBlocks = 256
const mostPassedBytes = 32 * 1024 * 1024

export function createReaders(onChange: (size: number) => void): Readers {
  const waiting = new Map<string, Set<DagReader>>()
  let size = 0

  function changed(by: number): void {
    size += by
    onChange(size)
  }

  function remove(key: string, reader: DagReader): void {
    const set = waiting.get(key)
    if (!set?.delete(reader)) return
    if (set.size === 0) waiting.delete(key)
    changed(-1)
  }

  const all = (): DagReader[] => [...waiting.values()].flatMap((set) => [...set])

  function clear(): DagReader[] {
    const left = all()
    waiting.clear()
    changed(-left.length)
    return left
  }

  return {
    get size() {
      return size
    },
    wait(cid, around, signal) {
      const key = blockKey(cid)
      return new Promise((resolve, reject) => {
        if (signal.aborted) return reject(signal.reason)
        const leave = () => {
          remove(key, reader)
          reject(signal.reason)
        }
        const settled =
          <T>(then: (value: T) => void) =>
          (value: T) => {
            signal.removeEventListener('abort', leave)
            then(value)
          }
        const reader: DagReader = {
          around,
          passedBlocks: 0,
          passedBytes: 0,
          settle: settled(resolve),
          fail: settled(reject),
        }
        signal.addEventListener('abort', leave, { once: true })
        const set = waiting.get(key)
        if (set) set.add(reader)
        else waiting.set(key, new Set([reader]))
        changed(1)
      })
    },
    arrived(cid, delivered) {
      const key = blockKey(cid)
      const readers = waiting.get(key)
      if (readers) {
        waiting.delete(key)
        for (const reader of readers) reader.settle(delivered)
        changed(-readers.size)
      }
      for (const [other, set] of waiting)
        for (const reader of set) {
          reader.passedBlocks++
          reader.passedBytes += delivered.bytes.byteLength
          if (reader.passedBlocks <= mostPassedBlocks && reader.passedBytes <= mostPassedBytes) continue
          reader.settle('not-here')
          remove(other, reader)
        }
    },
    settleAll(arrival) {
      for (const reader of clear()) reader.settle(arrival)
    },
    failAll(error) {
      for (const reader of clear()) reader.fail(error)
    },
    furthestBehind() {
      const from = (around: DagWant) => around.range?.from ?? 0
      let least: DagWant | undefined
      for (const { around } of all()) if (!least || from(around) < from(least)) least = around
      return least
    },
  }
}
