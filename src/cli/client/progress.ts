// One line on a terminal that says how far it is, written over and over; nothing where nobody looks on.
import type { Writable } from 'node:stream'

export type ProgressLine = {
  /** So many bytes will come. */
  of(bytes: number | undefined): void
  /** Passes bytes on, and counts them. */
  counting(source: AsyncIterable<Buffer>): AsyncIterable<Buffer>
  say(line: string): void
  /** The line is gone. */
  end(): void
}

const everyMs = 200

export function createProgress(stream: Writable & { readonly isTTY?: boolean }): ProgressLine {
  let all: number | undefined
  let came = 0
  let saidAt = 0
  let isShown = false

  function say(line: string): void {
    const now = performance.now()
    if (!stream.isTTY || now - saidAt < everyMs) return
    saidAt = now
    isShown = true
    stream.write(`\r\u001b[K${line}`)
  }

  return {
    of(bytes) {
      all = bytes
    },
    async *counting(source) {
      for await (const piece of source) {
        came += piece.byteLength
        say(
          all === undefined ? sizeOf(came) : `${sizeOf(came)} of ${sizeOf(all)} (${Math.floor((100 * came) / all)} %)`,
        )
        yield piece
      }
    },
    say,
    end() {
      if (isShown) stream.write('\r\u001b[K')
      isShown = false
    },
  }
}

export function sizeOf(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  const power = bytes < 1024 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10))
  return `${(bytes / 1024 ** power).toFixed(power === 0 ? 0 : 1)} ${units[power]}`
}
