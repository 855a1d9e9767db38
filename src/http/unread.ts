// The memory of answers that their clients do not take. Each holds the block that it is at; beyond a sum of bytes the client that has
// kept one waiting the longest is cut off, so that many who read slowly cannot take all of it.
export interface Unread {
  /** An answer waits for its client, and holds `buffer`. What it gives ends that. `giveUp`: called if the client is cut off. */
  hold(buffer: ArrayBufferLike, giveUp: () => void): () => void
  readonly bytes: number
  /** Clients that were cut off to make room. */
  readonly cut: number
}

type Waiting = { readonly buffer: ArrayBufferLike; readonly giveUp: () => void }

export function createUnread(mostBytes: number): Unread {
  /** In the order in which they began to wait. */
  const waiting = new Set<Waiting>()
  /** Readers of one block share its buffer where memory keeps it. */
  const buffers = new Map<ArrayBufferLike, { readonly size: number; holders: number }>()
  let bytes = 0
  let cut = 0

  function begin(one: Waiting): void {
    waiting.add(one)
    const shared = buffers.get(one.buffer)
    if (shared) return void shared.holders++
    const size = one.buffer.byteLength
    buffers.set(one.buffer, { size, holders: 1 })
    bytes += size
  }

  function end(one: Waiting): void {
    const held = buffers.get(one.buffer)
    if (!waiting.delete(one) || !held || --held.holders > 0) return
    buffers.delete(one.buffer)
    bytes -= held.size
  }

  return {
    hold(buffer, giveUp) {
      const own = { buffer, giveUp }
      begin(own)
      for (const one of waiting) {
        if (bytes <= mostBytes) break
        end(one)
        cut++
        one.giveUp()
      }
      return () => end(own)
    },
    get bytes() {
      return bytes
    },
    get cut() {
      return cut
    },
  }
}
