// A progress line on a terminal, rewritten in place; nothing elsewhere.
import type { Writable } from 'node:stream'

export type ProgressLine = {
  /** Sets the total size. */
  of(bytes: number | undefined): void
  /** Passes bytes through and counts them. */
  counting<Piece extends Uint8Array>(source: AsyncIterable<Piece>): AsyncIterable<Piece>
  say(line: string): void
  /** Erases the line. */
  end(): void
}

const everyMs = 200

export function createProgress(stream: Writable & { readonly isTTY?: boolean }): ProgressLine {
  let all: number | undefined
  let came = 0
  let saidAt = 0
  let isShown = false

  /** The last update is always shown: a provider may take its time with what has arrived. */
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

/** Compressed responses and growing files exceed the announced size. */
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
