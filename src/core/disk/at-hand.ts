// Files that this process read or wrote whole lately: they are in the page cache, so that they are read at once, in a tenth of
// the time that a thread takes for it. A disk that is slow must not stop everything else, so this is given up for a while when
// a read took long, and for as long as a call that a thread makes to the same disk is late. Elsewhere than on a disk of this
// machine nothing is at hand: there a read may ask a server, whatever the page cache holds.
import { closeSync, constants, openSync, readFileSync, readSync, statSync } from 'node:fs'
import { statfs } from 'node:fs/promises'
import type { Clock } from '../clock.ts'
import { createBuffers } from './buffers.ts'
import { codeOf } from './files.ts'
import { createRecentFiles } from './recent-files.ts'
import { asRegular } from './regular.ts'

/** A part of a block: the bytes `from` up to, not including, `to`. */
export type ByteSpan = { readonly from: number; readonly to: number }

export type AtHandOptions = {
  /** Absent: the whole block. */
  readonly part?: ByteSpan | undefined
  /** The reader may `release` the bytes, so that their memory is used again. Otherwise they are its own. */
  readonly lends?: boolean | undefined
}

/** Bytes that were had at once. */
export type AtHand = {
  readonly bytes: Uint8Array
  /** Of the whole block. */
  readonly size: number
  /** The reader and everything it passed the bytes on to are done with them. Not calling it is always right. */
  readonly release?: (() => void) | undefined
}

/** A block that is in memory, or a part of it. */
export const partOf = (bytes: Uint8Array, part: ByteSpan | undefined): AtHand => ({
  bytes: part ? bytes.subarray(part.from, part.to) : bytes,
  size: bytes.byteLength,
})

export interface FilesAtHand {
  /** The file was read or written whole. `usedMs`: the use that is noted on it. */
  note(key: string, bytes: number, usedMs: number): void
  forget(key: string): void
  /** Undefined: it is not known to be at hand. */
  read(key: string, file: string, options?: AtHandOptions): AtHand | undefined
  /** Whether there is such a file, as the disk itself says. Undefined where that cannot be had at once. */
  isThere(file: string): boolean | undefined
  /** When the use of a file was last noted on it, if it is known. */
  usedMs(key: string): number | undefined
  /** A thread begins a call to this disk; the answer is called at its end. */
  began(): () => void
}

// A file of 2 MiB takes 0.3 ms. What takes longer than this came from the disk, or this process had no processor meanwhile: which
// of them, the system tells. Much longer counts in any case.
const slowMs = 10
const verySlowMs = 250
const firstPauseMs = 250
const mostPauseMs = 60_000
const forgivenAfterMs = 60_000
const lateMs = 250
const mostIdleBytes = 8 * 1024 * 1024

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

export function createFilesAtHand(folder: string, clock: Clock): FilesAtHand {
  const buffers = createBuffers(mostIdleBytes)
  const recent = createRecentFiles(clock)
  let isLocal: boolean | undefined
  // Without a line in the file's inode for each read. Refused for files that another user made.
  let flags = constants.O_RDONLY | asRegular | (constants.O_NOATIME ?? 0)
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
    pauseMs = now - pausedUntil > forgivenAfterMs ? firstPauseMs : Math.min(pauseMs * 2, mostPauseMs)
    pausedUntil = now + pauseMs
  }

  function open(file: string): number | undefined {
    try {
      return openSync(file, flags)
    } catch (error) {
      if (codeOf(error) === 'EPERM') flags = constants.O_RDONLY | asRegular
      return undefined
    }
  }

  /** Undefined: there is less. */
  function fill(file: string, bytes: Buffer, from: number): Buffer | undefined {
    const handle = open(file)
    if (handle === undefined) return undefined
    try {
      for (let at = 0; at < bytes.byteLength; ) {
        const read = readSync(handle, bytes, at, bytes.byteLength - at, from + at)
        if (read === 0) return undefined
        at += read
      }
      return bytes
    } catch {
      return undefined
    } finally {
      closeSync(handle)
    }
  }

  return {
    note(key, bytes, usedMs) {
      if (isLocal === undefined) findOut()
      recent.note(key, { bytes, usedMs })
    },
    forget: recent.forget,
    read(key, file, { part, lends } = {}) {
      const began = clock.monotonic()
      const known = isLocal && !isInDoubt(began) ? recent.find(key) : undefined
      if (!known) return undefined
      const from = part?.from ?? 0
      const length = Math.min(part?.to ?? known.bytes, known.bytes) - from
      if (length < 0) return undefined
      const lent = lends ? buffers.lend(length) : undefined
      const bytes = fill(file, lent?.bytes ?? Buffer.allocUnsafeSlow(length), from)
      const now = clock.monotonic()
      if (now - began > slowMs) wasSlow(now - began, now)
      if (bytes) return { bytes, size: known.bytes, release: lent?.release }
      lent?.release()
      recent.forget(key)
      return undefined
    },
    isThere(file) {
      if (isLocal === undefined) findOut()
      const began = clock.monotonic()
      if (!isLocal || isInDoubt(began)) return undefined
      const isThere = look(file)
      const now = clock.monotonic()
      if (now - began > slowMs) wasSlow(now - began, now)
      return isThere
    },
    usedMs: recent.usedMs,
    began() {
      const call = {}
      running.set(call, clock.monotonic())
      return () => running.delete(call)
    },
  }
}

/** Undefined: the system does not say, as where the name is too long, or the disk is broken. */
function look(file: string): boolean | undefined {
  try {
    return statSync(file, { throwIfNoEntry: false }) !== undefined
  } catch {
    return undefined
  }
}

/** What this thread has waited for from a disk, in bytes; undefined where the system does not say. */
function readFromDisk(): number | undefined {
  try {
    return Number(/^read_bytes: (\d+)$/m.exec(readFileSync('/proc/thread-self/io', 'latin1'))?.[1])
  } catch {
    return undefined
  }
}
