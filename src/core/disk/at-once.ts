// Whether this thread may read from a disk at once. A read from the page cache takes a tenth of the time that a thread takes for
// it, but a disk that is slow must not stop everything else. So this is given up for a while when a read took long, and for as long
// as a call that a thread makes to the same disk is late. Elsewhere than on a disk of this machine it is never allowed: there a read
// may ask a server, whatever the page cache holds.
import { readFileSync } from 'node:fs'
import { statfs } from 'node:fs/promises'
import type { Clock } from '../clock.ts'

export interface AtOnce {
  may(now: number): boolean
  /** Runs a read by this thread that began at `began`, and learns from the time it took. */
  run<T>(began: number, read: () => T): T
  /** A thread begins a call to this disk; the answer is called at its end. */
  began(): () => void
}

// A file of 2 MiB takes 0.3 ms. What takes longer than this came from the disk, or this process had no processor meanwhile: which
// of them, the system tells. Much longer counts in any case.
const slowMs = 10
const verySlowMs = 250
const firstPauseMs = 250
const maxPauseMs = 60_000
const forgivenAfterMs = 60_000
const lateMs = 250

/** Types of file systems (statfs) that keep files on a disk of this machine, or in its memory. */
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

export function createAtOnce(folder: string, clock: Clock): AtOnce {
  let isLocal: boolean | undefined
  const running = new Map<object, number>()
  let pausedUntil = Number.NEGATIVE_INFINITY
  let pauseMs = firstPauseMs
  let bytesFromDisk: number | undefined

  /** Not before it is there. */
  function findOut(): void {
    isLocal = false
    bytesFromDisk = readFromDisk()
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
    const before = bytesFromDisk
    bytesFromDisk = readFromDisk()
    if (ms < verySlowMs && bytesFromDisk !== undefined && bytesFromDisk === before) return
    pauseMs = now - pausedUntil > forgivenAfterMs ? firstPauseMs : Math.min(pauseMs * 2, maxPauseMs)
    pausedUntil = now + pauseMs
  }

  return {
    may(now) {
      if (isLocal === undefined) findOut()
      return isLocal === true && !isInDoubt(now)
    },
    run(began, read) {
      try {
        return read()
      } finally {
        const now = clock.monotonic()
        if (now - began > slowMs) wasSlow(now - began, now)
      }
    },
    began() {
      const call = {}
      running.set(call, clock.monotonic())
      return () => running.delete(call)
    },
  }
}

/** Bytes that this thread has waited for from a disk; undefined where the system does not say. */
function readFromDisk(): number | undefined {
  try {
    return Number(/^read_bytes: (\d+)$/m.exec(readFileSync('/proc/thread-self/io', 'latin1'))?.[1])
  } catch {
    return undefined
  }
}
