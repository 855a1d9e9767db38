// The running processes: the owner of the data folder records each start and exit.
import type { Slots } from './slots.ts'

export interface Lives {
  /** 0 means that none runs. */
  of(index: number): number
  begin(index: number, life: number): void
  end(index: number): void
}

export const lifeSlots = { count: 256, bytes: 4 } as const

export function createLives(slots: Slots): Lives {
  const set = (index: number, life: number): void => {
    slots.read(index).setUint32(0, life)
    slots.write(index)
  }
  return {
    of: (index) => slots.read(index).getUint32(0),
    begin: set,
    end: (index) => set(index, 0),
  }
}
