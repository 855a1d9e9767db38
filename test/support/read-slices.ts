// Reads an answer piece by piece and keeps none of it: how much came, how long it took, and the longest silence in it.
import { get } from 'node:http'

export type Read = {
  readonly status: number
  readonly bytes: number
  readonly ms: number
  /** After the first byte. */
  readonly gapMs: number
}

export function readSlices(url: string): Promise<Read> {
  const began = performance.now()
  return new Promise((resolve, reject) => {
    get(url, (response) => {
      let last = performance.now()
      let bytes = 0
      let gapMs = 0
      response.on('data', (piece: Buffer) => {
        const now = performance.now()
        gapMs = Math.max(gapMs, now - last)
        last = now
        bytes += piece.byteLength
      })
      response.on('error', reject)
      response.on('end', () =>
        resolve({ status: response.statusCode ?? 0, bytes, ms: performance.now() - began, gapMs }),
      )
    }).on('error', reject)
  })
}
