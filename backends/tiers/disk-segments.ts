// Blocks in segments: files that are only appended to. `<name>.data` has the blocks, `<name>.keys`
// a line of 16 bytes for each, written behind it: a start reads the lines, and a running process
// reads the lines that others append. Each process appends new blocks to one segment, and blocks
// that were read since to a main segment (2Q): what was never asked for again is evicted first.
// Nothing is synced: bytes that a power cut spoils do not hash to their key.
import { randomBytes } from 'node:crypto'
import { close, constants, fstat, fstatSync, open, read, readSync, readv, statSync, write, writev } from 'node:fs'
import { readdir, stat, unlink, utimes } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { CID } from 'multiformats/cid'
import { maxBlockBytes } from '../../src/core/cid.ts'
import type { Clock } from '../../src/core/clock.ts'
import type { AtOnce } from '../../src/core/disk/at-once.ts'
import { createBuffers } from '../../src/core/disk/buffers.ts'
import { asRegular, codeOf, isDiskFull, isGone, makeFolders, orIfGone } from '../../src/core/disk/files.ts'
import type { Peeked, PeekOptions } from '../../src/core/disk/peeked.ts'
import {
  createBlockIndex,
  type Hash,
  hashOf,
  idOf,
  maxRecords,
  maxSegments,
  ordinalOf,
  type RecordId,
  recordWords,
  slotOf,
} from './disk-index.ts'

type SegmentsOptions = {
  readonly path: string
  /** No other process uses the folder. */
  readonly isAlone: boolean
  readonly maxBytes: number
  readonly clock: Clock
  readonly atOnce: AtOnce
}

type Segment = {
  /** `<number>-<writer>`: the lowest is the oldest. */
  readonly name: string
  readonly slot: number
  readonly data: number
  /** Open as long as its writer has no later segment. */
  keys: number | undefined
  records: Uint32Array
  /** Lines that were read or written. */
  count: number
  /** Length of the data. */
  bytes: number
  grownAt: number
  /** Reads under way: the last one closes the files of a segment that is gone. */
  readers: number
  /** Its files are unlinked: its bytes count no more, and its blocks go or were appended again. */
  isFreed: boolean
  /** Its blocks are no longer in the index. */
  isGone: boolean
}

type Block = { readonly cid: CID; readonly bytes: Uint8Array }
/** Appended, unless it is not wanted any more. */
type Put = { readonly hash: Hash; readonly bytes: Uint8Array; readonly isWanted: () => boolean }
/** Appends to one segment after the other. */
type Writer = { readonly name: string; segment: Segment | undefined }

const lineBytes = recordWords * 4
// Before each block: a mark and its length. A deleted block has zeros in their place.
const headBytes = 8
const mark = 0x32646763
const unit = 64
const lengthMask = 0x3fffff
/** Read since its segment was full: appended to a main segment when that one is dropped. */
const usedMark = 0x400000
const stampShift = 24
const stamps = 0x7f

const maxBatchBytes = 4 * 1024 * 1024
const minSegmentBytes = 256 * 1024
// New blocks have this share of a full tier, and all of it while nothing is read again.
const newShare = 0.1
const pollMs = 1000
// A writer that was quiet for `quietMs` touches the folder, so others need to look only at the
// lines of those who wrote lately.
const quietMs = 60_000
const livelyMs = 2 * quietMs
// A file system may give two changes of a folder that are so near the same time.
const sameTimeMs = 50
/** Lines that are taken in at once. */
const slice = 4096
const maxAgeMs = 300_000
const maxIdleBytes = 8 * 1024 * 1024

const openFile = promisify(open)
const closeFile = promisify(close)
const statFile = promisify(fstat)
const readFile = promisify(read)
const readParts = promisify(readv)
const writeFile = promisify(write)
const writeParts = promisify(writev)

const turn = () => new Promise<void>((resolve) => setImmediate(resolve))
const aligned = (bytes: number): number => Math.ceil(bytes / unit) * unit
const costOf = (bytes: number): number => aligned(headBytes + bytes) + lineBytes
const nameOfKeys = /^([0-9a-f]{8}-[0-9a-f]{8}(?:-main)?)\.keys$/
const writerOf = (name: string): string => name.slice(9)
const isMain = ({ name }: Pick<Segment, 'name'>): boolean => name.endsWith('-main')

