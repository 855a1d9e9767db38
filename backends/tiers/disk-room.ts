// Keeps the disk tier within its bytes without an index and without a scan at start. The 1024 shards are dealt into
// groups, each with an equal part of the budget (hashes spread evenly). A group is read when it is first written to, from
// then on its size is a number, and when that passes its part the files used longest ago go. While groups remain unread,
// every write also reads one more, so that a lowered budget is reached soon, and leftovers of a crash disappear.
import { readdir, rm, stat } from 'node:fs/promises'
import { basename, join } from 'node:path'
import type { Clock } from '../../src/core/clock.ts'
import { isLeftOver, isUnfinished, orIfGone } from '../../src/core/disk/files.ts'

export interface DiskRoom {
  /** Makes room for a file of so many bytes; undefined when it can have none. `landed` must be called either way. */
  reserve(shard: string, bytes: number): Promise<Reservation | undefined>
  /** Another process wrote so many bytes there. */
  wrote(shard: string, bytes: number): void
  /** What another process wrote last is not known. */
  lost(): void
  /** A use is noted on the file when the last noted one is older than this. */
  readonly touchAfterMs: number
  /** What lies in the groups that were read: all of it after some writes. */
  readonly bytes: number
  close(): Promise<void>
}

export type Reservation = { landed(kept: boolean): void }

type Group = {
  readonly shards: readonly string[]
  /** Undefined until it was read. */
  bytes: number | undefined
  /** Being written now. */
  reserved: number
  /** Landed since the running reading began: it may or may not have seen them. */
  landed: number
  /** Since the last reading: another process may be writing here as well. */
  written: number
  reading: Promise<void> | undefined
}

type RoomFile = { readonly path: string; readonly bytes: number; readonly usedMs: number }

const letters: readonly string[] = [...'abcdefghijklmnopqrstuvwxyz234567']
const allShards = letters.flatMap((one) => letters.map((other) => one + other))
// Room for 32 of the largest blocks in a group at least: with less, one unlucky group evicts what others have room for.
const leastGroupBytes = 64 * 1024 * 1024
const allocationBytes = 4096
const lowWater = 0.9
const statsAtOnce = 8
const leftoverMs = 60_000
const hourMs = 3_600_000
const guestTouchMs = 60_000
/** Last used before the clock was set back: those that were used since are younger. */
const unknown = 0

/** What a file takes on the disk, not what it says. */
export const costOf = (bytes: number): number => Math.max(1, Math.ceil(bytes / allocationBytes)) * allocationBytes
/** The last letter of a key holds a few bits only, so the two before it: 1024 shards, evenly filled. */
export const shardOf = (key: string): string => key.slice(-3, -1)

