// Writes a file that is not there yet, by calls that a thread makes. The same by `fs/promises` costs half as much again: a handle, its
// promises and its events for each file.
import { close, open, write } from 'node:fs'

/** Rejects with the reason of `signal` between two calls. What was written then is the caller's to take away. */
export function writeNew(file: string, bytes: Uint8Array, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    open(file, 'wx', (failed, handle) => {
      if (failed) return reject(failed)
      const end = (error: unknown) =>
        close(handle, (late) => {
          if (error ?? late) reject(error ?? late)
          else resolve()
        })
      const goOn = (from: number): void => {
        if (signal.aborted) return end(signal.reason)
        if (from === bytes.byteLength) return end(undefined)
        write(handle, bytes, from, bytes.byteLength - from, from, (error, written) =>
          error ? end(error) : goOn(from + written),
        )
      }
      goOn(0)
    })
  })
}