export function createSegments(options: SegmentsOptions) {
  const { path, isAlone, maxBytes, clock, atOnce } = options
  const segmentBytes = Math.min(maxBytes / 16, Math.max(minSegmentBytes, maxBytes / 100))
  // Beyond it the oldest is dropped, while there is room yet to append what is wanted of it.
  const softLimit = maxBytes - segmentBytes
  const writer = randomBytes(4).toString('hex')
  const forNew: Writer = { name: writer, segment: undefined }
  const forMain: Writer = { name: `${writer}-main`, segment: undefined }
  const isOwn = (segment: Segment): boolean => segment === forNew.segment || segment === forMain.segment
  const segments = new Map<string, Segment>()
  const slots: (Segment | undefined)[] = []
  const index = createBlockIndex((slot) => (slots[slot] as Segment).records)
  const buffers = createBuffers(maxIdleBytes)
  let total = 0
  let isClosed = false
  let stopPolling = () => {}

  const fileOf = (name: string, of: 'keys' | 'data'): string => join(path, `${name}.${of}`)
  const weigh = (segment: Segment): number => segment.bytes + segment.count * lineBytes
  const segmentOf = (id: RecordId): Segment => slots[slotOf(id)] as Segment

  // --- What is in the page cache ---

  // Two generations of what was written or read lately; the stamp of a record names one.
  let [young, old, youngBytes, maxYoungBytes, bornAt] = [1, 0, 0, 0, Number.NEGATIVE_INFINITY]

  function age(now: number, bytes: number): void {
    if (youngBytes + bytes <= maxYoungBytes && now - bornAt <= maxAgeMs) return
    old = now - bornAt > 2 * maxAgeMs ? 0 : young
    young = (young % stamps) + 1
    youngBytes = 0
    bornAt = now
    // Both generations have a quarter: other programs need the page cache too.
    maxYoungBytes = process.availableMemory() / 8
  }

  /** The length of a record with the stamp of now. */
  function stamped(word: number, now: number): number {
    if (word >>> stampShift === young) return word
    age(now, word & lengthMask)
    youngBytes += word & lengthMask
    return (word & ((1 << stampShift) - 1)) | (young << stampShift)
  }

  function noteUse(segment: Segment, ordinal: number, now: number): void {
    const at = ordinal * recordWords + 3
    segment.records[at] = stamped((segment.records[at] as number) | useOf(segment, now), now)
  }

  /**
   * A request reads what it just brought: reads count when other blocks have filled the segment.
   */
  const useOf = (segment: Segment, now: number): number =>
    segment.keys === undefined || now - segment.grownAt > livelyMs ? usedMark : 0

  function noteRead(cid: CID): void {
    const id = index.find(hashOf(cid))
    if (id < 0) return
    const segment = segmentOf(id)
    ;(segment.records[ordinalOf(id) * recordWords + 3] as number) |= useOf(segment, clock.monotonic())
  }

  // --- The segments of all processes ---

  let isLoaded = false
  /** When the folder last changed; undefined: there is none; NaN: it has to be read again. */
  let seenMs: number | undefined = Number.NaN
  /** The last segment of each other writer. */
  let tails: Segment[] = []

  function enter(name: string, data: number, keys: number): Segment | undefined {
    let slot = slots.indexOf(undefined)
    if (slot < 0) slot = slots.length
    if (slot >= maxSegments) return undefined
    const segment: Segment = {
      ...{ name, slot, data, keys, records: new Uint32Array(0), bytes: 0, count: 0, grownAt: clock.monotonic() },
      ...{ readers: 0, isGone: false, isFreed: false },
    }
    slots[slot] = segment
    segments.set(name, segment)
    return segment
  }

  function leave(segment: Segment): void {
    segment.readers--
    closeUnread(segment)
  }

  function closeUnread(segment: Segment): void {
    if (segment.readers > 0 || !segment.isGone) return
    close(segment.data, () => {})
    closeKeys(segment)
  }

  const linesIn = (bytes: number): number => Math.min(maxRecords, Math.floor(bytes / lineBytes))

  function makePlace(segment: Segment, lines: number): void {
    const words = lines * recordWords
    if (words <= segment.records.length) return
    const records = new Uint32Array(Math.min(Math.max(words, segment.records.length * 2), maxRecords * recordWords))
    records.set(segment.records)
    segment.records = records
  }

  /** Takes in the next lines. Anything may be written there. `bytes`: the length of the data now. */
  function takeIn(segment: Segment, lines: Uint32Array, bytes: number, isRecent: boolean): void {
    const first = segment.count
    const now = clock.monotonic()
    segment.count += lines.length / recordWords
    makePlace(segment, segment.count)
    const { records } = segment
    records.set(lines, first * recordWords)
    if (!segment.isFreed) total += bytes - segment.bytes + lines.byteLength
    segment.bytes = bytes
    segment.grownAt = now
    for (let ordinal = first; ordinal < segment.count; ordinal++) {
      const at = ordinal * recordWords
      // The line of a deleted block has zeros.
      const isDeleted = ((records[at] as number) | (records[at + 1] as number)) === 0
      const [place, length] = [records[at + 2] as number, records[at + 3] as number]
      const isWhole = length <= maxBlockBytes && place * unit + headBytes + length <= bytes
      if (isWhole && !isDeleted) {
        if (isRecent) records[at + 3] = stamped(length, now)
        index.add(idOf(segment.slot, ordinal))
      } else records.fill(0, at, at + recordWords)
    }
  }

  /** False: it has grown by more than can be read at once. */
  function readTailNow(tail: Segment): boolean {
    if (tail.keys === undefined || tail.isGone) return true
    const count = linesIn(fstatSync(tail.keys).size) - tail.count
    if (count <= 0) return true
    if (count > slice) return false
    const lines = new Uint32Array(count * recordWords)
    if (readSync(tail.keys, lines, 0, lines.byteLength, tail.count * lineBytes) === lines.byteLength)
      takeIn(tail, lines, fstatSync(tail.data).size, true)
    return true
  }

  async function readTail(tail: Segment, isRecent = true): Promise<void> {
    // Its files are closed, and may be closed once: others may have their descriptors by now.
    if (tail.isGone) return
    tail.readers++
    try {
      for (let isMore = true; isMore && tail.keys !== undefined && !tail.isGone; ) {
        const first = tail.count
        const count = linesIn((await statFile(tail.keys)).size) - first
        if (count <= 0) return
        isMore = count > slice
        const lines = new Uint32Array(Math.min(count, slice) * recordWords)
        const { bytesRead } = await readFile(tail.keys, lines, 0, lines.byteLength, first * lineBytes)
        const { size } = await statFile(tail.data)
        if (bytesRead < lines.byteLength) return
        // Meanwhile it may have been read at once.
        if (tail.count !== first || tail.isGone) continue
        makePlace(tail, first + count)
        takeIn(tail, lines, size, isRecent)
      }
    } finally {
      leave(tail)
    }
  }

  /** Learns what others did. False: it takes a thread to know. */
  function followNow(): boolean {
    const began = clock.monotonic()
    if (isClosed || !atOnce.may(began)) return false
    return atOnce.run(began, () => {
      try {
        if (statSync(path, { throwIfNoEntry: false })?.mtimeMs !== seenMs) return false
        for (const tail of tails) if (began - tail.grownAt < livelyMs && !readTailNow(tail)) return false
        return true
      } catch {
        return false
      }
    })
  }

  let following: Promise<void> | undefined
  let next: Promise<void> | undefined

  /** A look that began before this call may not see all that came before it. */
  function followByThread(): Promise<void> {
    if (isClosed) return Promise.resolve()
    const again = () => {
      next = undefined
      return followByThread()
    }
    if (following !== undefined) {
      next ??= following.then(again, again)
      return next
    }
    const ended = atOnce.began()
    following = readFolder().finally(() => {
      following = undefined
      ended()
    })
    return following
  }

  const follow = (): Promise<void> | undefined => (followNow() ? undefined : followByThread())

  async function readFolder(): Promise<void> {
    const before = [...segments.values()]
    const askedAt = clock.now()
    const found = await orIfGone(stat(path), undefined)
    if (found && !found.isDirectory()) throw Object.assign(new Error('not a folder'), { code: 'ENOTDIR' })
    const isChanged = found?.mtimeMs !== seenMs
    if (isChanged) await readNames(found ? await orIfGone(readdir(path), []) : [], before)
    for (const tail of tails) if (isChanged || clock.monotonic() - tail.grownAt < livelyMs) await readTail(tail)
    seenMs = found && Math.abs(askedAt - found.mtimeMs) <= sameTimeMs ? Number.NaN : found?.mtimeMs
    if (isLoaded) return
    isLoaded = true
    poll()
    evict()
  }

  async function readNames(all: readonly string[], before: readonly Segment[]): Promise<void> {
    const there = new Set(all.flatMap((name) => nameOfKeys.exec(name)?.[1] ?? []))
    for (const segment of before) {
      if (there.has(segment.name) || segment.isFreed) continue
      // Where nothing is left, an operator has emptied the folder.
      if (there.size > 0 && !isOwn(segment)) rescueLater(segment)
      else await discard(segment)
    }
    for (const name of there) if (!segments.has(name) && !name.includes(writer)) await load(name)
    const others = [...segments.values()].filter(({ name }) => !name.includes(writer)).sort(byAge)
    tails = [...new Map(others.map((segment) => [writerOf(segment.name), segment])).values()]
    for (const segment of others) if (!tails.includes(segment)) closeKeys(segment)
  }

  /** Skips a file that is not ours, or is gone again. */
  async function load(name: string): Promise<void> {
    const opened: number[] = []
    try {
      for (const part of ['keys', 'data'] as const) {
        opened.push(await openFile(fileOf(name, part), constants.O_RDONLY | asRegular))
        if (!(await statFile(opened.at(-1) as number)).isFile()) return
      }
      const [keys, data] = opened as [number, number]
      const segment = enter(name, data, keys)
      if (!segment) return
      opened.length = 0
      await readTail(segment, isLoaded)
    } catch (error) {
      if (tooManyOpen.has(codeOf(error) ?? '')) throw error
      // Its process was killed while it dropped the segment.
      if (opened.length === 1 && isGone(error)) await takeAway(fileOf(name, 'keys')).catch(() => {})
    } finally {
      for (const file of opened) close(file, () => {})
    }
  }

  function poll(): void {
    stopPolling = clock.after(pollMs, () => {
      const again = () => {
        if (!isClosed) poll()
      }
      Promise.resolve(follow()).then(again, again)
    })
  }

  // --- Reading ---

  /** Undefined: it was deleted, or cut off. */
  async function readRecord(segment: Segment, ordinal: number): Promise<Buffer | undefined> {
    const at = ordinal * recordWords
    const place = (segment.records[at + 2] as number) * unit
    const bytes = Buffer.allocUnsafeSlow((segment.records[at + 3] as number) & lengthMask)
    const head = Buffer.alloc(headBytes)
    segment.readers++
    try {
      const { bytesRead } = await readParts(segment.data, bytes.byteLength > 0 ? [head, bytes] : [head], place)
      return bytesRead === headBytes + bytes.byteLength && head.readUInt32LE(0) === mark ? bytes : undefined
    } finally {
      leave(segment)
    }
  }

  async function get(cid: CID): Promise<Buffer | undefined> {
    await follow()
    const hash = hashOf(cid)
    for (let id = index.find(hash); id >= 0; id = index.find(hash)) {
      const segment = segmentOf(id)
      const bytes = await readRecord(segment, ordinalOf(id))
      const isStill = index.find(hash) === id
      if (bytes && isStill) {
        const now = clock.monotonic()
        noteUse(segment, ordinalOf(id), now)
        atOnce.readByThread(now)
      }
      if (bytes) return bytes
      if (isStill) forget(id)
    }
    return undefined
  }

  function forget(id: RecordId): void {
    index.remove(id)
    const at = ordinalOf(id) * recordWords
    segmentOf(id).records.fill(0, at, at + recordWords)
  }

  function findNear(hash: Hash): RecordId {
    const id = index.find(hash)
    return id < 0 && tails.length > 0 && followNow() ? index.find(hash) : id
  }

  function readNow(hash: Hash, { part, lends }: PeekOptions): Peeked | undefined {
    const id = findNear(hash)
    if (id < 0 || isClosed) return undefined
    const segment = segmentOf(id)
    const ordinal = ordinalOf(id)
    const word = segment.records[ordinal * recordWords + 3] as number
    const began = clock.monotonic()
    age(began, 0)
    const stamp = word >>> stampShift
    if (!atOnce.may(began, stamp !== 0 && (stamp === young || stamp === old))) return undefined
    const size = word & lengthMask
    const from = part?.from ?? 0
    const length = Math.min(part?.to ?? size, size) - from
    if (length < 0) return undefined
    const lent = lends ? buffers.lend(length) : undefined
    const bytes = lent?.bytes ?? Buffer.allocUnsafeSlow(length)
    const place = (segment.records[ordinal * recordWords + 2] as number) * unit + headBytes + from
    if (atOnce.run(began, () => readWholly(segment.data, bytes, place))) {
      noteUse(segment, ordinal, began)
      return { bytes, size, release: lent?.release }
    }
    lent?.release()
    return undefined
  }

  // --- Writing ---

  let wroteAt = Number.NEGATIVE_INFINITY
  /** The appends of this process, one after the other. Never rejects. */
  let appending: Promise<void> = Promise.resolve()

  function isKept(hash: Hash): boolean {
    const id = index.find(hash)
    return id >= 0 && !segmentOf(id).isFreed
  }

  async function put(blocks: readonly Block[]): Promise<void> {
    await follow()
    const puts = blocks
      .filter(({ bytes }) => costOf(bytes.byteLength) <= softLimit)
      .map(({ cid, bytes }) => {
        const hash = hashOf(cid)
        return { hash, bytes, isWanted: () => !isKept(hash) }
      })
    await append(forNew, puts)
  }

  function append(to: Writer, puts: readonly Put[]): Promise<void> {
    const done = appending.then(async () => {
      const rest = puts.filter(({ isWanted }) => isWanted())
      while (rest.length > 0) await writeTogether(to, rest)
    })
    appending = done.catch(() => {}).then(evict)
    return done
  }

  /** Appends and removes the first of `puts`, with those that fit into the same segment. */
  async function writeTogether(to: Writer, puts: Put[]): Promise<void> {
    const own = to.segment
    const costAt = (at: number): number => costOf((puts[at] as Put).bytes.byteLength)
    let cost = costAt(0)
    const isFull = own && (own.bytes + cost > segmentBytes || own.count + slice > maxRecords)
    const max = segmentBytes - (isFull ? 0 : (own?.bytes ?? 0))
    let count = 1
    for (; count < Math.min(puts.length, slice) && cost + costAt(count) <= max; count++) cost += costAt(count)
    const batch = puts.splice(0, count)
    // Blocks that were read again went with it, or are lost: there was no time.
    for (let first = victimFor(cost); first; first = victimFor(cost)) await discard(first)
    const segment = own && !isFull && to.segment === own ? own : await begin(to)
    segment.readers++
    let isHalf = false
    try {
      const lines = new Uint32Array(batch.length * recordWords)
      const parts: Uint8Array[] = []
      let end = segment.bytes
      for (const [at, { hash, bytes }] of batch.entries()) {
        const place = aligned(end)
        const head = Buffer.alloc(place - end + headBytes)
        head.writeUInt32LE(mark, place - end)
        head.writeUInt32LE(bytes.byteLength, place - end + 4)
        lines.set([hash.low, hash.high, place / unit, bytes.byteLength], at * recordWords)
        parts.push(head, bytes)
        end = place + headBytes + bytes.byteLength
      }
      await writeWholly(segment.data, parts, segment.bytes)
      isHalf = true
      await writeWholly(segment.keys as number, [new Uint8Array(lines.buffer)], segment.count * lineBytes)
      if (segment.isGone) return
      takeIn(segment, lines, end, true)
      const now = clock.monotonic()
      if (now - wroteAt > quietMs) await utimes(path, new Date(), new Date()).catch(() => {})
      wroteAt = now
    } catch (error) {
      // Where there is no room now there may be some later. Lines that others may have read are not
      // written over.
      if ((isHalf || !isDiskFull(error)) && to.segment === segment) await endOwn(to)
      throw error
    } finally {
      leave(segment)
    }
  }

  async function begin(to: Writer): Promise<Segment> {
    await endOwn(to)
    const last = [...segments.keys()].reduce((max, name) => Math.max(max, Number.parseInt(name.slice(0, 8), 16)), 0)
    const name = `${(last + 1).toString(16).padStart(8, '0')}-${to.name}`
    const flags = constants.O_RDWR | constants.O_CREAT | constants.O_EXCL
    await makeFolders(path)
    const data = await openFile(fileOf(name, 'data'), flags)
    const keys = await openFile(fileOf(name, 'keys'), flags).catch(async (error: unknown) => {
      await unlink(fileOf(name, 'data')).catch(() => {})
      await closeFile(data)
      throw error
    })
    to.segment = enter(name, data, keys)
    if (to.segment) return to.segment
    await Promise.all([closeFile(data), closeFile(keys)])
    throw new RangeError(`more than ${maxSegments} segments`)
  }

  async function endOwn(of: Writer): Promise<void> {
    const { segment } = of
    of.segment = undefined
    if (!segment) return
    closeKeys(segment)
    segment.records = segment.records.slice(0, segment.count * recordWords)
    if (segment.count === 0) await discard(segment).catch(() => {})
  }

  // --- Dropping ---

  const byAge = (one: Segment, other: Segment): number => (one.name < other.name ? -1 : 1)
  const isOver = (): boolean => total > softLimit || segments.size > maxSegments / 2
  const victimFor = (bytes: number): Segment | undefined => (total + bytes > maxBytes ? nextVictim() : undefined)

  /**
   * The oldest segment of new blocks; a main segment where new blocks have no more than their
   * share.
   */
  function nextVictim(): Segment | undefined {
    const all = [...segments.values()]
    const newBytes = all.reduce((sum, segment) => sum + (isMain(segment) ? 0 : weigh(segment)), 0)
    const ended = all.filter((segment) => !isOwn(segment) && !segment.isFreed).sort(byAge)
    return ended.find((segment) => isMain(segment) === newBytes <= maxBytes * newShare) ?? ended[0]
  }

  let evicting: Promise<void> | undefined

  function evict(): void {
    if (isOver() && !isClosed)
      evicting ??= dropSome()
        .catch(() => {})
        .finally(() => (evicting = undefined))
  }

  async function dropSome(): Promise<void> {
    for (let oldest = nextVictim(); oldest && isOver() && !isClosed; oldest = nextVictim())
      // Only one of several processes takes it away. Until it is discarded, its blocks can be read
      // from the open file.
      if (await takeAway(fileOf(oldest.name, 'data'))) {
        markFreed(oldest)
        await rescue(oldest)
        await discard(oldest)
      } else rescueLater(oldest)
  }

  /**
   * Keeps the blocks of a segment that another process dropped and did not append again, if they
   * were read in this process.
   */
  function rescueLater(segment: Segment): void {
    markFreed(segment)
    // By then the other process has appended what it wants of it.
    clock.after(pollMs * (1 + Math.random()), () => {
      if (isClosed) return
      const done = followByThread().then(() => rescue(segment))
      done.then(() => discard(segment)).catch(() => {})
    })
  }

  /** Appends what was read again. Half of a main segment at most: dropping it must make room. */
  async function rescue(segment: Segment): Promise<void> {
    let left = isMain(segment) ? segment.bytes / 2 : Number.POSITIVE_INFINITY
    let puts: Put[] = []
    let bytes = 0
    const flush = async () => {
      await append(forMain, puts).catch(() => {})
      puts = []
      bytes = 0
    }
    for (let ordinal = 0; ordinal < segment.count && left > 0 && !segment.isGone && !isClosed; ordinal++) {
      const at = ordinal * recordWords
      const hash = { low: segment.records[at] as number, high: segment.records[at + 1] as number }
      const word = segment.records[at + 3] as number
      if (word === 0) continue
      const isElsewhere = index.find(hash, segment.slot) >= 0
      if (!isElsewhere && !(word & usedMark)) continue
      left -= costOf(word & lengthMask)
      if (isElsewhere) continue
      const block = await readRecord(segment, ordinal)
      if (!block) continue
      // It may be deleted meanwhile.
      puts.push({ hash, bytes: block, isWanted: () => segment.records[at + 3] !== 0 })
      bytes += block.byteLength
      if (bytes >= maxBatchBytes) await flush()
    }
    if (puts.length > 0) await flush()
  }

  function markFreed(segment: Segment): void {
    if (!segment.isFreed) total -= weigh(segment)
    segment.isFreed = true
  }

  /** Unlinks the files and takes its blocks out of the index. */
  async function discard(segment: Segment): Promise<void> {
    markFreed(segment)
    for (const part of ['data', 'keys'] as const) await takeAway(fileOf(segment.name, part))
    if (segment.isGone) return
    segment.isGone = true
    segment.readers++
    for (const one of [forNew, forMain]) if (one.segment === segment) one.segment = undefined
    segments.delete(segment.name)
    for (let ordinal = 0; ordinal < segment.count; ordinal++) {
      index.remove(idOf(segment.slot, ordinal))
      if (ordinal % slice === slice - 1) await turn()
    }
    slots[segment.slot] = undefined
    leave(segment)
  }

  // --- Deleting ---

  async function remove(cid: CID): Promise<void> {
    await follow()
    await appending
    const hash = hashOf(cid)
    for (let id = index.find(hash); id >= 0; id = index.find(hash)) await erase(id)
  }

  async function erase(id: RecordId): Promise<void> {
    const segment = segmentOf(id)
    const ordinal = ordinalOf(id)
    const place = (segment.records[ordinal * recordWords + 2] as number) * unit
    const length = (segment.records[ordinal * recordWords + 3] as number) & lengthMask
    forget(id)
    segment.readers++
    try {
      const head = Buffer.alloc(headBytes)
      await readFile(segment.data, head, 0, headBytes, place)
      // A line that rotted must not overwrite other blocks.
      const isIts = head.readUInt32LE(0) === mark && head.readUInt32LE(4) === length
      if (isIts) await overwrite(fileOf(segment.name, 'data'), headBytes + length, place)
      await overwrite(fileOf(segment.name, 'keys'), lineBytes, ordinal * lineBytes)
    } finally {
      leave(segment)
    }
  }

  return {
    /** Reads by a thread. Undefined: no process has put it. */
    get,
    /** Reads at once from the page cache. Undefined says nothing. */
    peek: (cid: CID, how: PeekOptions = {}) => readNow(hashOf(cid), how),
    async has(cid: CID) {
      await follow()
      return index.find(hashOf(cid)) >= 0
    },
    hasNow(cid: CID): boolean | undefined {
      const hash = hashOf(cid)
      if (index.find(hash) >= 0) return true
      if (isAlone && isLoaded) return false
      return followNow() ? index.find(hash) >= 0 : undefined
    },
    /** Appends the blocks that are missing. A block larger than the tier is not kept. */
    put,
    /** Counts a read that another tier answered. */
    noteRead,
    /** Overwrites the block with zeros wherever it lies. */
    delete: remove,
    get bytes() {
      return total
    },
    get blocks() {
      return index.size
    },
    /** Resolves when nothing of this process touches the folder any more. */
    async close() {
      isClosed = true
      await Promise.allSettled([appending, evicting, following])
      stopPolling()
      for (const segment of segments.values()) {
        segment.isGone = true
        closeUnread(segment)
      }
      segments.clear()
    },
  }
}

