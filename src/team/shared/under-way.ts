// Which process fetches which path from upstreams at this moment, so that a client who asks another one for it joins that answer.
// It saves requests to upstreams and decides nothing: two processes that begin in the same moment both fetch.
import { marksOf, type Slots } from './slots.ts'

export interface UnderWay {
  /** Another process that lives and fetches this path. */
  holderOf(path: string): number | undefined
  /** This one fetches it, until the answer is called. Undefined: another path has the place. */
  hold(path: string): (() => void) | undefined
}

export const underWaySlots = { count: 2 ** 16, bytes: 12 } as const

/** `lifeOf`: a number that a process has from its start to its end; 0 when there is none. */
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
