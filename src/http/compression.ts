// Content codings (RFC 9110 §8.4): compresses responses on zlib's threads, a few at a time. Above the limit a response is sent uncompressed instead of
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
import { type Accepted, acceptedOf, type Coding, isCompressible, plainOnly } from './content/negotiate.ts'

export type Compression = ReturnType<typeof createCompression>

type CompressionCounts = {
  readonly made: Record<Coding, number>
  /** Sent uncompressed because of the limit. */
  busy: number
}

// Concurrent compressions: their threads also read files.
const max = 2
// A slow client occupies a compressed stream for long, with some MiB of memory.
const maxStreams = 8

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

export function createCompression({ isOn }: { readonly isOn: boolean }) {
  const inProgress = new Map<string, Promise<Buffer | undefined>>()
  const counts: CompressionCounts = { made: { br: 0, zstd: 0, gzip: 0 }, busy: 0 }
  const parse = remembered(acceptedOf)
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
    accepted: (header: string | undefined): Accepted => (isOn && header !== undefined ? parse(header) : plainOnly),
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
