// Reusable buffers. A new one of 1 MiB costs more than reading a file into it: the kernel maps its
// pages one by one, and garbage collection unmaps them.

const minBytes = 4096

// glibc begins a large buffer 16 bytes after a page boundary. AMD's Zen 3 copies a file to there
// five times slower than to an offset of 32 bytes or more.
const leadBytes = 64

/** Keeps up to `maxIdleBytes` of released buffers. */
export function createBuffers(maxIdleBytes: number) {
  // Keyed by size, a power of two.
  const idle = new Map<number, Buffer[]>()
  let idleBytes = 0

  return {
    /** Lends memory. A reader that never releases it only costs a new buffer. */
    lend(bytes: number) {
      const size = 2 ** Math.ceil(Math.log2(Math.max(minBytes, bytes)))
      let free = idle.get(size)
      if (!free) idle.set(size, (free = []))
      const known = free.pop()
      if (known) idleBytes -= size
      const room = known ?? Buffer.allocUnsafeSlow(leadBytes + size).subarray(leadBytes)
      let isLent = true
      return {
        bytes: room.subarray(0, bytes),
        /** Marks the bytes as no longer used by the reader or anything it passed them to. */
        release(): void {
          if (!isLent) return
          isLent = false
          if (idleBytes + size > maxIdleBytes) return
          idleBytes += size
          free.push(room)
        },
      }
    },
  }
}
