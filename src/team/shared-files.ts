// The folder that the processes of a gateway share: created anew at each start and accessible to their
// user only, with their internal sockets and with files of numbered slots of equal size, which they read
// and write concurrently: in the page cache an access takes about two microseconds, without a message.
// Of two concurrent writes to a slot one is lost. Disk space is reserved at the start; if the disk fails
// later, slots read as zeros, and each table defines what that means.
import { hash } from 'node:crypto'
import {
  closeSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readSync,
  rmSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import type { CID } from 'multiformats/cid'
import { blockKey } from '../core/cid.ts'
import type { TokenBucket } from '../core/counting/token-bucket.ts'
import { Failure, wordsOf } from '../core/failure.ts'

const prefix = 'processes-'
/** The limit in bytes for the path of a unix socket on every system. */
const maxSocketPathBytes = 100

export const socketPathOf = (folder: string, index: number): string => join(folder, `${index}.sock`)

/**
 * Creates a new folder and its content: in the data folder if its path is short enough for a
 * socket; otherwise, or if that is full, in the temporary folder under a name derived from it.
 */
export function inPlace<Made>(
  data: string,
  make: (folder: string) => Made,
): { readonly folder: string; readonly made: Made } {
  const isShort = Buffer.byteLength(socketPathOf(join(data, `${prefix}123456`), 999)) <= maxSocketPathBytes
  try {
    if (isShort) {
      mkdirSync(data, { recursive: true })
      return madeIn(join(data, prefix), make)
    }
  } catch {
    // Other faults of the data folder are reported by the gateway itself.
  }
  try {
    return madeIn(join(tmpdir(), temporaryName(data)), make)
  } catch (cause) {
    const why = `workers: what they share (7 MiB) can lie neither in ${data} nor in ${tmpdir()}: ${wordsOf(cause)}`
    throw new Failure('upstream-error', `${why}; free some space, or set workers to 1`, { source: 'ours', cause })
  }
}

/** Removes the folder if its content cannot be created. */
function madeIn<Made>(start: string, make: (folder: string) => Made) {
  const folder = mkdtempSync(start)
  try {
    return { folder, made: make(folder) }
  } catch (error) {
    removeIfOurs(folder)
    throw error
  }
}

/** Removes folders of earlier processes over this data folder that were killed. */
export function removeOtherPlaces(data: string, own: string): void {
  for (const [folder, start] of [
    [data, prefix],
    [tmpdir(), temporaryName(data)],
  ] as const)
    for (const name of namesIn(folder)) {
      const path = join(folder, name)
      if (name.startsWith(start) && path !== own) removeIfOurs(path)
    }
}

const temporaryName = (data: string): string => `cidgate-${prefix}${hash('sha256', resolve(data)).slice(0, 12)}-`

/** In the temporary folder another user may have a folder of this name. */
function removeIfOurs(path: string): void {
  try {
    rmSync(path, { recursive: true, force: true })
  } catch {
    // Harmless if it stays.
  }
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}

/** Shared files for the gateway (`team`), and those for its processes only. */
export type SharedFiles = ReturnType<typeof openShared>

const maxProcesses = 256

export function openShared(folder: string, { index, isNew }: { readonly index: number; readonly isNew: boolean }) {
  const opened: Slots[] = []
  const close = (): void => {
    for (const one of opened) one.close()
  }
  const open = (name: string, count: number, bytes: number): Slots => {
    const slots = openSlots(join(folder, name), { count, bytes, isNew })
    opened.push(slots)
    return slots
  }
  try {
    const processTable = createProcessTable(open('process-table', maxProcesses, 4))
    const isRunning = (one: number): boolean => processTable.of(one) !== 0
    const buckets = open('budgets', 2 ** 16, 24)
    const team = {
      uploadEpochs: createUploadEpochs(open('upload-epochs', 2 ** 20, 4)),
      inProgress: createInFlightIndex(open('in-flight', 2 ** 16, 12), { index, runOf: processTable.of }),
      /** Rate limits of clients, shared by all processes. */
      budgets: (limit: { readonly size: number; readonly perSecond: number }) =>
        createSharedTokenBuckets(buckets, { ...limit, now: systemMs }),
      connectionBalance: createConnectionBalance(open('connection-balance', maxProcesses, 4), { index, isRunning }),
    }
    return { team, processTable, close }
  } catch (error) {
    close()
    throw error
  }
}

/** A monotonic clock shared by all processes of this machine. */
const systemMs = (): number => Number(process.hrtime.bigint() / 1000n) / 1000

interface Slots {
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
function openSlots(
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
function createSharedTokenBuckets(
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

/** Tolerance: counts near the share stay as they are. */
const [nearRatio, nearCount] = [1.125, 2]

function createConnectionBalance(
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

function createProcessTable(slots: Slots) {
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

/** `runOf`: a number unique to each run of a process; 0 if it does not run. */
function createInFlightIndex(
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
