// Bounds the memory of responses to slow clients. Each holds its current block; above the limit the
// client that has waited longest is disconnected, so that slow readers cannot use up the memory.
export interface Unread {
  /**
   * Notes that a response waits for its client and holds `buffer`; call the returned function at
   * its end. `giveUp` is called to disconnect the client.
   */
  hold(buffer: ArrayBufferLike, giveUp: () => void): () => void
  readonly bytes: number
  /** Clients that were disconnected because of the limit. */
  readonly cut: number
}

type Waiting = { readonly buffer: ArrayBufferLike; readonly giveUp: () => void }

export function createUnread(mostBytes: number): Unread {
  /** In the order in which they began to wait. */
  const waiting = new Set<Waiting>()
  /** Readers of one block share its buffer if the memory tier has it. */
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
