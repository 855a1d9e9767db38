// What a walk over a DAG still has to visit, and a bound on its memory. Links are views of the block they stand in, so
// a walk with siblings to visit keeps the whole block: a deep DAG of large blocks could fill the memory.
import { Failure } from '../../core/failure.ts'

export const mostPendingBytes = 64 * 1024 * 1024

export interface MemoryBound {
  /** Throws `too-large` when the bound is exceeded. */
  take(bytes: number): void
  give(bytes: number): void
}

export function createMemoryBound(most = mostPendingBytes): MemoryBound {
  let bytesHeld = 0
  return {
    take(bytes) {
      bytesHeld += bytes
      if (bytesHeld <= most) return
      throw new Failure('too-large', `more than ${most} bytes of blocks would have to be kept to read this`, {
        source: 'content',
      })
    },
    give(bytes) {
      bytesHeld -= bytes
    },
  }
}

/** The items left to visit, depth first. */
export interface Pending<Item> {
  /** Puts the children of a block of this size before all waiting items. */
  push(children: readonly Item[], blockBytes: number): void
  pop(): Item | undefined
  /** The items that `pop` will return next, as far as they are known. */
  upcoming(): Iterable<Item>
}

export function createPending<Item>(memory = createMemoryBound()): Pending<Item> {
  type Level = { readonly children: readonly Item[]; at: number; readonly bytes: number }
  const levels: Level[] = []
  return {
    push(children, bytes) {
      if (children.length === 0) return
      memory.take(bytes)
      levels.push({ children, at: 0, bytes })
    },
    pop() {
      const top = levels.at(-1)
      if (!top) return undefined
      const part = top.children[top.at++]
      // The level is dropped before its last child is entered: a chain of single links holds one block, however long it
      // is.
      if (top.at >= top.children.length) {
        levels.pop()
        memory.give(top.bytes)
      }
      return part
    },
    *upcoming() {
      for (const level of levels.toReversed())
        for (let at = level.at; at < level.children.length; at++) yield level.children[at] as Item
    },
  }
}