export function createRoom(options: {
  readonly path: string
  readonly maxBytes: number
  readonly clock: Clock
  /** Files of these shards were taken away. */
  readonly onEvicted: (shards: readonly string[]) => void
}): DiskRoom {
  const { path, clock, onEvicted } = options
  const groups = dealGroups(options.maxBytes)
  const groupBytes = options.maxBytes / groups.length
  const groupOf = new Map(groups.flatMap((group) => group.shards.map((shard) => [shard, group] as const)))
  const unread = new Set(groups)
  let touchAfterMs = hourMs
  let sweeping: Promise<void> | undefined
  let closed = false

  const used = (group: Group): number => (group.bytes ?? 0) + group.reserved

  /** Reads a group as it is on the disk and takes away what is over its part, once at a time. */
  function read(group: Group, wanted: number): Promise<void> {
    group.reading ??= readAndTrim(group, wanted).finally(() => {
      group.reading = undefined
    })
    return group.reading
  }

  async function readAndTrim(group: Group, wanted: number): Promise<void> {
    group.landed = 0
    const files: RoomFile[] = []
    const made = new Set(await orIfGone(readdir(path), []))
    for (const shard of group.shards)
      if (made.has(shard)) files.push(...(await filesOf(join(path, shard), clock.now())))
    let total = files.reduce((sum, { bytes }) => sum + bytes, 0)
    if (total + group.reserved + wanted > groupBytes) {
      files.sort((one, other) => one.usedMs - other.usedMs)
      const target = Math.max(0, Math.min(groupBytes * lowWater, groupBytes - wanted - group.reserved))
      let last: RoomFile | undefined
      for (const file of files) {
        if (total <= target) break
        await rm(file.path, { force: true })
        total -= file.bytes
        last = file
      }
      // Where blocks live less than an hour, noting their use once an hour would make this first in, first out.
      if (last) onEvicted(group.shards)
      if (last) touchAfterMs = Math.min(hourMs, Math.max(1000, (clock.now() - last.usedMs) / 4))
    }
    group.bytes = total + group.landed
    group.written = 0
    unread.delete(group)
  }

  /** What lands while the group is read may be more than what was taken away. */
  async function trim(group: Group): Promise<void> {
    for (let turn = 0; turn < 3 && used(group) > groupBytes; turn++) await read(group, 0)
  }

  function sweep(): void {
    const [next] = unread
    if (!next || sweeping || closed) return
    // A group that cannot be read now is met again by a write of its own, which says so.
    sweeping = read(next, 0)
      .catch(() => {})
      .finally(() => {
        sweeping = undefined
      })
  }

  return {
    async reserve(shard, bytes) {
      const group = groupOf.get(shard)
      const cost = costOf(bytes)
      if (!group || closed || cost > groupBytes * lowWater) return undefined
      if (group.bytes === undefined || group.written > groupBytes / 2) await read(group, cost)
      for (let turn = 0; used(group) + cost > groupBytes; turn++) {
        if (turn === 3) return undefined
        await read(group, cost)
      }
      group.reserved += cost
      sweep()
      return {
        landed(kept) {
          group.reserved -= cost
          if (!kept) return
          group.bytes = (group.bytes ?? 0) + cost
          group.landed += cost
          group.written += cost
        },
      }
    },
    wrote(shard, bytes) {
      const group = groupOf.get(shard)
      if (!group || closed) return
      group.landed += bytes
      group.written += bytes
      // Unread: it is counted when it is read, at the latest by a sweep.
      if (group.bytes === undefined) return sweep()
      group.bytes += bytes
      // What cannot be read now is met again by the next write.
      trim(group).catch(() => {})
    },
    lost() {
      for (const group of groups) unread.add(group)
      sweep()
    },
    get touchAfterMs() {
      return touchAfterMs
    },
    get bytes() {
      return groups.reduce((sum, group) => sum + used(group), 0)
    },
    async close() {
      closed = true
      await sweeping
    },
  }
}

/** Of a process that does not evict: it tells the one that does. */
export const createGuestRoom = (wrote: (shard: string, bytes: number) => void): DiskRoom => ({
  async reserve(shard, bytes) {
    return {
      landed(kept) {
        if (kept) wrote(shard, costOf(bytes))
      },
    }
  },
  wrote() {},
  lost() {},
  // The owner alone knows how long blocks live here.
  touchAfterMs: guestTouchMs,
  bytes: 0,
  async close() {},
})

function dealGroups(maxBytes: number): Group[] {
  const parts = Math.max(1, Math.min(allShards.length, maxBytes / leastGroupBytes))
  const count = 2 ** Math.floor(Math.log2(parts))
  return Array.from({ length: count }, (_, index) => ({
    shards: allShards.filter((_shard, at) => at % count === index),
    bytes: undefined,
    reserved: 0,
    landed: 0,
    written: 0,
    reading: undefined,
  }))
}

async function filesOf(folder: string, now: number): Promise<RoomFile[]> {
  const names = await orIfGone(readdir(folder), [])
  const files: RoomFile[] = []
  for (let at = 0; at < names.length; at += statsAtOnce) {
    const some = names.slice(at, at + statsAtOnce).map((name) => look(join(folder, name), now))
    for (const file of await Promise.all(some)) if (file) files.push(file)
  }
  return files
}

async function look(path: string, now: number): Promise<RoomFile | undefined> {
  const found = await orIfGone(stat(path), undefined)
  if (!found?.isFile()) return undefined
  const file = { path, bytes: costOf(found.size), usedMs: found.mtimeMs > now + hourMs ? unknown : found.mtimeMs }
  const name = basename(path)
  if (!isUnfinished(name)) return file
  // Ours is being written (and counted as reserved), a young one by another process; an old one is a crash's.
  if (isLeftOver(name) && now - found.mtimeMs > leftoverMs) await rm(path, { force: true })
  return undefined
}
