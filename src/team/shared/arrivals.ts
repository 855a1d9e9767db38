// Tells workers which blocks the owner accepted, through a hashed table of counters: zero means
// certainly not uploaded, any other value means maybe. The owner increments before its 200, so no
// worker answers an acknowledged upload with 404.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../../core/cid.ts'
import { Failure } from '../../core/failure.ts'
import { marksOf, type Slots } from './slots.ts'

export interface Arrivals {
  /** The counter of a block: 0 means never uploaded; it increases with each upload in this slot. */
  of(cid: CID): number
  /** Increments the counter of a block. Throws if the other processes cannot see it. */
  note(key: string): void
}

export const arrivalSlots = { count: 2 ** 20, bytes: 4 } as const

export function createArrivals(slots: Slots): Arrivals {
  const placeOf = (key: string): number => marksOf(key).place % slots.count
  return {
    of: (cid) => slots.read(placeOf(blockKey(cid))).getUint32(0),
    note(key) {
      const place = placeOf(key)
      const view = slots.read(place)
      view.setUint32(0, (view.getUint32(0) + 1) >>> 0 || 1)
      if (!slots.write(place))
        throw new Failure(
          'upstream-error',
          'the other processes of this gateway cannot be told of an upload: look at the disk',
          {
            source: 'ours',
          },
        )
    },
  }
}
