// Buffers that are used again. A new one of 1 MiB costs more than to read a file into it: the system hands out its pages one
// by one, and the collector takes them back.

/** Memory that is lent. A reader that never gives it back costs a new buffer, and nothing else. */
export type Lent = {
  readonly bytes: Buffer
  /** The reader, and everything it passed the bytes on to, is done with them. */
  readonly release: () => void
}

export interface Buffers {
  lend(bytes: number): Lent
}

const leastBytes = 4096

// glibc begins a large buffer 16 bytes behind the start of a page. AMD's Zen 3 copies a file to there in five times the time that it
// takes from 32 bytes behind it on.
const leadBytes = 64

/** Keeps at most so many bytes of buffers that no reader has. */
export function createBuffers(mostIdleBytes: number): Buffers {
  // By their size, a power of two.
  const idle = new Map<number, Buffer[]>()
  let idleBytes = 0

  return {
    lend(bytes) {
      const size = 2 ** Math.ceil(Math.log2(Math.max(leastBytes, bytes)))
      let free = idle.get(size)
      if (!free) idle.set(size, (free = []))
      const known = free.pop()
      if (known) idleBytes -= size
      const room = known ?? Buffer.allocUnsafeSlow(leadBytes + size).subarray(leadBytes)
      let isLent = true
      return {
        bytes: room.subarray(0, bytes),
        release() {
          if (!isLent) return
          isLent = false
          if (idleBytes + size > mostIdleBytes) return
          idleBytes += size
          free.push(room)
        },
      }
    },
  }
}
