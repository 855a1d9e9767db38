// A file of numbered slots of equal size, read and written concurrently by the processes of a
// gateway: in the page cache an access takes about two microseconds, without a message. Of two
// concurrent writes to a slot one is lost. Disk space is reserved at the start; if the disk fails
// later, slots read as zeros, and each user of a file defines what that means.
import { closeSync, openSync, readSync, writeFileSync, writeSync } from 'node:fs'

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
export function marksOf(text: string): { readonly place: number; readonly mark: number } {
  let place = 0x811c9dc5
  let mark = 0x01000193
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at)
    place = Math.imul(place ^ code, 0x01000193)
    mark = Math.imul(mark ^ code, 0x85ebca6b) ^ (mark >>> 15)
  }
  return { place: place >>> 0, mark: mark >>> 0 || 1 }
}
