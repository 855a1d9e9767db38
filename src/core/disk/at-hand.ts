// Files that this process read or wrote whole lately: they are in the page cache, so that they are read at once, in a tenth of
// the time that a thread takes for it.
import { closeSync, constants, openSync, readSync, statSync } from 'node:fs'
import type { Clock } from '../clock.ts'
import { createAtOnce } from './at-once.ts'
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

const mostIdleBytes = 8 * 1024 * 1024

export function createFilesAtHand(folder: string, clock: Clock): FilesAtHand {
  const buffers = createBuffers(mostIdleBytes)
  const recent = createRecentFiles(clock)
  const atOnce = createAtOnce(folder, clock)
  // Without a line in the file's inode for each read. Refused for files that another user made.
  let flags = constants.O_RDONLY | asRegular | (constants.O_NOATIME ?? 0)

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
      atOnce.may(clock.monotonic())
      recent.note(key, { bytes, usedMs })
    },
    forget: recent.forget,
    read(key, file, { part, lends } = {}) {
      const began = clock.monotonic()
      const known = atOnce.may(began) ? recent.find(key) : undefined
      if (!known) return undefined
      const from = part?.from ?? 0
      const length = Math.min(part?.to ?? known.bytes, known.bytes) - from
      if (length < 0) return undefined
      const lent = lends ? buffers.lend(length) : undefined
      const bytes = atOnce.run(began, () => fill(file, lent?.bytes ?? Buffer.allocUnsafeSlow(length), from))
      if (bytes) return { bytes, size: known.bytes, release: lent?.release }
      lent?.release()
      recent.forget(key)
      return undefined
    },
    isThere(file) {
      const began = clock.monotonic()
      return atOnce.may(began) ? atOnce.run(began, () => look(file)) : undefined
    },
    usedMs: recent.usedMs,
    began: atOnce.began,
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
