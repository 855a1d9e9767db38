// The stack of a DAG traversal, with a bound on its memory. Links are views of their block, so a
// level with siblings to visit keeps that block in memory: a deep DAG of large blocks could use it
// up.
import { Failure } from '../../core/failure.ts'

const maxPendingBytes = 64 * 1024 * 1024

/** `take` throws `too-large` above the bound. */
export function createMemoryBound(max = maxPendingBytes) {
  let bytesHeld = 0
  return {
    take(bytes: number): void {
      bytesHeld += bytes
      if (bytesHeld <= max) return
      throw new Failure('too-large', `more than ${max} bytes of blocks would be needed in memory to read this`, {
        source: 'content',
      })
    },
    give(bytes: number): void {
      bytesHeld -= bytes
    },
  }
}

/** An array, or items created on access. */
export type Children<Item> = { readonly length: number; at(index: number): Item | undefined }

/** Maps children lazily: a block may have a quarter of a million. */
export const madeOf = <Of, Item>(
  from: Children<Of>,
  make: (of: Of, index: number) => Item,
  first = 0,
  end = from.length,
): Children<Item> => ({
  length: Math.max(0, end - first),
  at(index) {
    const of = from.at(first + index)
    return of === undefined ? undefined : make(of, first + index)
  },
})

/**
 * Finds the parts with bytes between `from` and `to`. `starts` has the offset of each part and,
 * last, the end. Returns the first index and the one after the last.
 */
export function between(starts: Float64Array, from: number, to: number): [first: number, end: number] {
  const count = starts.length - 1
  const first = firstAt(count, (index) => (starts[index + 1] as number) > from)
  return [first, firstAt(count, (index) => (starts[index] as number) >= to)]
}

/** Binary search: the first index for which `holds` is true. */
function firstAt(length: number, holds: (index: number) => boolean): number {
  let [low, high] = [0, length]
  while (low < high) {
    const middle = (low + high) >> 1
    if (holds(middle)) high = middle
    else low = middle + 1
  }
  return low
}

// Bounds prefetching per block: in a DAG of many known or repeated links, scanning all of them for
// each block took as long as the traversal.
const maxInspected = 256

type Level<Item> = {
  readonly children: Children<Item>
  at: number
  readonly bytes: number
  /** Children that `upcoming` has created already. */
  readonly seen: Map<number, Item>
}

/** A depth-first stack of items to visit. */
export function createPending<Item>(memory = createMemoryBound()) {
  const levels: Level<Item>[] = []

  function look({ children, seen }: Level<Item>, at: number): Item {
    const known = seen.get(at)
    if (known !== undefined) return known
    const made = children.at(at) as Item
    seen.set(at, made)
    return made
  }

  return {
    /** Pushes the children of a block of this size on the stack. */
    push(children: Children<Item>, bytes: number): void {
      if (children.length === 0) return
      memory.take(bytes)
      levels.push({ children, at: 0, bytes, seen: new Map() })
    },
    pop(): Item | undefined {
      const top = levels.at(-1)
      if (!top) return undefined
      const at = top.at++
      const part = top.seen.get(at) ?? top.children.at(at)
      top.seen.delete(at)
      // Drop the level before its last child is entered: a chain of single links then holds one
      // block, however long it is.
      if (top.at >= top.children.length) {
        levels.pop()
        memory.give(top.bytes)
      }
      return part
    },
    /** The items that `pop` will return next, as far as they are known. */
    *upcoming(): Generator<Item> {
      let left = maxInspected
      for (const level of levels.toReversed())
        for (let at = level.at; at < level.children.length; at++) {
          if (left-- === 0) return
          yield look(level, at)
        }
    },
  }
}
