// Read-ahead: asks for blocks before their reader wants them, so that not each costs a round trip. The distance grows while
// the reader has to wait and shrinks when it stops reading; for blocks in the tiers it is large from the start, since no
// upstream is asked. All readers share one memory budget: a reader that finds it full still gets its next block ahead.
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { CID } from 'multiformats/cid'
import { blockKey, isIdentity } from '../core/cid.ts'
import type { Clock } from '../core/clock.ts'
import type { DagWant, Expected } from './session.ts'

/** The budget for read-ahead of all readers together. */
export interface Room {
  enter(): () => void
  take(bytes: number, isNext: boolean): boolean
  give(bytes: number): void
  /** The most that one reader may use, divided among the present readers. */
  readonly share: number
}

export interface ReadAhead {
  /** The next blocks, in order, as far as known, looked at where they may be needed; blocks no longer in it are dropped. */
  expect(next: Iterable<Expected>): void
  /** Whether it was asked for ahead. */
  has(cid: CID): boolean
  /** The block, if it was asked for ahead. */
  take(cid: CID): Promise<Uint8Array> | undefined
  end(): void
}

const firstWindowBytes = 1024 * 1024
const maxWindowBytes = 8 * 1024 * 1024
const maxBlocks = 64
// Of links that repeat what was met, or hold their content themselves, and bring nothing to ask for.
const maxPassedOver = 64
const heldWindowBytes = 24 * 1024 * 1024
const maxHeldBlocks = 96
// To make a request of a store takes half a millisecond. All in one turn, the first one leaves when the last one is made.
const heldInTurn = 8
const idleMs = 2000
// A directory of 100,000 names is 30,000 small blocks: a look at the next 64 behind each of them was a quarter of its listing.
const smallBytes = 16 * 1024
const enoughOfThem = 0.75
const minToSkip = 16

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

type Ahead = {
  readonly block: Promise<Uint8Array>
  readonly bytes: number
  /** For a block asked of the tiers alone: asks the upstreams too. */
  readonly everywhere: (() => Promise<Uint8Array>) | undefined
  isHere: boolean
}

/** The last look at the blocks that come next. Of small blocks enough may still be on their way: another look can wait. */
function createLastLook() {
  let count = 0
  let wasFar = false
  return {
    /** Others may come next, or more of them be wanted. */
    isStale: true,
    found(blocks: number, isFar: boolean): void {
      this.isStale = false
      count = blocks
      wasFar = isFar
    },
    isEnough(blocks: number, bytes: number, isFar: boolean): boolean {
      const isSameWindow = !this.isStale && isFar === wasFar
      return isSameWindow && blocks >= minToSkip && blocks > count * enoughOfThem && bytes <= blocks * smallBytes
    },
  }
}

/** Those that have to be asked for, with their keys, as long as not too many others stand among them. */
function* withoutRepeated(next: Iterable<Expected>, known: ReadonlySet<string>): Generator<[string, Expected]> {
  let passedOver = 0
  for (const one of next) {
    const key = isIdentity(one.cid) ? undefined : blockKey(one.cid)
    if (key !== undefined && !known.has(key)) yield [key, one]
    else if (++passedOver >= maxPassedOver) return
  }
}

export function createReadAhead(options: {
  readonly fetch: (cid: CID, around: DagWant) => Promise<Uint8Array>
  /** Reads from the tiers alone; rejects when none has it. */
  readonly fetchHeld: (cid: CID) => Promise<Uint8Array>
  /** True if a slow tier had earlier blocks of the request: it may have the next ones too. */
  readonly isHeld: () => boolean
  /** Throws for a block that may not be read. */
  readonly check: (cid: CID) => void
  readonly room: Room
  readonly clock: Clock
}): ReadAhead {
  const { fetch, fetchHeld, isHeld, check, room, clock } = options
  const ahead = new Map<string, Ahead>()
  let windowBytes = firstWindowBytes
  let aheadBytes = 0
  let wasMissed = false
  const lastLook = createLastLook()
  let leave: (() => void) | undefined
  let stopTimer: (() => void) | undefined

  function drop(key: string, { bytes }: Ahead): void {
    ahead.delete(key)
    aheadBytes -= bytes
    room.give(bytes)
  }

  /** `turn`: a block that is far away is asked for in this one. */
  function begin(key: string, { cid, around, bytes }: Expected, turn: Promise<unknown> | undefined): void {
    const isFar = turn !== undefined
    const block = isFar ? turn.then(() => fetchHeld(cid)) : fetch(cid, around)
    const everywhere = isFar ? () => fetch(cid, around) : undefined
    const entry: Ahead = { block, bytes, everywhere, isHere: false }
    ahead.set(key, entry)
    aheadBytes += bytes
    block.then(
      () => {
        entry.isHere = true
      },
      // No reader waits for it yet: a reader that wants it asks again.
      () => {
        wasMissed ||= isFar
        lastLook.isStale = true
        if (ahead.get(key) === entry) drop(key, entry)
      },
    )
  }

  /** Drops everything kept for a reader that stopped reading: the tiers have it, or it is asked for again. */
  function restart(): void {
    stopTimer?.()
    stopTimer = clock.after(idleMs, () => {
      windowBytes = firstWindowBytes
      lastLook.isStale = true
      let isNext = true
      for (const [key, entry] of ahead) {
        if (!isNext && entry.isHere) drop(key, entry)
        isNext = false
      }
    })
  }

  function isAllowed({ cid, visit }: Expected): boolean {
    try {
      check(cid)
      visit?.()
      return true
    } catch {
      return false
    }
  }

  return {
    expect(next) {
      leave ??= room.enter()
      const isFarHeld = isHeld() && !wasMissed
      if (lastLook.isEnough(ahead.size, aheadBytes, isFarHeld)) return restart()
      const near = Math.min(windowBytes, room.share)
      const far = isFarHeld ? Math.min(heldWindowBytes, room.share) : near
      const known = new Set<string>()
      let turn: Promise<unknown> = Promise.resolve()
      let begun = 0
      for (const [key, one] of withoutRepeated(next, known)) {
        if (!ahead.has(key)) {
          const isNext = known.size === 0
          const bytes = aheadBytes + one.bytes
          if (!isNext && (bytes > far || known.size >= (isFarHeld ? maxHeldBlocks : maxBlocks))) break
          if (!isAllowed(one) || !room.take(one.bytes, isNext)) break
          if (isNext || bytes <= near) begin(key, one, undefined)
          else {
            if (begun++ % heldInTurn === 0) turn = turn.then(() => nextTurn())
            begin(key, one, turn)
          }
        }
        known.add(key)
      }
      for (const [key, entry] of ahead) if (!known.has(key)) drop(key, entry)
      lastLook.found(ahead.size, isFarHeld)
      restart()
    },
    has: (cid) => ahead.size > 0 && ahead.has(blockKey(cid)),
    take(cid) {
      if (ahead.size === 0) return undefined
      const key = blockKey(cid)
      const entry = ahead.get(key)
      const isWaitedFor = entry?.isHere === false
      lastLook.isStale ||= !entry || (isWaitedFor && windowBytes < maxWindowBytes)
      if (!entry) return undefined
      if (isWaitedFor) windowBytes = Math.min(maxWindowBytes, windowBytes * 2)
      drop(key, entry)
      return entry.isHere || !entry.everywhere ? entry.block : entry.everywhere()
    },
    end() {
      stopTimer?.()
      for (const [key, entry] of ahead) drop(key, entry)
      leave?.()
    },
  }
}
