// Request coalescing across processes: records which process is fetching which path, so that a
// client at another one can join. It only saves upstream requests: two processes that begin at the
// same moment both fetch.
import { marksOf, type Slots } from './slots.ts'

export interface UnderWay {
  /** Another running process that is fetching this path. */
  holderOf(path: string): number | undefined
  /**
   * Records that this process fetches a path, until the returned function is called. Undefined if
   * the slot is in use for another path.
   */
  hold(path: string): (() => void) | undefined
}

export const underWaySlots = { count: 2 ** 16, bytes: 12 } as const

/** `lifeOf`: a number unique to each run of a process; 0 if it does not run. */
export function createUnderWay(
  slots: Slots,
  { index, lifeOf }: { readonly index: number; readonly lifeOf: (index: number) => number },
): UnderWay {
  const holds = new Map<number, { readonly mark: number; count: number }>()

  function letGo(place: number): void {
    const own = holds.get(place)
    if (!own || --own.count > 0) return
    holds.delete(place)
    const view = slots.read(place)
    if (view.getUint32(0) !== own.mark || view.getUint32(4) !== index) return
    view.setUint32(0, 0)
    slots.write(place)
  }

  return {
    holderOf(path) {
      const { place: at, mark } = marksOf(path)
      const view = slots.read(at % slots.count)
      if (view.getUint32(0) !== mark) return undefined
      const holder = view.getUint32(4)
      const life = view.getUint32(8)
      return holder !== index && life !== 0 && lifeOf(holder) === life ? holder : undefined
    },
    hold(path) {
      const { place: at, mark } = marksOf(path)
      const place = at % slots.count
      const own = holds.get(place)
      if (own && own.mark !== mark) return undefined
      if (own) own.count++
      else {
        holds.set(place, { mark, count: 1 })
        const view = slots.read(place)
        view.setUint32(0, mark)
        view.setUint32(4, index)
        view.setUint32(8, lifeOf(index))
        slots.write(place)
      }
      return () => letGo(place)
    },
  }
}
