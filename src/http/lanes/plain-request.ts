// Detects a GET for the plain response by one scan of its raw headers.
import type { FormatChoice } from '../content/negotiate.ts'

export type PlainRequest = { readonly ifNoneMatch: string | undefined; readonly acceptEncoding: string | undefined }

/** Undefined if it asks for something else, or has headers that need full validation. */
export function plainRequest(
  rawHeaders: readonly string[],
  representation: (accept: string) => FormatChoice,
  isHost: (host: string) => boolean,
): PlainRequest | undefined {
  let ifNoneMatch: string | undefined
  let acceptEncoding: string | undefined
  let hosts = 0
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const name = rawHeaders[index] as string
    // Compares lengths first: most headers match none of these.
    switch (name.length) {
      case 4:
        if (name.toLowerCase() === 'host') {
          if (!isHost(rawHeaders[index + 1] as string)) return undefined
          hosts++
        }
        break
      case 5:
        if (name.toLowerCase() === 'range') return undefined
        break
      case 6: {
        const lower = name.toLowerCase()
        if (lower === 'accept' && representation(rawHeaders[index + 1] as string) !== 'file') return undefined
        if (lower === 'expect') return undefined
        break
      }
      case 13: {
        const lower = name.toLowerCase()
        if (lower === 'if-none-match') ifNoneMatch = rawHeaders[index + 1]
        else if (lower === 'cache-control' && (rawHeaders[index + 1] as string).includes('no-cache')) return undefined
        break
      }
      case 14:
        if (/^(content-length|service-worker)$/i.test(name)) return undefined
        break
      case 15:
        if (name.toLowerCase() === 'accept-encoding') {
          // Node joins repeated headers, which the fast path does not.
          if (acceptEncoding !== undefined) return undefined
          acceptEncoding = rawHeaders[index + 1]
        }
        break
      case 17:
        if (name.toLowerCase() === 'transfer-encoding') return undefined
        break
    }
  }
  return hosts === 1 ? { ifNoneMatch, acceptEncoding } : undefined
}
