// Compresses responses on zlib's threads, a few at a time. Above the limit a response is sent
// uncompressed instead of waiting; requests for the same bytes share one compression.
import type { Transform } from 'node:stream'
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
import { type Accepted, createAcceptEncodings, plainOnly } from './accept-encoding.ts'
import { type CodedPieces, codedPieces } from './coded-pieces.ts'
import type { Coding } from './codings.ts'
import { type AboutBody, isCompressible } from './compressible.ts'

export interface Compression {
  /** The codings that a client accepts, by its Accept-Encoding. */
  readonly accepted: (header: string | undefined) => Accepted
  /** True if the response depends on Accept-Encoding. */
  readonly covers: (about: AboutBody) => boolean
  /**
   * Compresses all bytes. Undefined, now or later, if the limit is reached or it failed. The bytes
   * are in use until it settles. Calls with the same `name` have the same bytes and share the work.
   */
  compress(bytes: Uint8Array, coding: Coding, name?: string): Promise<Buffer | undefined> | undefined
  /** Compresses a stream. Undefined if the limit is reached. */
  stream(pieces: AsyncIterable<Uint8Array>, coding: Coding): CodedPieces | undefined
  readonly counts: CompressionCounts
}

export type CompressionCounts = {
  readonly made: Record<Coding, number>
  /** Sent uncompressed because of the limit. */
  busy: number
}

export type CompressionOptions = {
  readonly isOn: boolean
  /** The maximum number of concurrent compressions. Their threads also read files. */
  readonly most?: number
  /**
   * The maximum number of compressed streams: a slow client occupies one for long, with some MiB of
   * memory.
   */
  readonly mostStreams?: number
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

export function createCompression({ isOn, most = 2, mostStreams = 8 }: CompressionOptions): Compression {
  const underWay = new Map<string, Promise<Buffer | undefined>>()
  const counts: CompressionCounts = { made: { br: 0, zstd: 0, gzip: 0 }, busy: 0 }
  let running = 0
  let streams = 0

  async function run(bytes: Uint8Array, coding: Coding): Promise<Buffer | undefined> {
    running++
    try {
      const made = alone(await compressed(bytes, coding))
      counts.made[coding]++
      return made
    } catch {
      return undefined // out of memory: send it uncompressed
    } finally {
      running--
    }
  }

  return {
    accepted: isOn ? createAcceptEncodings() : () => plainOnly,
    covers: isOn ? isCompressible : () => false,
    compress(bytes, coding, name) {
      const known = name === undefined ? undefined : underWay.get(name)
      if (known !== undefined) return known
      if (running >= most) {
        counts.busy++
        return undefined
      }
      const made = run(bytes, coding)
      if (name === undefined) return made
      underWay.set(name, made)
      return made.finally(() => underWay.delete(name))
    },
    stream(pieces, coding) {
      if (streams >= mostStreams) {
        counts.busy++
        return undefined
      }
      streams++
      counts.made[coding]++
      return codedPieces(pieces, coder(coding), () => {
        streams--
      })
    },
    counts,
  }
}

function compressed(bytes: Uint8Array, coding: Coding): Promise<Buffer> {
  const size = bytes.byteLength
  // Large enough that zlib returns the result in one or two event-loop iterations.
  const chunkSize = Math.max(1024, Math.ceil(size / 3))
  switch (coding) {
    case 'br':
      return toBrotli(bytes, {
        chunkSize,
        params: { [BROTLI_PARAM_QUALITY]: quality.br, [BROTLI_PARAM_SIZE_HINT]: size },
      })
    case 'zstd':
      return toZstd(bytes, { chunkSize, params: { [ZSTD_c_compressionLevel]: quality.zstd } })
    case 'gzip':
      return toGzip(bytes, { chunkSize, level: quality.gzip })
  }
}

function coder(coding: Coding): Transform {
  switch (coding) {
    case 'br':
      return createBrotliCompress({
        params: { [BROTLI_PARAM_QUALITY]: quality.br, [BROTLI_PARAM_LGWIN]: windowBits },
      })
    case 'zstd':
      return createZstdCompress({
        params: { [ZSTD_c_compressionLevel]: quality.zstd, [ZSTD_c_windowLog]: windowBits },
      })
    case 'gzip':
      return createGzip({ level: quality.gzip })
  }
}

/** Copies the result out of zlib's larger buffer, which the cache would otherwise retain. */
function alone(bytes: Buffer): Buffer {
  if (bytes.byteLength === bytes.buffer.byteLength) return bytes
  const own = Buffer.allocUnsafeSlow(bytes.byteLength)
  bytes.copy(own)
  return own
}
