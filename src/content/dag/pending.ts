// How much a walk over a DAG may keep in memory at once. Links are views of the block they stand in, so a walk that still
// has siblings to visit keeps the whole block: a deep DAG of large blocks could otherwise fill the machine.
import { Failure } from '../../core/failure.ts'

export const mostPendingBytes = 64 * 1024 * 1024

export interface MemoryBound {
  /** Throws `too-large` when it would be too much. */
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

/** What is left to visit, depth first. */
export interface Pending<Item> {
  /** Goes on with the children of a block of this size, before anything that waits already. */
  push(children: readonly Item[], blockBytes: number): void
  pop(): Item | undefined
  /** What `pop` will answer from now on, as far as it is known. */
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
      // Gone before its last child is entered: a chain of single links holds one block, however long it is.
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
