// One line on a terminal that says how far it is, written over and over; nothing where nobody looks on.
import type { Writable } from 'node:stream'

export type ProgressLine = {
  /** So many bytes will come. */
  of(bytes: number | undefined): void
  /** Passes bytes on, and counts them. */
  counting<Piece extends Uint8Array>(source: AsyncIterable<Piece>): AsyncIterable<Piece>
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

  /** The last one is always shown: a provider may take its time with what has arrived. */
  function say(line: string, isLast = false): void {
    const now = performance.now()
    if (!stream.isTTY || (now - saidAt < everyMs && !isLast)) return
    saidAt = now
    isShown = true
    stream.write(`\r\u001b[K${line}`)
  }

  return {
    of(bytes) {
      all = bytes
      came = 0
    },
    async *counting(source) {
      for await (const piece of source) {
        came += piece.byteLength
        say(all === undefined ? sizeOf(came) : `${barOf(came, all)} ${sizeOf(came)} of ${sizeOf(all)}`, came === all)
        yield piece
      }
    },
    say: (line) => say(line),
    end() {
      if (isShown) stream.write('\r\u001b[K')
      isShown = false
    },
  }
}

const barWidth = 24

/** Compressed answers and growing files bring more than was said. */
function barOf(came: number, all: number): string {
  const share = all === 0 ? 1 : Math.min(1, came / all)
  const full = Math.floor(share * barWidth)
  return `[${'#'.repeat(full)}${'.'.repeat(barWidth - full)}] ${String(Math.floor(share * 100)).padStart(3)} %`
}

export function sizeOf(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  const power = bytes < 1024 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10))
  return `${(bytes / 1024 ** power).toFixed(power === 0 ? 0 : 1)} ${units[power]}`
}
