// Files of numbered slots of equal size, read and written concurrently by the processes of a gateway:
// in the page cache an access takes about two microseconds, without a message. Of two concurrent
// writes to a slot one is lost. Disk space is reserved at the start; if the disk fails later, slots
// read as zeros, and each table defines what that means.
import { closeSync, openSync, readSync, writeFileSync, writeSync } from 'node:fs'
import type { CID } from 'multiformats/cid'
import { blockKey } from '../core/cid.ts'
import type { TokenBucket } from '../core/counting/token-bucket.ts'
import { Failure } from '../core/failure.ts'

export interface Slots {
  /** The current content of a slot; the next call reuses its memory. */
  read(place: number): DataView
  /** Writes the modified buffer of `read`. Returns false if the disk refused it. */
  write(place: number): boolean
  readonly count: number
  /**
   * Called when all other processes have exited. A gateway replaced by a reload may still finish
   * requests: it reads zeros, and its writes succeed because nobody reads them.
   */
  close(): void
}

/** `isNew`: all slots are zeros. */
export function openSlots(
  file: string,
  { count, bytes, isNew }: { readonly count: number; readonly bytes: number; readonly isNew: boolean },
): Slots {
  if (isNew) writeFileSync(file, new Uint8Array(count * bytes), { mode: 0o600 })
  const handle = openSync(file, 'r+')
  const own = new Uint8Array(bytes)
  const view = new DataView(own.buffer)
  let isOpen = true

  /** The number of bytes read or written. */
  function tried(act: (at: number) => number, place: number): number {
    if (!isOpen) return 0
    try {
      return act(place * bytes)
    } catch {
      return 0
    }
  }

  return {
    count,
    read(place) {
      if (tried((at) => readSync(handle, own, 0, bytes, at), place) < bytes) own.fill(0)
      return view
    },
    write: (place) => !isOpen || tried((at) => writeSync(handle, own, 0, bytes, at), place) === bytes,
    close() {
      if (isOpen) closeSync(handle)
      isOpen = false
    },
  }
}

/** FNV-1a, twice: 32 bits select the slot, and 32 others tell apart keys in the same slot. */
function marksOf(text: string): { readonly place: number; readonly mark: number } {
  let place = 0x811c9dc5
  let mark = 0x01000193
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at)
    place = Math.imul(place ^ code, 0x01000193)
    mark = Math.imul(mark ^ code, 0x85ebca6b) ^ (mark >>> 15)
  }
  return { place: place >>> 0, mark: mark >>> 0 || 1 }
}

export type UploadEpochs = ReturnType<typeof createUploadEpochs>

export function createUploadEpochs(slots: Slots) {
  const placeOf = (key: string): number => marksOf(key).place % slots.count
  return {
    /** The counter of a block: 0 means never uploaded; it increases with each upload in this slot. */
    of: (cid: CID): number => slots.read(placeOf(blockKey(cid))).getUint32(0),
    /** Increments the counter of a block. Throws if the other processes cannot see it. */
    note(key: string): void {
      const place = placeOf(key)
      const view = slots.read(place)
      view.setUint32(0, (view.getUint32(0) + 1) >>> 0 || 1)
      if (!slots.write(place))
        throw new Failure(
          'upstream-error',
          'the other processes of this gateway cannot be notified of an upload: check the disk',
          {
            source: 'ours',
          },
        )
    },
  }
}

