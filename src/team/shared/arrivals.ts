// Which blocks the owner of the data folder took from uploads: the only news that another process must not miss, since a 404
// after an acknowledged upload would be untrue. The owner notes each before the 200; a place is shared by many blocks, so a number
// says "perhaps", and zero says that none of them came.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../../core/block.ts'
import { Failure } from '../../core/failure.ts'
import { marksOf, type Slots } from './slots.ts'

export interface Arrivals {
  /** 0: none. It rises with each block that comes to this place. */
  of(cid: CID): number
  /** By the key of the block. Throws where the other processes cannot be told. */
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
          'broken',
          'the other processes of this gateway cannot be told of an upload: look at the disk',
          {
            source: 'ours',
          },
        )
    },
  }
}
