// Decides if the main thread may read a file synchronously. A read from the page cache takes a
// tenth of the time of one by a thread, but a slow disk must not stop the event loop. So
// synchronous reads pause after a slow one, and while a thread's call to the same disk is overdue.
// They are allowed on local file systems only: elsewhere a read may ask a server, whatever the page
// cache holds. What this process has not touched lately is read by threads, until the system's
// counter shows that these reads did not reach the disk: after a restart the page cache has it all.
import { readFileSync } from 'node:fs'
import { statfs } from 'node:fs/promises'
import type { Clock } from '../clock.ts'

export interface AtOnce {
  /** `isRecent`: this process has written or read the same lately. */
  may(now: number, isRecent?: boolean): boolean
  /** Runs a synchronous read that began at `began`, and learns from its duration. */
  run<T>(began: number, read: () => T): T
  /** Notes that a thread begins a call to this disk; returns a function to call at its end. */
  began(): () => void
  /** Notes that a thread has read what was not recent. */
  readByThread(now: number): void
}

// A cached file of 2 MiB takes 0.3 ms. A read slower than `slowMs` came from the disk, or this
// process had no CPU meanwhile; /proc tells which. Above `lateMs` it counts in any case.
const slowMs = 10
const lateMs = 250
// Pauses double from `lateMs` to this, unless the last one ended so long ago.
const maxPauseMs = 60_000
// So many reads by threads show that the page cache has what is not recent. The number doubles with
// each read of that kind that came from the disk, which takes longer than `cachedMs`.
const minCachedReads = 32
const maxCachedReads = 4096
const cachedMs = 1

/** File system types (statfs) on local disks or in memory. */
const local: ReadonlySet<number> = new Set([
  0xef53, // ext2 to ext4
  0x58465342, // XFS
  0x9123683e, // Btrfs
  0xf2f52010, // F2FS
  0x2fc12fc1, // ZFS
  0xca451a4e, // bcachefs
  0x01021994, // tmpfs
  0x794c7630, // overlayfs
])

export function createAtOnce(folder: string, clock: Clock, bytesOf = bytesFromDisk): AtOnce {
  let isLocal: boolean | undefined
  const running = new Map<object, number>()
  let pausedUntil = Number.NEGATIVE_INFINITY
  let pauseMs = lateMs
  /** By this thread, when last looked. */
  let ownBytes: number | undefined
  let cachedSince: number | undefined
  let neededReads = minCachedReads
  let threadReads = 0
  let bytesBefore: number | undefined

  /** Runs lazily, since the folder may not exist when this is created. */
  function findOut(): void {
    isLocal = false
    ownBytes = bytesOf('thread-self')
    statfs(folder).then(
      ({ type }) => (isLocal = local.has(type)),
      () => (isLocal = undefined),
    )
  }

  function isInDoubt(now: number): boolean {
    if (now < pausedUntil) return true
    for (const at of running.values()) return now - at > lateMs
    return false
  }

  function wasSlow(ms: number, now: number): void {
    const before = ownBytes
    ownBytes = bytesOf('thread-self')
    const isFromDisk = ownBytes === undefined || ownBytes !== before
    if (isFromDisk && cachedSince !== undefined) {
      neededReads = now - cachedSince > maxPauseMs ? minCachedReads : Math.min(neededReads * 2, maxCachedReads)
      cachedSince = undefined
    }
    if (ms <= slowMs || (ms < lateMs && !isFromDisk)) return
    pauseMs = now - pausedUntil > maxPauseMs ? lateMs : Math.min(pauseMs * 2, maxPauseMs)
    pausedUntil = now + pauseMs
  }

  return {
    may(now, isRecent = true) {
      if (isLocal === undefined) findOut()
      return isLocal === true && (isRecent || cachedSince !== undefined) && !isInDoubt(now)
    },
    run(began, read) {
      try {
        return read()
      } finally {
        const now = clock.monotonic()
        if (now - began > (cachedSince === undefined ? slowMs : cachedMs)) wasSlow(now - began, now)
      }
    },
    began() {
      const call = {}
      running.set(call, clock.monotonic())
      return () => running.delete(call)
    },
    readByThread(now) {
      if (cachedSince !== undefined) return
      if (threadReads === 0) bytesBefore = bytesOf('self')
      if (++threadReads < neededReads) return
      threadReads = 0
      if (bytesBefore === undefined || bytesOf('self') !== bytesBefore) return
      cachedSince = now
      ownBytes = bytesOf('thread-self')
    },
  }
}

/**
 * Bytes that this process or thread has read from a disk (not from the page cache); undefined where
 * the system does not say.
 */
function bytesFromDisk(reader: 'self' | 'thread-self'): number | undefined {
  try {
    return Number(/^read_bytes: (\d+)$/m.exec(readFileSync(`/proc/${reader}/io`, 'latin1'))?.[1])
  } catch {
    return undefined
  }
}