function closeKeys(segment: Segment): void {
  if (segment.keys !== undefined) close(segment.keys, () => {})
  segment.keys = undefined
}

const tooManyOpen: ReadonlySet<string> = new Set(['EMFILE', 'ENFILE'])

/** False: there is less. */
function readWholly(file: number, bytes: Buffer, from: number): boolean {
  try {
    for (let at = 0; at < bytes.byteLength; ) {
      const count = readSync(file, bytes, at, bytes.byteLength - at, from + at)
      if (count === 0) return false
      at += count
    }
    return true
  } catch {
    return false
  }
}

async function writeWholly(file: number, parts: Uint8Array[], at: number): Promise<void> {
  const length = parts.reduce((sum, { byteLength }) => sum + byteLength, 0)
  let { bytesWritten: done } = await writeParts(file, parts, at)
  // A short write has no error of its own: the next write reports the cause.
  if (done < length)
    for (const rest = Buffer.concat(parts); done < length; )
      done += (await writeFile(file, rest, done, length - done, at + done)).bytesWritten
}

/** True: this call took it away. */
async function takeAway(file: string): Promise<boolean> {
  return orIfGone(
    unlink(file).then(() => true),
    false,
  )
}

async function overwrite(file: string, length: number, at: number): Promise<void> {
  const opened = await orIfGone(openFile(file, constants.O_WRONLY | asRegular), undefined)
  if (opened === undefined) return
  try {
    await writeWholly(opened, [Buffer.alloc(length)], at)
  } finally {
    await closeFile(opened)
  }
}
