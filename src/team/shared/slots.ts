// A file of numbered places of one length, which the processes of a gateway read and write at once: it lies in the page cache, so
// that a look costs some two microseconds and no message. Of two writes to one place at the same time one is lost. Its room on the disk
// is taken at the start, and a disk that fails later makes places zeros: what that means, each user of a file says.
import { closeSync, openSync, readSync, writeFileSync, writeSync } from 'node:fs'

export interface Slots {
  /** The place as it is now; its memory is used again by the next call. */
  read(place: number): DataView
  /** Of what `read` gave, once it was changed. False: the disk did not take it. */
  write(place: number): boolean
  readonly count: number
  /**
   * Of a team whose other processes have all ended. A gateway that a reload replaced may still answer what it began: it reads
   * zeros, and a write succeeds because nobody is left who would read it.
   */
  close(): void
}

/** `isNew`: all places are zeros. */
export function openSlots(
  file: string,
  { count, bytes, isNew }: { readonly count: number; readonly bytes: number; readonly isNew: boolean },
): Slots {
  if (isNew) writeFileSync(file, new Uint8Array(count * bytes), { mode: 0o600 })
  const handle = openSync(file, 'r+')
  const own = new Uint8Array(bytes)
  const view = new DataView(own.buffer)
  let isOpen = true

  /** How many bytes were read or written. */
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

/** FNV-1a, twice: 32 bits for the place, and 32 others that tell apart what falls on one place. */
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
