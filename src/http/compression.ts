// Content codings (RFC 9110 §8.4): selects one by Accept-Encoding, and compresses responses on
// zlib's threads, a few at a time. Above the limit a response is sent uncompressed instead of
// waiting; requests for the same bytes share one compression.
import type { Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { promisify } from 'node:util'
import {
  brotliCompress,
  constants,
  createBrotliCompress,
  createGzip,
  createZstdCompress,
  gzip,
  zstdCompress,
} from 'node:zlib'
import { remembered } from '../core/cache.ts'
import { weightedList } from '../core/wire/http.ts'

export type Compression = ReturnType<typeof createCompression>

type CompressionCounts = {
  readonly made: Record<Coding, number>
  /** Sent uncompressed because of the limit. */
  busy: number
}

type CompressionOptions = {
  readonly isOn: boolean
  /** The maximum number of concurrent compressions. Their threads also read files. */
  readonly max?: number
  /**
   * The maximum number of compressed streams: a slow client occupies one for long, with some MiB of
   * memory.
   */
  readonly maxStreams?: number
}

const { BROTLI_PARAM_QUALITY, BROTLI_PARAM_SIZE_HINT, BROTLI_PARAM_LGWIN } = constants
const { ZSTD_c_compressionLevel, ZSTD_c_windowLog } = constants

// Measured: the next level costs more than it saves.
const quality = { br: 5, zstd: 3, gzip: 6 } as const
// Bounds the memory of each compressed stream.
const windowBits = 18

const toBrotli = promisify(brotliCompress)
const toZstd = promisify(zstdCompress)
const toGzip = promisify(gzip)

/** `all`: size is known; `chunkSize` is large enough that zlib returns in one or two iterations. */
const coders = {
  br: {
    all: (bytes: Uint8Array, chunkSize: number) => {
      const params = { [BROTLI_PARAM_QUALITY]: quality.br, [BROTLI_PARAM_SIZE_HINT]: bytes.byteLength }
      return toBrotli(bytes, { chunkSize, params })
    },
    stream: () =>
      createBrotliCompress({ params: { [BROTLI_PARAM_QUALITY]: quality.br, [BROTLI_PARAM_LGWIN]: windowBits } }),
  },
  zstd: {
    all: (bytes: Uint8Array, chunkSize: number) =>
      toZstd(bytes, { chunkSize, params: { [ZSTD_c_compressionLevel]: quality.zstd } }),
    stream: () =>
      createZstdCompress({ params: { [ZSTD_c_compressionLevel]: quality.zstd, [ZSTD_c_windowLog]: windowBits } }),
  },
  gzip: {
    all: (bytes: Uint8Array, chunkSize: number) => toGzip(bytes, { chunkSize, level: quality.gzip }),
    stream: () => createGzip({ level: quality.gzip }),
  },
} as const

export function createCompression({ isOn, max = 2, maxStreams = 8 }: CompressionOptions) {
  const inProgress = new Map<string, Promise<Buffer | undefined>>()
  const counts: CompressionCounts = { made: { br: 0, zstd: 0, gzip: 0 }, busy: 0 }
  let running = 0
  let streams = 0

  async function run(bytes: Uint8Array, coding: Coding): Promise<Buffer | undefined> {
    running++
    try {
      const made = alone(await coders[coding].all(bytes, Math.max(1024, Math.ceil(bytes.byteLength / 3))))
      counts.made[coding]++
      return made
    } catch {
      return undefined // out of memory: send it uncompressed
    } finally {
      running--
    }
  }

  return {
    /** The codings that a client accepts, by its Accept-Encoding. */
    accepted: isOn ? acceptedEncodings() : () => plainOnly,
    /** True if the response depends on Accept-Encoding. */
    covers: isOn ? isCompressible : () => false,
    /**
     * Compresses all bytes. Undefined, now or later, if the limit is reached or it failed. The bytes
     * are in use until it settles. Calls with the same `name` have the same bytes and share the work.
     */
    compress(bytes: Uint8Array, coding: Coding, name?: string): Promise<Buffer | undefined> | undefined {
      const known = name === undefined ? undefined : inProgress.get(name)
      if (known !== undefined) return known
      if (running >= max) {
        counts.busy++
        return undefined
      }
      const made = run(bytes, coding)
      if (name === undefined) return made
      inProgress.set(name, made)
      return made.finally(() => inProgress.delete(name))
    },
    /** Compresses a stream. Undefined if the limit is reached. */
    stream(pieces: AsyncIterable<Uint8Array>, coding: Coding): CodedPieces | undefined {
      if (streams >= maxStreams) {
        counts.busy++
        return undefined
      }
      streams++
      counts.made[coding]++
      return codedPieces(pieces, coders[coding].stream(), () => {
        streams--
      })
    },
    counts,
  }
}

/** Copies the result out of zlib's larger buffer, which the cache would otherwise retain. */
function alone(bytes: Buffer): Buffer {
  if (bytes.byteLength === bytes.buffer.byteLength) return bytes
  const own = Buffer.allocUnsafeSlow(bytes.byteLength)
  bytes.copy(own)
  return own
}

export type Coding = 'br' | 'zstd' | 'gzip'

/** Smallest output first: small responses are cached, so they are compressed once. */
export const codings: readonly Coding[] = ['br', 'zstd', 'gzip']

/**
 * Each coding has different bytes and so needs its own ETag: `"cid-br"` for `"cid"`, spelled as in
 * Caddy.
 */
export const codedTag = (etag: string, coding: Coding): string => `${etag.slice(0, -1)}-${coding}"`

/**
 * Derives the headers of a coded response from the identity headers. Ranges are served from
 * identity only. `size` is undefined if it is not known in advance.
 */
export function codedHeaders(plain: readonly string[], coding: Coding, size: number | undefined): string[] {
  const headers: string[] = []
  for (let at = 0; at < plain.length; at += 2) {
    const name = plain[at] as string
    const value = plain[at + 1] as string
    if (name === 'ETag') headers.push(name, codedTag(value, coding))
    else if (name === 'Accept-Ranges') headers.push(name, 'none')
    else if (name === 'Content-Type') headers.push(name, value, 'Content-Encoding', coding)
    else if (name !== 'Content-Length') headers.push(name, value)
  }
  if (size !== undefined) headers.push('Content-Length', String(size))
  return headers
}

export type Accepted = {
  /** The coding to send; undefined means identity. */
  readonly best: Coding | undefined
  /** All codings that the client accepts, best first. */
  readonly all: readonly Coding[]
}

/** For a client that accepts no coding. */
export const plainOnly: Accepted = { best: undefined, all: [] }

const acceptedEncodings = (): ((header: string | undefined) => Accepted) => {
  const accepted = remembered(acceptedOf)
  return (header) => (header === undefined ? plainOnly : accepted(header))
}

/**
 * The highest weight wins; our order breaks ties. Identity is sent if it has more weight than each
 * coding, and also, despite `identity;q=0`, if no coding is acceptable, since every client can read
 * it.
 */
export function acceptedOf(header: string): Accepted {
  const weights = new Map(weightedList(header).map(({ name, weight }) => [name === 'x-gzip' ? 'gzip' : name, weight]))
  const weight = (coding: Coding): number => weights.get(coding) ?? weights.get('*') ?? 0
  const all = codings.filter((coding) => weight(coding) > 0).sort((one, other) => weight(other) - weight(one))
  const [first] = all
  if (first === undefined) return plainOnly
  return { best: (weights.get('identity') ?? 0) > weight(first) ? undefined : first, all }
}

/** In addition to `text/*`, and types ending in +json or +xml. */
const compressibleTypes: ReadonlySet<string> = new Set([
  'application/json',
  'application/xml',
  'application/yaml',
  'application/toml',
  'application/wasm',
  'application/vnd.apple.mpegurl',
  'application/vnd.ipld.dag-json',
  'font/ttf',
  'font/otf',
])

/** About twice the size of the response head: below it compression saves little. */
const minCompressedBytes = 1024
/**
 * A larger file is sent uncompressed, so that a client whose connection broke can resume with a
 * range.
 */
const maxCompressedBytes = 8 * 1024 * 1024

/** Undefined means not yet known. */
export type AboutBody = { readonly type?: string | undefined; readonly size?: number | undefined }

/** True if the response has coded variants. Unknown type or size counts as true. */
export function isCompressible({ type, size }: AboutBody): boolean {
  if (size !== undefined && (size <= minCompressedBytes || size > maxCompressedBytes)) return false
  if (type === undefined) return true
  const semicolon = type.indexOf(';')
  const name = semicolon < 0 ? type : type.slice(0, semicolon)
  return compressibleTypes.has(name) || name.startsWith('text/') || name.endsWith('+json') || name.endsWith('+xml')
}

type CodedPieces = {
  [Symbol.asyncIterator](): AsyncGenerator<Uint8Array>
  /** Needed only if reading has not begun: after that, the end of the reader closes it. */
  close(): void
}

/**
 * Calls `onOver` once: after the last byte, or when the source failed or the reader left and
 * nothing more is read.
 */
export function codedPieces(pieces: AsyncIterable<Uint8Array>, coder: Transform, onOver = () => {}): CodedPieces {
  let begun = false

  async function* read(): AsyncGenerator<Uint8Array> {
    begun = true
    // The reader gets an error of the source from the coder.
    const feeding = pipeline(pieces, coder).catch(() => {})
    try {
      yield* coder as AsyncIterable<Uint8Array>
    } finally {
      coder.destroy()
      void feeding.then(onOver)
    }
  }

  return {
    [Symbol.asyncIterator]: read,
    close() {
      if (begun) return
      begun = true
      coder.destroy()
      onOver()
    },
  }
}
