// Blocks that a reader is known to want next, asked for before it does, so that a round trip is not paid for each of them.
// How far ahead grows while the reader has to wait and falls back when it stops reading. All readers share one room: who
// finds it full still has the next block asked for.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../block.ts'
import type { Clock } from '../clock.ts'
import type { DagWant, Expected } from './session.ts'

/** What all readers together may have ahead of them. */
export interface Room {
  enter(): () => void
  take(bytes: number, isNext: boolean): boolean
  give(bytes: number): void
  /** What one reader may have at most, with as many as there are now. */
  readonly share: number
}

export interface ReadAhead {
  /** What comes next, in order, as far as it is known; what is no longer in it is given up. */
  expect(next: Iterable<Expected>): void
  /** The block, where it was asked for ahead. */
  take(cid: CID): Promise<Uint8Array> | undefined
  end(): void
}

const firstWindowBytes = 1024 * 1024
const mostWindowBytes = 8 * 1024 * 1024
const mostBlocks = 64
const idleMs = 2000

export function createRoom(mostBytes: number): Room {
  let taken = 0
  let readers = 0
  return {
    enter() {
      readers++
      let isIn = true
      return () => {
        if (isIn) readers--
        isIn = false
      }
    },
    take(bytes, isNext) {
      if (!isNext && taken + bytes > mostBytes) return false
      taken += bytes
      return true
    },
    give(bytes) {
      taken -= bytes
    },
    get share() {
      return mostBytes / Math.max(1, readers)
    },
  }
}

type Ahead = { readonly block: Promise<Uint8Array>; readonly bytes: number; isHere: boolean }

export function createReadAhead(options: {
  readonly fetch: (cid: CID, around: DagWant) => Promise<Uint8Array>
  readonly room: Room
  readonly clock: Clock
}): ReadAhead {
  const { fetch, room, clock } = options
  const ahead = new Map<string, Ahead>()
  let windowBytes = firstWindowBytes
  let heldBytes = 0
  let leave: (() => void) | undefined
  let stopTimer: (() => void) | undefined

  function drop(key: string, { bytes }: Ahead): void {
    ahead.delete(key)
    heldBytes -= bytes
    room.give(bytes)
  }

  function begin(key: string, { cid, around, bytes }: Expected): void {
    const block = fetch(cid, around)
    const entry: Ahead = { block, bytes, isHere: false }
    ahead.set(key, entry)
    heldBytes += bytes
    block.then(
      () => {
        entry.isHere = true
      },
      // Nobody waited for it yet: whoever wants it asks anew.
      () => ahead.get(key) === entry && drop(key, entry),
    )
  }

  /** A reader that stopped reading keeps nothing for itself: the tiers have it, or it is asked for again. */
  function restart(): void {
    stopTimer?.()
    stopTimer = clock.after(idleMs, () => {
      windowBytes = firstWindowBytes
      let isNext = true
      for (const [key, entry] of ahead) {
        if (!isNext && entry.isHere) drop(key, entry)
        isNext = false
      }
    })
  }

  return {
    expect(next) {
      leave ??= room.enter()
      const most = Math.min(windowBytes, room.share)
      const known = new Set<string>()
      for (const one of next) {
        const key = blockKey(one.cid)
        if (known.has(key)) continue
        if (!ahead.has(key)) {
          const isNext = known.size === 0
          if (!isNext && (heldBytes + one.bytes > most || known.size >= mostBlocks)) break
          if (!mayVisit(one) || !room.take(one.bytes, isNext)) break
          begin(key, one)
        }
        known.add(key)
      }
      for (const [key, entry] of ahead) if (!known.has(key)) drop(key, entry)
      restart()
    },
    take(cid) {
      if (ahead.size === 0) return undefined
      const key = blockKey(cid)
      const entry = ahead.get(key)
      if (!entry) return undefined
      if (!entry.isHere) windowBytes = Math.min(mostWindowBytes, windowBytes * 2)
      drop(key, entry)
      return entry.block
    },
    end() {
      stopTimer?.()
      for (const [key, entry] of ahead) drop(key, entry)
      leave?.()
      leave = undefined
    },
  }
}

function mayVisit({ visit }: Expected): boolean {
  try {
    visit?.()
    return true
  } catch {
    return false
  }
}