/** `now`: a clock that all processes share. */
export function createSharedTokenBuckets(
  slots: Slots,
  { size, perSecond, now }: { readonly size: number; readonly perSecond: number; readonly now: () => number },
): (client: string) => TokenBucket {
  return (client) => {
    const { place: at, mark } = marksOf(client)
    const place = at % slots.count

    function refilled(): { readonly view: DataView; readonly tokens: number } {
      const view = slots.read(place)
      const ms = now()
      const isOwn = view.getUint32(0) === mark
      const before = isOwn ? view.getFloat64(8) : size
      const since = isOwn ? Math.max(0, ms - view.getFloat64(16)) : 0
      const tokens = Math.min(size, before + (since / 1000) * perSecond)
      view.setUint32(0, mark)
      view.setFloat64(16, ms)
      view.setFloat64(8, tokens)
      return { view, tokens }
    }

    function keep({ view }: { readonly view: DataView }, tokens: number): void {
      view.setFloat64(8, tokens)
      slots.write(place)
    }

    return {
      take() {
        const found = refilled()
        if (found.tokens < 1) return false
        keep(found, found.tokens - 1)
        return true
      },
      earn(more) {
        const found = refilled()
        keep(found, Math.min(size, found.tokens + more))
      },
      get waitMs() {
        const { tokens } = refilled()
        return tokens >= 1 ? 0 : Math.ceil(((1 - tokens) / perSecond) * 1000)
      },
    }
  }
}

export type ConnectionBalance = ReturnType<typeof createConnectionBalance>

/** Tolerance: counts near the share stay as they are. */
const [nearRatio, nearCount] = [1.125, 2]

export function createConnectionBalance(
  slots: Slots,
  { index, isRunning }: { readonly index: number; readonly isRunning: (index: number) => boolean },
) {
  return {
    /** Publishes this process's count; returns how far it is above its share. */
    beyondShare(open: number, size: number): number {
      slots.read(index).setUint32(0, open)
      slots.write(index)
      let [all, processes] = [open, 1]
      for (let other = 0; other < size; other++) {
        if (other === index || !isRunning(other)) continue
        all += slots.read(other).getUint32(0)
        processes++
      }
      const share = all / processes
      return open > share * nearRatio + nearCount ? Math.floor(open - share) : 0
    },
  }
}

export function createProcessTable(slots: Slots) {
  const set = (index: number, life: number): void => {
    slots.read(index).setUint32(0, life)
    slots.write(index)
  }
  return {
    /** A number unique to each run of a process; 0 if it does not run. */
    of: (index: number): number => slots.read(index).getUint32(0),
    begin: set,
    end: (index: number) => set(index, 0),
  }
}

export type InFlightIndex = ReturnType<typeof createInFlightIndex>

/** `runOf`: a number unique to each run of a process; 0 if it does not run. */
export function createInFlightIndex(
  slots: Slots,
  { index, runOf }: { readonly index: number; readonly runOf: (index: number) => number },
) {
  const holds = new Map<number, { readonly mark: number; count: number }>()

  function release(place: number): void {
    const own = holds.get(place)
    if (!own || --own.count > 0) return
    holds.delete(place)
    const view = slots.read(place)
    if (view.getUint32(0) !== own.mark || view.getUint32(4) !== index) return
    view.setUint32(0, 0)
    slots.write(place)
  }

  return {
    /** Another running process that is fetching this path. */
    fetcherOf(path: string): number | undefined {
      const { place: at, mark } = marksOf(path)
      const view = slots.read(at % slots.count)
      if (view.getUint32(0) !== mark) return undefined
      const fetcher = view.getUint32(4)
      const life = view.getUint32(8)
      return fetcher !== index && life !== 0 && runOf(fetcher) === life ? fetcher : undefined
    },
    /**
     * Records that this process fetches a path, until the returned function is called. Undefined if
     * the slot is in use for another path.
     */
    hold(path: string): (() => void) | undefined {
      const { place: at, mark } = marksOf(path)
      const place = at % slots.count
      const own = holds.get(place)
      if (own && own.mark !== mark) return undefined
      if (own) own.count++
      else {
        holds.set(place, { mark, count: 1 })
        const view = slots.read(place)
        view.setUint32(0, mark)
        view.setUint32(4, index)
        view.setUint32(8, runOf(index))
        slots.write(place)
      }
      return () => release(place)
    },
  }
}
